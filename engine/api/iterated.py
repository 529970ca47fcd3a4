"""Loops, as the user writes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..contract.errors import UserError
from ..operators.loop_head import LoopHead
from ..plan.loops import check_loop
from ..plan.validate import require_name
from .flow import Flow, S

#: Builds a round of a loop: what goes round again, and what leaves the loop.
Body = Callable[[S], tuple[S, S]]

_FOUND_AGAIN = "by which the records on the back-edge are found again"


def iterated(stream: Flow[S], body: Body[S], *, name: str | None, parallelism: int | None) -> S:
    """Let records go round; see `Stream.iterate`. Raises: UserError."""
    name = require_name(name, kind="iterate", proposal="rounds", why=_FOUND_AGAIN)
    if not callable(body):
        raise UserError(f"iterate {name!r} takes a function that builds a round, got {body!r}")
    loop = stream.then("iterate", LoopHead, stream.schema, name=name, parallelism=parallelism)
    head = loop.inputs[0].node
    again, out = _round(body(loop), name)
    head.again.extend(again.inputs)
    check_loop(head)
    return out


def _round(returned: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise UserError(
            f"iterate {name!r}: the body returns two streams, (again, out), got {returned!r}"
        )
    for stream in returned:
        if not isinstance(stream, Flow):
            raise UserError(
                f"iterate {name!r}: the body returns two streams, (again, out), and"
                f" {stream!r} is none"
            )
    return returned
