"""`isolate=` of an operator: its function in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..contract.errors import UserError
from ..operators.isolated import IsolatedOperator

#: Why an operator cannot be isolated, or need not be.
_SHARED = "share='worker' keeps one instance in the worker; choose one of the two"
NO_GIL = "an Arrow expression does not hold the GIL"

STATE_STAYS = (
    "a processor's state lies in the worker; do the slow part in a map or map_batches before it,"
    " with isolate=True there"
)


def isolated(
    kind: str,
    make: Callable[..., Any],
    *,
    isolate: bool,
    share: str = "subtask",
) -> Callable[..., Any]:
    """Return what makes the operator, isolated if so wished. Raises: UserError."""
    if share == "worker":
        refuse_isolated(kind, isolate, _SHARED)
    _check(kind, isolate)
    return partial(IsolatedOperator, make) if isolate else make


def refuse_isolated(kind: str, isolate: bool, reason: str) -> None:
    """Raise UserError if `isolate` was asked for, where it cannot be had or is of no use."""
    _check(kind, isolate)
    if isolate:
        raise UserError(f"{kind}: isolate=True is not for this: {reason}")


def _check(kind: str, isolate: bool) -> None:
    if not isinstance(isolate, bool):
        raise UserError(f"{kind}: isolate is True or False, not {isolate!r}")
