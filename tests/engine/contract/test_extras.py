"""A missing library is one sentence."""

import pytest

from headrace.engine.contract.errors import UserError
from headrace.engine.contract.extras import extra


def test_a_missing_library_is_named_with_its_extra() -> None:
    with (
        pytest.raises(UserError, match=r"^read\.x needs no_such_library.*'headrace\[spark\]'$"),
        extra("spark", "read.x"),
    ):
        import no_such_library  # type: ignore[import-not-found]  # noqa: F401


def test_other_failures_go_through() -> None:
    with pytest.raises(ZeroDivisionError), extra("spark", "read.x"):
        _ = 1 / 0
