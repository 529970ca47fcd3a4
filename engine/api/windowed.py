"""Windows of a keyed stream, and their aggregates, as the user writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ..contract.errors import UserError
from ..contract.options import State
from ..contract.units import Duration
from ..operators.aggregations import Aggregation, AggregationKind
from ..operators.session import SessionOperator
from ..operators.window import TimeWindowOperator
from ..operators.window_output import window_schema
from ..operators.window_store import WindowAggregate
from ..operators.windows import SessionWindow, TimeWindow, Window, bounded_ns, check_durations
from ..plan.validate import check_aggregations, require_name
from .backend import stated_backend
from .flow import STATE, Flow, S, event_time_of

_ORDERED = (AggregationKind.FIRST, AggregationKind.LAST)


def check_window(stream: Flow[Any], window: object, lateness: Duration) -> tuple[str, int]:
    """Return a windowed stream's event-time column and its lateness in nanoseconds.

    Raises: UserError.
    """
    if not isinstance(window, TimeWindow | SessionWindow):
        raise UserError(
            "window takes hr.tumbling('1m'), hr.sliding('1m', every='10s') or hr.session('30s'),"
            f" got {window!r}"
        )
    column, type_ = event_time_of(stream, where="window")
    check_durations(type_, *durations_of(window), where="window")
    lateness_ns = bounded_ns(lateness, "window: lateness")
    return column, lateness_ns


def window_aggregated(
    stream: Flow[S],
    keys: tuple[str, ...],
    window: Window,
    aggregations: Mapping[str, Aggregation],
    *,
    event_time: str,
    lateness_ns: int,
    name: str | None,
    parallelism: int | None,
    state: State | None,
) -> S:
    """Aggregate by key and window; see `WindowedStream.aggregate`. Raises: UserError."""
    proposal = f"{'-'.join(keys)}-windows"
    name = require_name(name, kind="aggregate", proposal=proposal, why=STATE)
    check_aggregations(aggregations, stream.schema)
    aggregations = {name: _timed(each, event_time) for name, each in aggregations.items()}
    out = window_schema(keys, event_time, aggregations, stream.schema)
    spec = WindowAggregate(keys, event_time, lateness_ns, aggregations, stream.schema, out)
    make = (
        partial(TimeWindowOperator, window)
        if isinstance(window, TimeWindow)
        else partial(SessionOperator, window)
    )
    return stream.then(
        "window",
        partial(make, spec, backend=stated_backend(state, kind="window")),
        out,
        name=name,
        parallelism=parallelism,
        stateful=True,
        late=stream.schema,
    )


def _timed(aggregation: Aggregation, event_time: str) -> Aggregation:
    """First and last are by event time: records of a window come in any order."""
    if aggregation.kind in _ORDERED and aggregation.by is None:
        return replace(aggregation, by=event_time)
    return aggregation


def durations_of(window: Window) -> tuple[int, ...]:
    """Return the durations, in nanoseconds, that the event-time column must be able to express."""
    return (window.size_ns, window.every_ns) if isinstance(window, TimeWindow) else (window.gap_ns,)
