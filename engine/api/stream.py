"""Streams, keyed and windowed ones too: a pipeline written as a value.

A `Stream` names the outputs that a consumer would read, and their schema; every method returns a
new stream and runs no job. Two consumers of a stream share its operator. A call checks the names,
columns and schemas that it states; `Job.plan` checks the whole job.

Batches are `pyarrow.RecordBatch`. The methods that call users' functions are in `functions.py`;
methods of several arguments are functions of flows in modules beside this one (`joined.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from ..contract.errors import UserError
from ..contract.execution import Output
from ..contract.options import State
from ..contract.units import Duration, duration_ns
from ..operators.aggregate import Emit
from ..operators.aggregations import Aggregation
from ..operators.as_of_join import HowAsOf
from ..operators.co_process import CoProcessor
from ..operators.connect import BroadcastProcessor
from ..operators.failures import OnError
from ..operators.join import How
from ..operators.process import StatefulProcessor
from ..operators.watermark import WatermarkOperator
from ..operators.windows import Window
from ..plan.graph import Input, Keyed
from ..plan.validate import (
    check_event_time,
    check_keys,
    check_union,
    require_name,
)
from .aggregated import aggregated
from .async_mapped import AsyncFunction, async_mapped
from .co_connected import co_connected
from .columns import Columns
from .connected import connected
from .exchanges import Exchanges
from .flow import (
    STATE,
    refuse_on_error,
)
from .functions import Functions
from .isolated import STATE_STAYS, refuse_isolated
from .iterated import Body, iterated
from .joined import On, joined, joined_as_of
from .logged import Read, logged
from .looked import inspected, shown, taken
from .processed import processed
from .reduced import distinct, limited
from .windowed import check_window, window_aggregated
from .write import Write


@dataclass(frozen=True, slots=True, repr=False)
class Stream(Functions["Stream"], Columns["Stream"], Exchanges["Stream"]):
    """Records on their way, lazily.

    Every method that adds an operator takes `name=`, the operator's identity in errors, metrics and
    checkpoints (left out, where allowed: a generated name), and `parallelism=`, the number of
    subtasks (left out: the job's). `isolate=True` runs a function in a process of its own, beside
    each subtask: for long holds of the GIL, and crashes. All methods raise `UserError` when an
    argument does not fit.

    Attributes:
        inputs: the outputs that a consumer reads; several after `union`.
        schema: of every batch.
        event_time: the column of event times that `with_watermark` named, as long as later
            operators keep the column.
    """

    def over(
        self, inputs: tuple[Input, ...], schema: pa.Schema, event_time: str | None = None
    ) -> Stream:
        """Return a stream of other inputs."""
        return Stream(inputs, schema, event_time)

    def with_watermark(
        self,
        column: str,
        delay: Duration,
        *,
        idle_after: Duration | None = None,
        name: str | None = None,
    ) -> Stream:
        """Name the column of event times, and state by how much records may be out of order.

        Windows and timers wait until the newest time seen, less the delay, has passed on all
        inputs; records that come later are late.

        At a source, or behind operators that only map and filter its records, each split has a
        watermark by itself: a file that is read or followed, a batch, a partition. A split may be
        hours behind another without a late record. Event time does not wait for files that wait to
        be read: a subtask reads its files one after the other, in the order of their paths. Behind
        `rebalance`, `shuffle` or `key_by` there are no splits any more, so call this before.

        Args:
            column: a timestamp.
            delay: "10s", seconds or a timedelta.
            idle_after: a split, or a subtask, without records for so long no longer holds the
                others back, until records come again; None: always. Needed where followed files
                stop growing, or event time stops with them.
            name: identity of the state with the newest time; needed only where the stream's own
                operator has no name.
        """
        check_event_time(column, self.schema, where="with_watermark")
        delay_ns = duration_ns(delay, option="with_watermark: delay")
        idle_ns = None
        if idle_after is not None:
            idle_ns = max(1, duration_ns(idle_after, option="with_watermark: idle_after"))
        nodes = {edge.node for edge in self.inputs}
        named = next(iter(nodes)).name if len(nodes) == 1 else None
        if name is None and named is not None:
            name = f"{named}-watermark"
        name = require_name(name, kind="with_watermark", proposal="watermark", why=STATE)
        widths = {node.parallelism for node in nodes}
        stream = self.then(
            "with_watermark",
            partial(WatermarkOperator, column, delay_ns, self.schema, idle_after_ns=idle_ns),
            self.schema,
            name=name,
            # As many as its producer has, or records would get out of order on their way.
            parallelism=widths.pop() if len(widths) == 1 else None,
            stateful=True,
            idle_after_ns=idle_ns,
        )
        return replace(stream, event_time=column)

    def key_by(self, *columns: str) -> KeyedStream:
        """Bring records that agree in `columns` to one subtask, in order per producing subtask."""
        check_keys(columns, self.schema, where="key_by")
        return KeyedStream(self.partitioned(Keyed(columns)), columns)

    def group_by(self, *columns: str) -> KeyedStream:
        """Another name of `key_by`."""
        return self.key_by(*columns)

    def distinct(
        self,
        *columns: str,
        name: str | None = None,
        parallelism: int | None = None,
        state: State | None = None,
    ) -> Stream:
        """Keep the first record of each value of `columns`, and drop the others.

        The state holds every value that has come.

        Args:
            columns: none stated: every column.
            name: required.
            state: where the state lies, if not where the job's does.
        """
        return distinct(self, columns, name=name, parallelism=parallelism, state=state)

    def limit(self, rows: int, *, name: str | None = None) -> Stream:
        """Keep the first `rows` records to come, in one subtask, and drop all others.

        The job goes on to the end of its input; `name` is required.
        """
        return limited(self, rows, name=name)

    def take(self, rows: int) -> pa.Table:
        """Run the operators up to here in threads of this process until `rows` records are there,
        or the input ends; return them.

        For a look at a pipeline, also one that never ends. Sources are really read, and calls to
        other systems are really made. A failure raises `JobFailed` at once.
        """
        return taken(self, rows, where="take")

    def show(self, rows: int = 20) -> None:
        """Print the first records as a table, as `take` gets them."""
        shown(taken(self, rows, where="show"))

    def inspect(
        self, *, label: str = "", every: Duration = "1s", name: str | None = None
    ) -> Stream:
        """Pass all records on, and print one of them from time to time, where a user's function
        would print: to standard error, behind `[operator/subtask]`.

        Args:
            label: before each line; the operator's name by default.
            every: the shortest time between two lines of a subtask.
        """
        return inspected(self, label=label, every=every, name=name)

    def union(self, *others: Stream) -> Stream:
        """Merge streams of equal schemas, in no particular order."""
        for other in others:
            if not isinstance(other, Stream):
                raise UserError(f"union takes streams, got {other!r}")
        check_union([self.schema, *(other.schema for other in others)])
        inputs = self.inputs + tuple(edge for other in others for edge in other.inputs)
        same = all(other.event_time == self.event_time for other in others)
        return Stream(inputs, self.schema, self.event_time if same else None)

    def join(
        self,
        other: Stream,
        on: On,
        *,
        within: Duration | None = None,
        between: tuple[Duration, Duration] | None = None,
        window: Window | None = None,
        how: How = "inner",
        name: str | None = None,
        parallelism: int | None = None,
        state: State | None = None,
    ) -> Stream:
        """Join with the records of another stream that agree in `on` and are close in event time.

        Exactly one of `within`, `between` and `window` states how close. Both streams need event
        time (`with_watermark`); a record later than the watermark is dropped and counted. Null
        meets no record, as in SQL.

        Args:
            on: a column, several, or {column here: column there}.
            within: "10m": the times differ by at most 10 minutes.
            between: ("-5m", "1h"): the other's time less this record's, bounds included.
            window: `hr.tumbling(...)` or `hr.sliding(...)`: once for each window with both records.
                `hr.session(gap)`: both records are in a session of the key, which the records of
                both streams make together.
            how: "inner", or "left", "right" or "full" to emit also records without a match, once
                the watermark rules a match out.
            name: required.
            state: where its state lies, if not where the job's does.

        Returns: all columns of this stream, those of the other but its keys (with "_right" if the
            name is taken), and of a windowed join window_start and window_end. The result has no
            watermark of its own.
        """
        return joined(
            self,
            other,
            on,
            within=within,
            between=between,
            window=window,
            how=how,
            name=name,
            parallelism=parallelism,
            state=state,
        )

    def join_as_of(
        self,
        other: Stream,
        on: On,
        *,
        how: HowAsOf = "inner",
        name: str | None = None,
        parallelism: int | None = None,
        state: State | None = None,
    ) -> WithLate:
        """Join each record with the row that its key had in a changing table, at the record's time:
        `orders.join_as_of(rates, on="currency", name="priced")`.

        The records of `other` are versions: each is valid from its event time until the next
        version of its key; of equal times, the version that came last counts. Both streams need
        event time (`with_watermark`). A record is emitted once the watermark has reached it, so
        versions that are out of order count; where `other` seldom changes, give its
        `with_watermark` an `idle_after`, or records wait for its next version. Of each key, state
        keeps the newest version that the watermark has reached, and the versions after it.

        Args:
            on: a column, several, or {column here: column there}. Null meets no version.
            how: "inner", or "left" to emit also records without a version.
            name: required.
            state: where its state lies, if not where the job's does.

        Returns: all columns of this stream, and those of the other but its keys (with "_right" if
            the name is taken), with this stream's event time; `late` has the records of this stream
            that the watermark had passed.
        """
        result = joined_as_of(
            self, other, on, how=how, name=name, parallelism=parallelism, state=state
        )
        return WithLate(result.inputs, result.schema, result.event_time)

    def connect(
        self,
        rules: Stream,
        processor: BroadcastProcessor | type[BroadcastProcessor],
        *,
        schema: pa.Schema,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Process records by the rules of a second stream, which every subtask gets.

        For example `orders.connect(rules.broadcast(), Rules, ...)`.

        Args:
            rules: a stream after `broadcast()`.
            processor: a `BroadcastProcessor` subclass or an instance. For state per key call
                `key_by` before.
            schema: of the results.
            name: required.
        """
        return connected(
            self, (), rules, processor, schema=schema, name=name, parallelism=parallelism
        )

    def logged(self, *, name: str | None = None, read: Read = "committed") -> Stream:
        """Keep the records in a durable log on their way: the operators before it and behind it
        become *regions* of the job.

        Each region has workers, checkpoints and restarts of its own. A failure behind the log
        repeats nothing before it, and the other way round. Needs `checkpoints=`; the log lies in
        that directory. State the settings of a region with `Job(regions=[hr.Region(...)])`.

        Args:
            name: required; the log's identity.
            read: "committed": a record is read once the checkpoint behind it is complete, so it
                waits for up to an interval of the writing region's checkpoints. "at_once": it is
                read some milliseconds after it was written. A failure of the writing region then
                takes its readers back with it, and a reader's checkpoint completes after the
                writer's.
        """
        return logged(self, name=name, read=read)

    def iterate(
        self, body: Body[Stream], *, name: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """Let records go round: `stream.iterate(body, name="rounds")`.

        `body(loop)` is called once and builds a round. `loop` is this stream together with what
        comes round again; the body returns `(again, out)`: the records that begin another round,
        and the records that leave the loop. For example
        `lambda loop: (loop.filter(is_open), loop.filter(is_done))`.

        Records of a loop are served before new ones, and new ones wait while much of the loop is
        waiting. Event time does not go round: `loop` has the watermarks of this stream, so records
        that leave a loop may be late. A loop may hold loops, and several may follow each other.

        At the end of input a loop goes on until no record is in it, no call is under way and no
        processing-time timer is set. A job whose records go round for ever never ends by itself.

        Args:
            body: its `again` has the columns of this stream. Operators of event time, and those
                that emit at the end of input, stand before or behind a loop.
            name: required; finds the records on the back-edge again.
            parallelism: of the loop's head; for another parallelism of the operator in front of the
                back-edge, return `again.rebalance()`.

        Returns: `out`.
        """
        return iterated(self, body, name=name, parallelism=parallelism)

    @property
    def write(self) -> Write:
        """The sinks: `stream.write.parquet("out/", name="out")`."""
        return Write(self)


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
        return aggregated(
            self.stream,
            self.columns,
            aggregations,
            name=name,
            emit=emit,
            ttl=ttl,
            parallelism=parallelism,
            state=state,
        )

    def window(self, window: Window, *, lateness: Duration = 0) -> WindowedStream:
        """Cut the stream into windows of event time:
        `window(hr.tumbling("1m")).aggregate(n=hr.count(), name="per-minute")`.

        Args:
            window: `hr.tumbling("1m")`, `hr.sliding("1m", every="10s")` or `hr.session("30s")`.
            lateness: for how long after its end a window is kept, to be emitted anew when late
                records come for it.
        """
        column, lateness_ns = check_window(self.stream, window, lateness)
        return WindowedStream(self, window, column, lateness_ns)

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
            return co_connected(
                self.stream,
                self.columns,
                other.stream,
                other.columns,
                processor,
                schema=schema,
                name=name,
                parallelism=parallelism,
                state=state,
            )
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
        on_error: OnError = "fail",
        isolate: bool = False,
    ) -> Stream:
        """Run a processor with declared state per key, and timers if it implements `on_timer` or
        `on_processing_timer`.

        Args:
            processor: a `StatefulProcessor` subclass, or an instance.
            schema: of the emitted records.
            name: required.
            state: where the state lies, if not where the job's does.
            on_error: "fail" only: the writes of a failed call cannot be told from those before it.
        """
        refuse_on_error(on_error, kind="process")
        refuse_isolated("process", isolate, STATE_STAYS)
        return processed(
            self.stream,
            self.columns,
            processor,
            schema=schema,
            name=name,
            parallelism=parallelism,
            state=state,
        )

    def map_async(
        self,
        function: AsyncFunction | type,
        schema: pa.Schema | None = None,
        *,
        ordered: bool = False,
        capacity: int = 64,
        timeout: Duration = "60s",
        retries: int = 0,
        backoff: Duration = "100ms",
        rate: float | None = None,
        on_error: OnError = "fail",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Turn every row into another one by a call that waits, as `Stream.map_async` does.

        Records of calls under way stay with their key at any parallelism. So with `ordered`, the
        results of a key keep the order of its records also across a rescale.
        """
        return async_mapped(
            self.stream,
            function,
            schema,
            keys=self.columns,
            ordered=ordered,
            capacity=capacity,
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            rate=rate,
            on_error=on_error,
            name=name,
            parallelism=parallelism,
        )


class WithLate(Stream):
    """The results of a windowed aggregate or an as-of join, with the late records beside them."""

    __slots__ = ()

    @property
    def late(self) -> Stream:
        """The records that came when event time had passed them, or all their windows, unchanged.

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
    ) -> WithLate:
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
        result = window_aggregated(
            self.keyed.stream,
            self.keyed.columns,
            self.window,
            aggregations,
            event_time=self.event_time,
            lateness_ns=self.lateness_ns,
            name=name,
            parallelism=parallelism,
            state=state,
        )
        return WithLate(result.inputs, result.schema)
