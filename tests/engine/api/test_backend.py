from __future__ import annotations

from typing import Any

import pytest

from headrace.engine.api.backend import stated_backend
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.operators import StateBackend
from headrace.engine.contract.options import State


def test_what_is_not_stated_goes_by_the_job() -> None:
    assert stated_backend(None, kind="join") is None


def test_what_is_stated_is_taken_over() -> None:
    given = State("rocksdb", write_buffer="1MiB", block_cache="2MiB", cache="3MiB")
    expected = StateBackend("rocksdb", 1 << 20, 2 << 20, cache_bytes=3 << 20)
    assert stated_backend(given, kind="join") == expected


@pytest.mark.parametrize("state", ["rocksdb", State("rocksdb", directory="here")])
def test_what_no_operator_can_have_is_refused(state: Any) -> None:
    with pytest.raises(UserError, match="join: state"):
        stated_backend(state, kind="join")
