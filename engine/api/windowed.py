"""Windows of a keyed stream, and their aggregates."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from ..contract.errors import UserError
from ..contract.options import State
from ..contract.units import Duration
from ..operators.aggregations import Aggregation
from ..operators.session import SessionOperator
from ..operators.window import TimeWindowOperator
from ..operators.window_output import window_schema
from ..operators.window_store import WindowAggregate
from ..operators.windows import SessionWindow, TimeWindow, Window, bounded_ns, check_durations
from ..plan.graph import Input, Output
from ..plan.validate import check_aggregations, require_event_time, require_name
from .backend import stated_backend
from .stream import STATE, Stream

if TYPE_CHECKING:
    from .keyed import KeyedStream


class WindowResult(Stream):
    """The results of a windowed aggregate, with the late records beside them."""

    __slots__ = ()

    @property
    def late(self) -> Stream:
        """The records whose windows were past, as they came in.

        Without a consumer they are dropped, and counted.
        """
        node = self.inputs[0].node
        assert node.late is not None, f"{node.label} has no late records"
        return Stream((Input(node, output=Output.LATE),), node.late)


@dataclass(frozen=True, slots=True)
class WindowedStream:
    """A keyed stream cut into windows.

    Attributes:
        keyed: the stream and its key.
        event_time: the column that tells when a record happened.
        lateness_ns: for how long a window is kept, and changed by late records, after its end.
    """

    keyed: KeyedStream
    window: Window
    event_time: str
    lateness_ns: int

    def aggregate(
        self,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        state: State | None = None,
        **aggregations: Aggregation,
    ) -> WindowResult:
        """Aggregate each key's records by window: `aggregate(n=hr.count(), name="per-minute")`.

        A window is emitted once the watermark has passed its end, and with lateness again after
        each batch with late records.

        Args:
            name: required.
            state: where the windows lie, if not where the job's state does.
            aggregations: {column of the result: aggregation}.

        Returns: a stream of the key columns, window_start, window_end, and one column per
        aggregation; `late` has the late records. The result has no watermark: for further windows,
        give it one, as in `with_watermark("window_start", "0s")`.
        """
        stream, keys = self.keyed.stream, self.keyed.columns
        proposal = f"{'-'.join(keys)}-windows"
        name = require_name(name, kind="aggregate", proposal=proposal, why=STATE)
        check_aggregations(aggregations, stream.schema)
        out = window_schema(keys, self.event_time, aggregations, stream.schema)
        spec = WindowAggregate(
            keys, self.event_time, self.lateness_ns, aggregations, stream.schema, out
        )
        make = (
            partial(TimeWindowOperator, self.window)
            if isinstance(self.window, TimeWindow)
            else partial(SessionOperator, self.window)
        )
        result = stream.then(
            "window",
            partial(make, spec, backend=stated_backend(state, kind="window")),
            out,
            name=name,
            parallelism=parallelism,
            stateful=True,
            late=stream.schema,
        )
        return WindowResult(result.inputs, out)


def windowed(keyed: KeyedStream, window: object, lateness: Duration) -> WindowedStream:
    """Cut a keyed stream into windows. Raises: UserError."""
    if not isinstance(window, TimeWindow | SessionWindow):
        raise UserError(
            "window takes hr.tumbling('1m'), hr.sliding('1m', every='10s') or hr.session('30s'),"
            f" got {window!r}"
        )
    column, type_ = event_time_of(keyed.stream, where="window")
    check_durations(type_, *durations_of(window), where="window")
    lateness_ns = bounded_ns(lateness, "window: lateness")
    return WindowedStream(keyed, window, column, lateness_ns)


def event_time_of(stream: Stream, *, where: str) -> tuple[str, pa.DataType]:
    """Return a stream's event-time column and its type. Raises: UserError when it has none."""
    column = require_event_time(stream.event_time, stream.schema, where=where)
    return column, stream.schema.field(column).type


def durations_of(window: Window) -> tuple[int, ...]:
    """Return the durations, in nanoseconds, that the event-time column must be able to express."""
    return (window.size_ns, window.every_ns) if isinstance(window, TimeWindow) else (window.gap_ns,)
