"""Two streams in one process function, as the user writes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa

from headrace.channels.partitioners.broadcast import Broadcast

from ..contract.errors import UserError
from ..contract.options import State
from ..contract.suggestion import name_of_class
from ..operators.connect import BroadcastProcessor, ConnectOperator, ExpiringConnectOperator
from ..operators.process import declared_states, expires, has_processing_timers, has_timers
from ..plan.validate import check_schema, require_event_time, require_name
from ..state.broadcast import BroadcastState
from .backend import stated_backend
from .flow import STATE, Flow, S


def connected(
    main: Flow[S],
    keys: tuple[str, ...],
    rules: object,
    processor: object,
    *,
    schema: pa.Schema,
    name: str | None,
    parallelism: int | None,
    state: State | None = None,
) -> S:
    """Connect a stream with a broadcast one; see `Stream.connect`. Raises: UserError."""
    if not isinstance(rules, Flow):
        raise UserError(f"connect takes a stream, got {rules!r}")
    if not all(isinstance(edge.partitioning, Broadcast) for edge in rules.inputs):
        raise UserError(
            "connect: the other stream must be broadcast, so that every subtask gets all of it;"
            " write "
            "connect(rules.broadcast(), ...)"
        )
    class_: type[BroadcastProcessor]
    if isinstance(processor, BroadcastProcessor):
        class_ = type(processor)
    elif isinstance(processor, type) and issubclass(processor, BroadcastProcessor):
        class_ = processor
    else:
        raise UserError(f"connect takes a BroadcastProcessor, got {processor!r}")
    keyed = [n for n, s in declared_states(class_).items() if not isinstance(s, BroadcastState)]
    if keyed and not keys:
        raise UserError(
            f"connect: {class_.__name__} declares state per key ({', '.join(map(repr, keyed))})"
            " but the stream has no "
            "key; call key_by() before"
        )
    if has_timers(class_) or has_processing_timers(class_):
        called = "on_timer" if has_timers(class_) else "on_processing_timer"
        raise UserError(
            f"connect: {class_.__name__} implements {called}, but timers are set by processors of"
            " keyed streams alone; set them "
            "in a process() behind it"
        )
    make: Callable[..., ConnectOperator] = ConnectOperator
    if expires(class_):
        where = "connect: state with a ttl"
        timed = require_event_time(main.event_time, main.schema, where=where)
        make = partial(ExpiringConnectOperator, event_time=timed)
    name = require_name(name, kind="connect", proposal=name_of_class(class_), why=STATE)
    schema = check_schema(schema, where="connect")
    backend = stated_backend(state, kind="connect")
    ports = len(main.inputs)
    operator = partial(make, processor, keys, ports, main.schema, schema, backend=backend)
    # A stream without watermarks holds back those of the other.
    event_time = None if rules.event_time is None else main.event_time
    both = main.over(main.inputs + rules.inputs, main.schema, event_time)
    stream: S = both.then(
        "connect",
        operator,
        schema,
        name=name,
        parallelism=parallelism,
        stateful=True,
        runs_user_code=True,
    )
    return stream
