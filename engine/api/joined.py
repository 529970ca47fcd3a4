"""Joins of two streams, as the user writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, get_args

from ..contract.errors import UserError
from ..contract.options import State
from ..contract.suggestion import did_you_mean
from ..contract.units import Duration
from ..operators.as_of_join import AsOfJoinOperator, HowAsOf
from ..operators.join import How, Interval, JoinOperator
from ..operators.join_input import JoinInput
from ..operators.join_output import JoinOutput
from ..operators.session_join import RESERVED, SessionJoinOperator
from ..operators.windows import SessionWindow, TimeWindow, Window, bounded_ns, check_durations
from ..plan.graph import Input, Keyed
from ..plan.validate import check_keys, require_name
from ..state.backend import ADDED
from ..state.runs import MATCHED, TIME
from .backend import stated_backend
from .flow import STATE, Flow, S, event_time_of
from .windowed import durations_of

#: "column", ["column", ...], or {left column: right column}.
On = str | Sequence[str] | Mapping[str, str]


def joined(
    left: Flow[S],
    right: object,
    on: On,
    *,
    within: Duration | None,
    between: tuple[Duration, Duration] | None,
    window: Window | None,
    how: How,
    name: str | None,
    parallelism: int | None,
    state: State | None,
) -> S:
    """Join two streams; see `Stream.join`. Raises: UserError."""
    right, inputs = _inputs(left, right, on, how, get_args(How))
    match = _match(inputs, within, between, window)
    name = _named(name, inputs)
    out = JoinOutput(*inputs, None if isinstance(match, Interval) else match).schema
    backend = stated_backend(state, kind="join")
    make = (
        partial(SessionJoinOperator, *inputs, match)
        if isinstance(match, SessionWindow)
        else partial(JoinOperator, *inputs, match)
    )
    operator = partial(make, how, len(left.inputs), backend=backend)
    stream: S = left.over(_partitioned(left, right, inputs), out).then(
        "join", operator, out, name=name, parallelism=parallelism, stateful=True
    )
    return stream


def joined_as_of(
    left: Flow[S],
    right: object,
    on: On,
    *,
    how: HowAsOf,
    name: str | None,
    parallelism: int | None,
    state: State | None,
) -> S:
    """Join records with versions; see `Stream.join_as_of`. Raises: UserError."""
    right, inputs = _inputs(left, right, on, how, get_args(HowAsOf))
    name = _named(name, inputs)
    out = JoinOutput(*inputs, None).schema
    backend = stated_backend(state, kind="join")
    operator = partial(AsOfJoinOperator, *inputs, how, len(left.inputs), backend=backend)
    # A result is emitted before the watermark that it waited for goes on: it is in time.
    both = left.over(_partitioned(left, right, inputs), out, left.event_time)
    stream: S = both.then(
        "join",
        operator,
        out,
        name=name,
        parallelism=parallelism,
        stateful=True,
        late=left.schema,
    )
    return stream


def _inputs(
    left: Flow[Any], right: object, on: On, how: str, hows: tuple[str, ...]
) -> tuple[Flow[Any], tuple[JoinInput, JoinInput]]:
    """Return the right stream and both sides of a join. Raises: UserError."""
    if not isinstance(right, Flow):
        raise UserError(f"join takes a stream, got {right!r}")
    if how not in hows:
        raise UserError(f"join: how={how!r} is unknown; {did_you_mean(str(how), hows)}")
    left_keys, right_keys = _keys(on)
    _check_keys(left, left_keys, right, right_keys)
    return right, (_input(left, left_keys, "left"), _input(right, right_keys, "right"))


def _named(name: str | None, inputs: tuple[JoinInput, JoinInput]) -> str:
    proposal = f"{'-'.join(inputs[0].keys)}-join"
    return require_name(name, kind="join", proposal=proposal, why=STATE)


def _partitioned(
    left: Flow[Any], right: Flow[Any], inputs: tuple[JoinInput, JoinInput]
) -> tuple[Input, ...]:
    """Return the outputs that a join reads, each by the hash of its side's keys."""
    sides = zip((left, right), inputs, strict=True)
    return tuple(one for side, given in sides for one in side.partitioned(Keyed(given.keys)).inputs)


def _keys(on: On) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if isinstance(on, Mapping):
        return tuple(on), tuple(on.values())
    columns = (on,) if isinstance(on, str) else tuple(on)
    return columns, columns


def _check_keys(
    left: Flow[Any], left_keys: Sequence[str], right: Flow[Any], right_keys: Sequence[str]
) -> None:
    check_keys(left_keys, left.schema, where="join: left")
    check_keys(right_keys, right.schema, where="join: right")
    for one, other in zip(left_keys, right_keys, strict=True):
        types = left.schema.field(one).type, right.schema.field(other).type
        if types[0] != types[1]:
            raise UserError(
                f"join: {one!r} is {types[0]} on the left and {other!r} is {types[1]} on the"
                " right, which are never equal; "
                "cast one with select() before"
            )


def _input(stream: Flow[Any], keys: tuple[str, ...], side: str) -> JoinInput:
    column, _ = event_time_of(stream, where=f"join: the {side} stream")
    for name in (TIME.name, MATCHED.name, *ADDED, *RESERVED):
        if name in stream.schema.names:
            raise UserError(
                f"join: the {side} stream has a column {name!r}, which the join needs for itself;"
                " rename it with "
                "select() before"
            )
    return JoinInput(keys, column, stream.schema)


def _match(
    inputs: tuple[JoinInput, JoinInput],
    within: Duration | None,
    between: tuple[Duration, Duration] | None,
    window: Window | None,
) -> Interval | Window:
    if [within, between, window].count(None) != 2:
        raise UserError(
            "join takes one of within='10m', between=('-5m', '5m') and window=hr.tumbling('1m'),"
            " which tell which records "
            "can still meet"
        )
    if window is not None:
        return _window(inputs, window)
    if within is not None:
        distance = bounded_ns(within, "join: within")
        return Interval(-distance, distance)
    if not isinstance(between, tuple | list) or len(between) != 2:
        raise UserError(f"join: between={between!r} is not two durations, such as ('-5m', '5m')")
    low, high = (_signed_ns(bound) for bound in between)
    if low > high:
        raise UserError(f"join: between={between!r} is empty; write the earlier bound first")
    return Interval(low, high)


def _window(inputs: tuple[JoinInput, JoinInput], window: object) -> Window:
    if not isinstance(window, TimeWindow | SessionWindow):
        raise UserError(
            f"join: window={window!r} cannot be joined in; use hr.tumbling, hr.sliding or"
            " hr.session, or within="
        )
    left, right = (i.schema.field(i.event_time).type for i in inputs)
    if left != right:
        raise UserError(
            f"join: the event time is {left} on the left and {right} on the right; cast one before"
            " with_watermark"
        )
    check_durations(left, *durations_of(window), where="join")
    return window


def _signed_ns(value: Duration) -> int:
    """Read a duration that may be negative."""
    if isinstance(value, str) and value.lstrip().startswith("-"):
        return -bounded_ns(value.lstrip()[1:], "join: between")
    if isinstance(value, timedelta) and value < timedelta():
        return -bounded_ns(-value, "join: between")
    if isinstance(value, int | float) and value < 0:
        return -bounded_ns(-value, "join: between")
    return bounded_ns(value, "join: between")
