"""Keyed streams: the operators that keep state per key.

Each call checks the names and columns that it states, as in `stream.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from ..contract.errors import UserError
from ..contract.operators import Operator, StateBackend
from ..contract.options import State
from ..contract.suggestion import did_you_mean, name_of_class
from ..contract.units import Duration
from ..operators.aggregate import AggregateOperator, Emit
from ..operators.aggregations import Aggregation, aggregate_schema
from ..operators.co_process import CoProcessor
from ..operators.connect import BroadcastProcessor
from ..operators.expiring_aggregate import ExpiringAggregate
from ..operators.join import How
from ..operators.process import (
    ProcessOperator,
    StatefulProcessor,
    declared_states,
    expires,
    has_processing_timers,
    has_timers,
)
from ..operators.timed_process import TimedProcessOperator
from ..operators.windows import Window
from ..plan.validate import check_aggregations, check_schema, require_event_time, require_name
from ..state.broadcast import BroadcastState
from ..state.keyed import checked_ttl_ns
from .backend import stated_backend
from .stream import STATE, Stream

if TYPE_CHECKING:
    from .windowed import WindowedStream

EMITS: tuple[str, ...] = ("changes", "final")


@dataclass(frozen=True, slots=True)
class KeyedStream:
    """A stream whose records meet by key, with the operators that keep state per key.

    Attributes:
        stream: partitioned by `columns`.
        columns: the key.
    """

    stream: Stream
    columns: tuple[str, ...]

    def aggregate(
        self,
        *,
        name: str | None = None,
        emit: Emit = "changes",
        ttl: Duration | None = None,
        parallelism: int | None = None,
        state: State | None = None,
        **aggregations: Aggregation,
    ) -> Stream:
        """Keep running aggregates per key: `aggregate(amount=hr.sum("amount"), n=hr.count(),
        name="totals")`.

        Args:
            name: required.
            emit: "changes": each batch's changed keys with their new values; "final": every key
                once, when the input ends.
            ttl: "1h": a key without a record for so long, in event time, is forgotten, and begins
                anew with its next record; None: never. The time of a record is its own, or the
                watermark where that has passed it. Forgetting emits nothing. A checkpoint of an
                aggregate with a ttl cannot be restored into an aggregate without, nor the other way
                round.
            state: where the state lies, if not where the job's does.
            aggregations: {column of the result: aggregation}.

        Returns: a stream of the key columns followed by one column per aggregation.
        """
        proposal = f"{'-'.join(self.columns)}-totals"
        name = require_name(name, kind="aggregate", proposal=proposal, why=STATE)
        if emit not in EMITS:
            raise UserError(
                f"aggregate: emit={emit!r} is unknown; {did_you_mean(str(emit), EMITS)}"
            )
        check_aggregations(aggregations, self.stream.schema)
        schema = self.stream.schema
        out = aggregate_schema(self.columns, aggregations, schema)
        backend = stated_backend(state, kind="aggregate")
        operator: Callable[..., Operator]
        if ttl is None:
            operator = partial(
                AggregateOperator, self.columns, aggregations, schema, emit, backend=backend
            )
        else:
            operator = self._expiring(ttl, emit, aggregations, backend)
        return self.stream.then(
            "aggregate", operator, out, name=name, parallelism=parallelism, stateful=True
        )

    def _expiring(
        self,
        ttl: Duration,
        emit: Emit,
        aggregations: Mapping[str, Aggregation],
        backend: StateBackend | None,
    ) -> Callable[..., ExpiringAggregate]:
        if emit == "final":
            raise UserError(
                'aggregate: emit="final" gives every key when the input ends, but ttl= forgets'
                " keys before; use one of them"
            )
        schema = self.stream.schema
        event_time = require_event_time(
            self.stream.event_time, schema, where="aggregate: state with a ttl"
        )
        given = (self.columns, event_time, checked_ttl_ns(ttl), aggregations, schema)
        # Made once here, since that finds the user's mistakes.
        ExpiringAggregate(*given, operator="aggregate")
        return partial(ExpiringAggregate, *given, backend=backend)

    def window(self, window: Window, *, lateness: Duration = 0) -> WindowedStream:
        """Cut the stream into windows of event time:
        `window(hr.tumbling("1m")).aggregate(n=hr.count(), name="per-minute")`.

        Args:
            window: `hr.tumbling("1m")`, `hr.sliding("1m", every="10s")` or `hr.session("30s")`.
            lateness: for how long after its end a window is kept, to be emitted anew when late
                records come for it.
        """
        from .windowed import windowed  # windowed.py is built on this module

        return windowed(self, window, lateness)

    def join(
        self,
        other: KeyedStream,
        *,
        within: Duration | None = None,
        between: tuple[Duration, Duration] | None = None,
        window: Window | None = None,
        how: How = "inner",
        name: str | None = None,
        parallelism: int | None = None,
        state: State | None = None,
    ) -> Stream:
        """Join with another keyed stream whose keys are equal, as `Stream.join` does."""
        if not isinstance(other, KeyedStream) or len(other.columns) != len(self.columns):
            raise UserError(
                f"join takes a stream keyed by as many columns as this one ({len(self.columns)}),"
                f" got {other!r}"
            )
        return self.stream.join(
            other.stream,
            dict(zip(self.columns, other.columns, strict=True)),
            within=within,
            between=between,
            window=window,
            how=how,
            name=name,
            parallelism=parallelism,
            state=state,
        )

    def connect(
        self,
        other: Stream | KeyedStream,
        processor: type[BroadcastProcessor | CoProcessor] | BroadcastProcessor | CoProcessor,
        *,
        schema: pa.Schema,
        name: str | None = None,
        parallelism: int | None = None,
        state: State | None = None,
    ) -> Stream:
        """As `Stream.connect`, with state per key beside the broadcast state; or process two keyed
        streams together.

        Args:
            other: a stream after `broadcast()`, for a `BroadcastProcessor`; or a stream after
                `key_by` with keys of the same types, for a `CoProcessor`, which finds the same
                state for records of either side.
            state: where the state per key lies, if not where the job's does; broadcast state is in
                memory always.
        """
        if isinstance(other, KeyedStream):
            from .co_connected import co_connected

            return co_connected(
                self,
                other,
                processor,
                schema=schema,
                name=name,
                parallelism=parallelism,
                state=state,
            )
        from .connected import connected  # connected.py is built on this module

        return connected(
            self.stream,
            self.columns,
            other,
            processor,
            schema=schema,
            name=name,
            parallelism=parallelism,
            state=state,
        )

    def process(
        self,
        processor: StatefulProcessor | type[StatefulProcessor],
        *,
        schema: pa.Schema,
        name: str | None = None,
        parallelism: int | None = None,
        state: State | None = None,
    ) -> Stream:
        """Run a processor with declared state per key, and timers if it implements `on_timer` or
        `on_processing_timer`.

        Args:
            processor: a `StatefulProcessor` subclass, or an instance.
            schema: of the emitted records.
            name: required.
            state: where the state lies, if not where the job's does.
        """
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
        check_schema(schema, where="process")
        given = (processor, self.columns, self.stream.schema, schema)
        operator: Callable[..., ProcessOperator] = partial(
            ProcessOperator, *given, backend=stated_backend(state, kind="process")
        )
        if has_timers(class_) or expires(class_) or has_processing_timers(class_):
            event_time = self.stream.event_time
            if has_timers(class_) or expires(class_):
                why = f"{class_.__name__}.on_timer" if has_timers(class_) else "state with a ttl"
                event_time = require_event_time(
                    event_time, self.stream.schema, where=f"process: {why}"
                )
            operator = partial(
                TimedProcessOperator,
                *given,
                backend=stated_backend(state, kind="process"),
                event_time=event_time if expires(class_) else None,
            )
        return self.stream.then(
            "process",
            operator,
            schema,
            name=name,
            parallelism=parallelism,
            stateful=True,
            runs_user_code=True,
        )
