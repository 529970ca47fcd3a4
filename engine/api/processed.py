"""A keyed stream in a process function, as the user writes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa

from ..contract.errors import UserError
from ..contract.options import State
from ..contract.suggestion import name_of_class
from ..operators.co_process import CoProcessor
from ..operators.process import (
    ProcessOperator,
    StatefulProcessor,
    declared_states,
    expires,
    has_processing_timers,
    has_timers,
)
from ..operators.timed_process import TimedProcessOperator
from ..plan.validate import check_schema, require_event_time, require_name
from ..state.broadcast import BroadcastState
from .backend import stated_backend
from .flow import STATE, Flow, S


def processed(
    stream: Flow[S],
    keys: tuple[str, ...],
    processor: StatefulProcessor | type[StatefulProcessor],
    *,
    schema: pa.Schema,
    name: str | None,
    parallelism: int | None,
    state: State | None,
) -> S:
    """Process a keyed stream; see `KeyedStream.process`. Raises: UserError."""
    class_ = processor if isinstance(processor, type) else type(processor)
    if not issubclass(class_, StatefulProcessor):
        raise UserError(f"process takes a StatefulProcessor, got {processor!r}")
    if issubclass(class_, CoProcessor):
        raise UserError(
            f"process: {class_.__name__} is a processor of two streams; use"
            " connect(other.key_by(...), ...)"
        )
    if any(isinstance(s, BroadcastState) for s in declared_states(class_).values()):
        raise UserError(
            f"process: {class_.__name__} declares broadcast state, which a second stream must"
            " fill; use "
            "connect(rules.broadcast(), ...)"
        )
    name = require_name(name, kind="process", proposal=name_of_class(class_), why=STATE)
    schema = check_schema(schema, where="process")
    given = (processor, keys, stream.schema, schema)
    operator: Callable[..., ProcessOperator] = partial(
        ProcessOperator, *given, backend=stated_backend(state, kind="process")
    )
    if has_timers(class_) or expires(class_) or has_processing_timers(class_):
        event_time = stream.event_time
        if has_timers(class_) or expires(class_):
            why = f"{class_.__name__}.on_timer" if has_timers(class_) else "state with a ttl"
            event_time = require_event_time(event_time, stream.schema, where=f"process: {why}")
        operator = partial(
            TimedProcessOperator,
            *given,
            backend=stated_backend(state, kind="process"),
            event_time=event_time if expires(class_) else None,
        )
    return stream.then(
        "process",
        operator,
        schema,
        name=name,
        parallelism=parallelism,
        stateful=True,
        runs_user_code=True,
    )
