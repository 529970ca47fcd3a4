"""Streams: a pipeline written as a value.

A `Stream` names the outputs that a consumer would read, and their schema; every method returns a
new stream and runs no job. Two consumers of a stream share its operator. A call checks the names,
columns and schemas that it states; `Job.plan` checks the whole job.

Batches are `pyarrow.RecordBatch`; the methods that take a function of a batch or an Arrow
expression are the fast ones. `map`, `flat_map` and `filter` with a function handle one row at a
time and are one to two orders of magnitude slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.by_range import ByRange
from headrace.channels.partitioners.custom import Custom, CustomFunction
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.channels.partitioners.shuffle import Shuffle

from ..contract.errors import UserError
from ..contract.options import State
from ..contract.units import Duration, duration_ns
from ..contract.user_code import Row
from ..operators.batch import BatchFunction, FilterOperator, MapBatchesOperator, SelectOperator
from ..operators.connect import BroadcastProcessor
from ..operators.join import How
from ..operators.row import FilterFunctionOperator, FlatMapOperator, MapOperator
from ..operators.watermark import WatermarkOperator
from ..operators.windows import Window
from ..plan.graph import Input, Keyed, Node, Partitioning, Role
from ..plan.validate import (
    check_columns,
    check_event_time,
    check_keys,
    check_name,
    check_parallelism,
    check_schema,
    check_union,
    require_name,
)
from .call_site import call_site
from .expressions import check_filter, projected_schema

if TYPE_CHECKING:
    from .joined import On
    from .keyed import KeyedStream
    from .write import Write

RowFunction = Callable[[Row], Row]
FlatRowFunction = Callable[[Row], Iterable[Row] | None]
RowPredicate = Callable[[Row], bool]

#: Why an operator that keeps state needs a name.
STATE = "by which its state is found again"


@dataclass(frozen=True, slots=True)
class Stream:
    """Records on their way, lazily.

    Every method that adds an operator takes `name=`, the operator's identity in errors, metrics and
    checkpoints (left out, where allowed: a generated name), and `parallelism=`, the number of
    subtasks (left out: the job's). All methods raise `UserError` when an argument does not fit.

    Attributes:
        inputs: the outputs that a consumer reads; several after `union`.
        schema: of every batch.
        event_time: the column of event times that `with_watermark` named, as long as later
            operators keep the column.
    """

    inputs: tuple[Input, ...]
    schema: pa.Schema
    event_time: str | None = None

    def map(
        self,
        function: RowFunction,
        schema: pa.Schema | None = None,
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Turn every row (a dict) into another one. Slow; see `map_batches`.

        Args:
            schema: of the results; None: this stream's.
        """
        out = self._declared("map", function, schema)
        operator = partial(MapOperator, function, out)
        return self.then(
            "map", operator, out, name=name, parallelism=parallelism, runs_user_code=True
        )

    def flat_map(
        self,
        function: FlatRowFunction,
        schema: pa.Schema | None = None,
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Turn every row (a dict) into any number of rows. Slow; see `map_batches`.

        Args:
            schema: of the results; None: this stream's.
        """
        out = self._declared("flat_map", function, schema)
        operator = partial(FlatMapOperator, function, out)
        return self.then(
            "flat_map", operator, out, name=name, parallelism=parallelism, runs_user_code=True
        )

    def filter(
        self,
        condition: pc.Expression | RowPredicate,
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Keep the rows for which `condition` is true.

        Args:
            condition: an Arrow expression such as `pc.field("amount") > 100` (fast), or a function
                of one row (slow).
        """
        if isinstance(condition, pc.Expression):
            check_filter(condition, self.schema)
            keep = partial(FilterOperator, condition)
            return self.then("filter", keep, self.schema, name=name, parallelism=parallelism)
        self._declared("filter", condition, None)
        operator = partial(FilterFunctionOperator, condition)
        return self.then(
            "filter", operator, self.schema, name=name, parallelism=parallelism, runs_user_code=True
        )

    def map_batches(
        self,
        function: BatchFunction | type,
        schema: pa.Schema | None = None,
        *,
        batch_size: int | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Turn batches into batches: the way to run models, NumPy and pandas.

        Args:
            function: takes a record batch; returns a record batch, a table, {column: values}, an
                iterator of these, or None. Or a class: each subtask makes an instance (load the
                model in `__init__`) and calls it.
            schema: of the results; None: this stream's.
            batch_size: rows handed over at most; None: as they come.
        """
        out = self._declared("map_batches", function, schema)
        if batch_size is not None:
            check_parallelism(batch_size, where="map_batches: batch_size", limit=2**31 - 1)
        operator = partial(MapBatchesOperator, function, out, batch_size)
        return self.then(
            "map_batches", operator, out, name=name, parallelism=parallelism, runs_user_code=True
        )

    def select(
        self,
        *columns: str,
        name: str | None = None,
        parallelism: int | None = None,
        **expressions: pc.Expression,
    ) -> Stream:
        """Keep `columns` and add computed columns.

        For example `select("id", total=pc.field("price") * pc.field("n"))`.

        Args:
            expressions: {new column: Arrow expression}. `pc.field("old")` renames.
        """
        check_columns(columns, self.schema, where="select")
        wanted = {column: pc.field(column) for column in columns} | expressions
        out = projected_schema(wanted, self.schema)
        operator = partial(SelectOperator, wanted, out)
        return self.then("select", operator, out, name=name, parallelism=parallelism)

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
        from .keyed import KeyedStream  # keyed.py is built on this module

        check_keys(columns, self.schema, where="key_by")
        return KeyedStream(self.partitioned(Keyed(columns)), columns)

    def group_by(self, *columns: str) -> KeyedStream:
        """Another name of `key_by`."""
        return self.key_by(*columns)

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
        from .joined import joined  # joined.py is built on this module

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
        from .connected import connected  # connected.py is built on this module

        return connected(
            self, (), rules, processor, schema=schema, name=name, parallelism=parallelism
        )

    def rebalance(self) -> Stream:
        """Deal the records out evenly to all subtasks of the next operator."""
        return self.partitioned(Rebalance())

    def shuffle(self) -> Stream:
        """Deal the records out at random to the subtasks of the next operator."""
        return self.partitioned(Shuffle())

    def broadcast(self) -> Stream:
        """Give every record to every subtask of the next operator."""
        return self.partitioned(Broadcast())

    def partition_by(self, function: CustomFunction, *columns: str) -> Stream:
        """Let `function(batch, consumers)` name for each row a subtask of the next operator.

        Args:
            function: returns one integer from 0 to `consumers` - 1 per row (a list, NumPy or Arrow
                array).
            columns: that the function sees; none stated: every column.
        """
        self._declared("partition_by", function, None)
        check_columns(columns, self.schema, where="partition_by")
        return self.partitioned(Custom(function, columns or None))

    def partition_by_range(self, column: str, boundaries: Iterable[object]) -> Stream:
        """Give each subtask of the next operator contiguous ranges of a column's values, in order.

        With boundaries 10 and 20 the ranges are below 10, from 10 to below 20, and from 20. Nulls
        and NaN belong to the last range. Subtasks share the ranges evenly at any parallelism; more
        subtasks than ranges leave some subtasks without records.

        Args:
            column: numbers, dates, timestamps or strings.
            boundaries: values of the column's type, each larger than the one before.
        """
        check_columns([column], self.schema, where="partition_by_range")
        try:
            return self.partitioned(ByRange.over(self.schema, column, boundaries))
        except (TypeError, ValueError) as error:
            raise UserError(f"partition_by_range: {error}") from None

    @property
    def write(self) -> Write:
        """The sinks: `stream.write.parquet("out/", name="out")`."""
        from .write import Write  # write.py is built on this module

        return Write(self)

    def partitioned(self, partitioning: Partitioning) -> Stream:
        """This stream under `partitioning`, which replaces an earlier partitioning."""
        inputs = tuple(edge.partitioned(partitioning) for edge in self.inputs)
        return Stream(inputs, self.schema, self.event_time)

    def _declared(self, kind: str, function: object, schema: pa.Schema | None) -> pa.Schema:
        """Check a function and the schema of its results; return that schema."""
        if not callable(function):
            raise UserError(f"{kind} takes a function, got {function!r}")
        if schema is None:
            return self.schema
        check_schema(schema, where=kind)
        return schema

    def then(
        self,
        kind: str,
        operator: Callable[..., Any],
        schema: pa.Schema,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        runs_user_code: bool = False,
        stateful: bool = False,
        idle_after_ns: int | None = None,
        late: pa.Schema | None = None,
    ) -> Stream:
        """Add an operator of one's own: what all the methods above come down to.

        Args:
            kind: the word for it, from which an unnamed operator gets its name.
            operator: makes an `Operator`; called in each subtask with the keyword `operator`, the
                operator's name.
            schema: of the results.
            runs_user_code: a call may take long; then a sink behind it becomes a task of its own.
            stateful: keeps state; then `name` is required.
            idle_after_ns: for an operator that makes watermarks: without records for so long it
                counts as idle.
            late: schema of the records that it may hand out as late (`take_late`).
        """
        if name is not None:
            check_name(name, kind=kind)
        if parallelism is not None:
            check_parallelism(parallelism, where=f"{kind}: parallelism")
        node = Node(
            kind=kind,
            role=Role.OPERATOR,
            name=name,
            inputs=self.inputs,
            schema=schema,
            operator=operator,
            parallelism=parallelism,
            stateful=stateful,
            runs_user_code=runs_user_code,
            idle_after_ns=idle_after_ns,
            late=late,
            built_at=call_site(),
        )
        return Stream((Input(node),), schema, _kept(self.event_time, schema))


def _kept(event_time: str | None, schema: pa.Schema) -> str | None:
    """The event-time column, if it is still a column of timestamps."""
    if event_time is None or schema.names.count(event_time) != 1:
        return None
    return event_time if pa.types.is_timestamp(schema.field(event_time).type) else None
