"""Two keyed streams in one process function, as the user writes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from ..contract.errors import UserError
from ..contract.options import State
from ..operators.co_process import CoInput, CoProcessOperator, CoProcessor
from ..operators.process import StatefulProcessor, declared_states, expires, has_timers
from ..plan.validate import check_schema, require_event_time, require_name
from ..state.broadcast import BroadcastState
from .backend import stated_backend
from .flow import STATE, Flow, S


def co_connected(
    left: Flow[S],
    left_keys: Sequence[str],
    right: Flow[Any],
    right_keys: Sequence[str],
    processor: object,
    *,
    schema: pa.Schema,
    name: str | None,
    parallelism: int | None,
    state: State | None,
) -> S:
    """Connect two keyed streams; see `KeyedStream.connect`. Raises: UserError."""
    class_: type[CoProcessor]
    if isinstance(processor, CoProcessor):
        class_ = type(processor)
    elif isinstance(processor, type) and issubclass(processor, CoProcessor):
        class_ = processor
    else:
        raise UserError(f"connect with a keyed stream takes a CoProcessor, got {processor!r}")
    _check_processor(class_)
    _check_keys(left, left_keys, right, right_keys)
    event_times = [_event_time(class_, side) for side in (left, right)]
    proposal = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", class_.__name__).lower()
    name = require_name(name, kind="connect", proposal=proposal, why=STATE)
    schema = check_schema(schema, where="connect")
    one, other = (
        CoInput(tuple(keys), side.schema, event_time if expires(class_) else None)
        for side, keys, event_time in zip(
            (left, right), (left_keys, right_keys), event_times, strict=True
        )
    )
    operator = partial(
        CoProcessOperator,
        processor,
        one,
        other,
        len(left.inputs),
        schema,
        backend=stated_backend(state, kind="connect"),
    )
    both = left.inputs + right.inputs
    # A stream without watermarks holds back those of the other.
    timed = left.event_time if right.event_time is not None else None
    stream: S = left.over(both, left.schema, timed).then(
        "connect",
        operator,
        schema,
        name=name,
        parallelism=parallelism,
        stateful=True,
        runs_user_code=True,
    )
    return stream


def _check_processor(class_: type[CoProcessor]) -> None:
    if any(isinstance(s, BroadcastState) for s in declared_states(class_).values()):
        raise UserError(
            f"connect: {class_.__name__} declares broadcast state, which a broadcast stream must"
            " fill; use a "
            "BroadcastProcessor and connect(rules.broadcast(), ...)"
        )
    for method in ("process", "process_batch"):
        if getattr(class_, method) is not getattr(StatefulProcessor, method):
            raise UserError(
                f"connect: {class_.__name__} implements {method}, but records of two streams go to"
                " process_left and "
                "process_right"
            )


def _check_keys(
    left: Flow[Any], left_keys: Sequence[str], right: Flow[Any], right_keys: Sequence[str]
) -> None:
    if len(left_keys) != len(right_keys):
        raise UserError(
            f"connect takes a stream keyed by as many columns as this one ({len(left_keys)}),"
            " got "
            f"{len(right_keys)}: {', '.join(right_keys)}"
        )
    for one, other in zip(left_keys, right_keys, strict=True):
        types = left.schema.field(one).type, right.schema.field(other).type
        if types[0] != types[1]:
            raise UserError(
                f"connect: {one!r} is {types[0]} on the left and {other!r} is {types[1]} on the"
                " right, which are never "
                "equal; cast one with select() before"
            )


def _event_time(class_: type[CoProcessor], stream: Flow[Any]) -> str | None:
    """Return a stream's event-time column, which it must have where time matters.

    Raises: UserError.
    """
    if not has_timers(class_) and not expires(class_):
        return stream.event_time
    why = f"{class_.__name__}.on_timer" if has_timers(class_) else "state with a ttl"
    return require_event_time(stream.event_time, stream.schema, where=f"connect: {why}")
