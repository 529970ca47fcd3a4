"""Optional libraries, which the extras of the package bring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .errors import UserError


@contextmanager
def extra(name: str, what: str) -> Iterator[None]:
    """Say how a missing library is installed.

    Args:
        name: the extra, as in `pip install 'headrace[spark]'`.
        what: the part of the user's program that needs the library.

    Raises: UserError, when an import inside fails.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(
            f"{what} needs {error.name}, which is not installed: pip install 'headrace[{name}]'"
        ) from error
