"""A chain: the operators of one subtask, run by plain calls from head to tail.

Only the head talks to a gate and only the tail to splitters. In between each batch goes on
unchanged and depth first, so that no batches pile up inside. A call returns all its output; the
runtime sends the output after committing the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import chain, pairwise
from types import FrameType
from typing import assert_never

import pyarrow as pa

from headrace.channels.partitioners.partitioner import Splitter

from ..contract.errors import StorageUnreachable, UserCodeError, UserError
from ..contract.execution import EventTimeRole, OperatorPlan, Output, TaskPlan
from ..contract.operators import (
    HEAP,
    ChildProcess,
    ErrorOutput,
    EventTimeOperator,
    HearsCheckpoints,
    KeepsDatabase,
    LateOutput,
    Operator,
    OperatorContext,
    Polled,
    ProcessingTimeOperator,
    ReadsSplits,
    Restored,
    RestoredDatabase,
    RestoredState,
    SinkWriter,
    Snapshot,
    SourceReader,
    SourceStatus,
    StateBackend,
    StateSnapshot,
    TakesEventTime,
    Transaction,
)
from ..contract.user_code import Blames, shown
from .async_calls import LoopCalls
from .isolated import IsolatedOperator
from .progress import Progress, WatermarkGenerator
from .work import (
    AdvanceWork,
    ChainTime,
    CompletedWork,
    FinishWork,
    Outputs,
    PollWork,
    PrecommitWork,
    ProcessWork,
    Work,
    WorkDone,
)

#: Kernels run at full speed from some thousands of rows; below that, a copy costs less than a call.
JOIN_ROWS = 4096
#: The answer of a source that was not asked.
_NOT_POLLED = Polled((), SourceStatus.MORE)


class Chain:
    """The operators of subtask `index` of a task.

    `open`, `restore`, `run` (with the calls behind it) and `close` belong to the subtask's thread,
    `commit` and `snapshot` to the owner thread, as `contract/operators.py` lays down for each
    operator. Exceptions of user code pass through as UserCodeError.
    """

    def __init__(
        self,
        plan: TaskPlan,
        *,
        job: str,
        index: int,
        max_parallelism: int,
        epoch: int,
        splitters: Sequence[Splitter],
        buffer_bytes: int,
        backend: StateBackend = HEAP,
        owner: str = "",
        processes: Callable[[], ChildProcess] | None = None,
        tell_call: Callable[[int | None], None] = lambda operator: None,
    ) -> None:
        assert len(splitters) == len(plan.outputs), "one splitter per output edge"
        assert buffer_bytes > 0, f"buffers of {buffer_bytes} bytes"
        self._plan = plan
        self._contexts = [
            OperatorContext(
                job,
                operator.name,
                index,
                plan.parallelism,
                max_parallelism,
                epoch,
                backend,
                owner,
                processes,
            )
            for operator in plan.operators
        ]
        self._tell_call = tell_call
        #: Places of the operators behind the source, which are told of their calls.
        self._told: list[int] = []
        #: Places of operators whose function runs in a process of its own.
        self.isolated: frozenset[int] = frozenset()
        self._splitters = splitters
        sides = dict.fromkeys(plan.late_outputs, Output.LATE)
        sides |= dict.fromkeys(plan.error_outputs, Output.ERRORS)
        #: By output edge: which of the tail's outputs it takes.
        self._takes = [sides.get(edge, Output.MAIN) for edge in plan.outputs]
        self._buffer_bytes = buffer_bytes
        self._sizes = _Sizes()
        #: By operator name.
        self._blames = {o.name: Blames(o.name, o.built_at) for o in plan.operators}
        self._source: SourceReader | None = None
        #: The same, if it tells its splits apart.
        self._splits: ReadsSplits | None = None
        #: The same, if it hears of complete checkpoints.
        self._hears: HearsCheckpoints | None = None
        self._operators: list[Operator] = []
        #: Of each operator.
        self._operator_blames: list[Blames] = []
        self._names: list[str] = []
        self._sink: SinkWriter | None = None
        self._progress = Progress(())
        #: {operator: the batch it was given last}, of the call under way or failed.
        self._fed: dict[str, pa.RecordBatch] = {}
        #: Operators with late records; asked once, since the question is slow.
        self._late: list[LateOutput] = []
        self._rows_late = 0
        #: Results of the tail since the last call, or what its sink wrote.
        self._rows_out = 0
        #: Operators that may outlive failed records, likewise.
        self._failing: list[tuple[OperatorPlan, ErrorOutput]] = []
        self._rows_failed = 0
        self._dropped = ""
        #: (position, operator) of those that go by the clock.
        self._clocked: list[tuple[int, ProcessingTimeOperator]] = []
        #: (operator name, instance) of all that is open, head first.
        self._members: list[tuple[str, SourceReader | Operator | SinkWriter]] = []
        #: Those that may keep a database; asked once, as `_late`.
        self._keepers: list[tuple[str, KeepsDatabase]] = []

    def open(self) -> None:
        """Make and open the instances, head first.

        After a failure `close` releases the opened instances.
        """
        for place, (plan, context) in enumerate(
            zip(self._plan.operators, self._contexts, strict=True)
        ):
            self._tell_call(place)
            with self._blames[plan.name]:
                member = self._make(plan)
                if plan.source is None:
                    self._told.append(place)
                if isinstance(member, IsolatedOperator):
                    self.isolated |= {place}
                # Listed before it is opened: an operator that fails half-way still holds resources
                # to close.
                self._members.append((plan.name, member))
                with _named(plan):
                    member.open(context)
        self._tell_call(None)
        self._keepers = [(name, m) for name, m in self._members if isinstance(m, KeepsDatabase)]
        self._progress = Progress(self._operators)
        self._tell_splits()

    def restore(self, states: Mapping[str, Sequence[Restored]]) -> None:
        """Restore every operator's state, by operator name; state may be missing.

        An operator gets databases if it takes databases, and tables otherwise.
        """
        for name, member in self._members:
            given = states.get(name, ())
            tables = [state for state in given if isinstance(state, RestoredState)]
            databases = [state for state in given if isinstance(state, RestoredDatabase)]
            if databases and not _takes(member, databases):
                tables += [table for database in databases for table in database.tables()]
            with self._blames[name]:
                member.restore(tables)
        self._tell_splits()

    def run(self, number: int, work: Work) -> WorkDone:
        """Do piece `number` of the work; `commit` makes the writes visible.

        The caller sets `elapsed_ns`.
        """
        self._fed.clear()
        try:
            done = self._run(number, work)
            self._fed.clear()
            return done
        finally:
            self._tell_call(None)

    def _run(self, number: int, work: Work) -> WorkDone:
        outputs: Outputs = ()
        polled = _NOT_POLLED
        match work:
            case ProcessWork(port, parts, _, now_ns):
                outputs = self.process(parts, port, now_ns)
            case PollWork(rows_max, now_ns):
                outputs, polled = self.poll(rows_max, now_ns)
            case AdvanceWork(watermark_ns, rows_max, now_ns):
                outputs = self.advance(watermark_ns, rows_max, now_ns)
            case FinishWork():
                outputs = self.finish()
            case PrecommitWork(checkpoint):
                return WorkDone(number, transactions=tuple(self.precommit(checkpoint)))
            case CompletedWork(checkpoint, states):
                self.completed(checkpoint, states)
                return WorkDone(number)
            case _:
                assert_never(work)
        rows_failed, dropped = self.take_failed()
        return WorkDone(
            number,
            outputs,
            self.take_rows_out(),
            status=polled.status,
            wait_ns=polled.wait_ns,
            time=self.time(),
            rows_late=self.take_rows_late(),
            rows_polled=sum(batch.num_rows for batch in polled.batches),
            rows_failed=rows_failed,
            dropped=dropped,
        )

    def process(self, batches: Sequence[pa.RecordBatch], port: int, now_ns: int = 0) -> Outputs:
        """Feed batches into input `port` in order, small neighbours joined.

        `now_ns`: see `ProcessingTimeOperator`.
        """
        self._tell_time(now_ns)
        rule = self._plan.batch
        joined = _joined(batches, JOIN_ROWS if rule is None else rule.rows)
        fed = (out for batch in joined for out in self._feed(0, batch, port))
        return self._split(chain(fed, self._generated()))

    def poll(self, rows_max: int, now_ns: int) -> tuple[Outputs, Polled]:
        """Ask the source for records and process the records; `now_ns` is monotonic.

        Returns also the source's answer.
        """
        assert self._source is not None, f"{self._plan.name} has no source"
        self._tell_time(now_ns)
        self._tell_call(0)
        with self._blames[self._plan.operators[0].name]:
            polled: Polled = self._source.poll(rows_max)
        splits = None if self._splits is None else self._splits.open_splits()
        self._progress.polled(polled, splits, now_ns)
        emitted = (out for batch in polled.batches for out in self._feed(0, batch, 0))
        outputs = self._split(chain(emitted, self._generated()))
        return outputs, polled

    def advance(self, watermark_ns: int, rows_max: int, now_ns: int = 0) -> Outputs:
        """Ask the operators concerned by event time `watermark_ns` and clock `now_ns`.

        `time` tells whether the call has to be repeated.
        """
        self._tell_time(now_ns)
        self._progress.come(watermark_ns)
        fired = self._progress.advance(rows_max, self._feed_on)
        by_clock = self._fired(now_ns, rows_max)
        return self._split(chain(fired, by_clock, self._generated()))

    def time(self) -> ChainTime:
        """Say where time stands after a call."""
        reached = self._progress.time()
        if not self._clocked:
            return reached
        due = [operator.next_timer_ns() for _, operator in self._clocked]
        first_ns = min((time for time in due if time is not None), default=None)
        return reached._replace(due_ns=first_ns)

    def finish(self) -> Outputs:
        """Let each operator emit its last records in turn, head first: all input has ended."""
        return self._split(
            out
            for position, operator in enumerate(self._operators)
            for batch in self._finishing(position, operator)
            for out in self._feed(position + 1, batch, 0)
        )

    def precommit(self, checkpoint: int) -> list[tuple[str, Transaction]]:
        """Flush the sink. Returns (operator name, transaction); an empty list without a sink."""
        if self._sink is None:
            return []
        name = self._plan.operators[-1].name
        self._tell_call(self._told[-1])
        with self._blames[name]:
            if isinstance(self._sink, TakesEventTime):
                self._sink.tell_event_time(self._progress.reached_ns)
            transactions = self._sink.precommit(checkpoint)
            run = self._contexts[-1].owner
            return [(name, replace(transaction, run=run)) for transaction in transactions]

    @property
    def hears(self) -> str | None:
        """Name of the source, if it wants to hear of complete checkpoints."""
        return self._plan.operators[0].name if self._hears else None

    def completed(self, checkpoint: int, states: Sequence[StateSnapshot]) -> None:
        """Tell the source of a complete checkpoint, see `HearsCheckpoints`."""
        assert self._hears is not None, f"{self._plan.name} hears nothing"
        self._tell_call(0)
        with self._blames[self._plan.operators[0].name]:
            self._hears.completed(checkpoint, states)

    def failed_batch(self, operator: str) -> pa.RecordBatch | None:
        """Return the batch that `operator` worked on when the last call failed; None: on none."""
        return self._fed.get(operator)

    def operator_at(self, frame: FrameType) -> str:
        """Name the operator whose call `frame` is in; empty: none."""
        place: FrameType | None = frame
        while place is not None:
            caller = place.f_locals.get("self")
            if isinstance(caller, LoopCalls):
                return caller.operator
            for name, member in self._members:
                if member is caller:
                    return name
            place = place.f_back
        return ""

    def take_rows_late(self) -> int:
        """Return the number of late records since the last call."""
        taken, self._rows_late = self._rows_late, 0
        return taken

    def take_rows_out(self) -> int:
        """Return the number of results since the last call; of a sink: of rows written."""
        taken, self._rows_out = self._rows_out, 0
        return taken

    def take_failed(self) -> tuple[int, str]:
        """Return the number of failed records since the last call, and the last failure for which a
        record was dropped.
        """
        taken = self._rows_failed, self._dropped
        self._rows_failed, self._dropped = 0, ""
        return taken

    def commit(self) -> None:
        """Make the last call's writes visible to snapshots."""
        for name, member in self._members:
            with self._blames[name]:
                member.commit()

    def snapshot(self) -> list[tuple[str, Snapshot]]:
        """Freeze the operators' committed state, then their databases, by operator name."""
        states: list[tuple[str, Snapshot]] = []
        for name, member in self._members:
            with self._blames[name]:
                states += [(name, state) for state in member.snapshot()]
        databases = [(name, keeper.freeze_database()) for name, keeper in self._keepers]
        return states + [(name, frozen) for name, frozen in databases if frozen is not None]

    def close(self) -> None:
        """Release everything, tail first, also after failures.

        Raises: UserCodeError, the first one, after everything was closed.
        """
        failed: UserCodeError | None = None
        while self._members:
            name, member = self._members.pop()
            try:
                with self._blames[name]:
                    member.close()
            except UserCodeError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _make(self, plan: OperatorPlan) -> SourceReader | Operator | SinkWriter:
        if plan.source is not None:
            assert not self._members, f"{plan.name}: a source is the head of its chain"
            self._source = plan.source()
            if isinstance(self._source, ReadsSplits):
                self._splits = self._source
            if isinstance(self._source, HearsCheckpoints):
                self._hears = self._source
            return self._source
        if plan.sink is not None:
            assert plan is self._plan.operators[-1], f"{plan.name}: a sink is the tail of its chain"
            self._sink = plan.sink()
            return self._sink
        assert plan.operator is not None, f"{plan.name}: a plan has one factory"
        operator = plan.operator()
        if plan.time is EventTimeRole.PASSES:
            # The runtime would not tell it.
            assert not isinstance(operator, EventTimeOperator), f"{plan.name} acts on event time"
            assert not isinstance(operator, WatermarkGenerator), f"{plan.name} makes event time"
        if isinstance(operator, ProcessingTimeOperator):
            self._clocked.append((len(self._operators), operator))
        self._operators.append(operator)
        self._operator_blames.append(self._blames[plan.name])
        self._names.append(plan.name)
        if isinstance(operator, LateOutput):
            self._late.append(operator)
        if isinstance(operator, ErrorOutput):
            self._failing.append((plan, operator))
        return operator

    def _tell_splits(self) -> None:
        if self._splits is not None:
            self._progress.opened(self._splits.open_splits())

    def _feed(self, position: int, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Give a batch to the operator at `position` and yield the tail's output."""
        if batch.num_rows == 0:
            return
        if position < len(self._operators):
            self._tell_call(self._told[position])
            self._fed[self._names[position]] = batch
            with self._operator_blames[position]:
                for out in self._operators[position].process(batch, port):
                    yield from self._feed(position + 1, out, 0)
                    self._tell_call(self._told[position])
        elif self._sink is not None:
            self._tell_call(self._told[position])
            name = self._plan.operators[-1].name
            self._fed[name] = batch
            with self._blames[name]:
                self._sink.write(batch)
            self._rows_out += batch.num_rows
        else:
            yield batch

    def _tell_time(self, now_ns: int) -> None:
        for _, operator in self._clocked:
            operator.tell_time(now_ns)

    def _fired(self, now_ns: int, rows_max: int) -> Iterator[pa.RecordBatch]:
        """Fire timers of the clock, unless an operator still has event time to act on."""
        if self._progress.is_pending:
            return
        for position, operator in self._clocked:
            self._tell_call(self._told[position])
            for batch in operator.fire(now_ns, rows_max):
                yield from self._feed(position + 1, batch, 0)

    def _finishing(self, position: int, operator: Operator) -> Iterable[pa.RecordBatch]:
        self._tell_call(self._told[position])
        return operator.finish()

    def _feed_on(self, position: int, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return self._feed(position, batch, 0)

    def _generated(self) -> Iterator[pa.RecordBatch]:
        """Advance the operators behind generators: new records may have raised the watermark."""
        if self._progress.generates and not self._progress.is_pending:
            yield from self._progress.advance(JOIN_ROWS, self._feed_on)

    def _late_records(self) -> Iterator[pa.RecordBatch]:
        """Count the late records of all operators; hand out the tail's, for an edge."""
        for operator in self._late:
            for batch in operator.take_late():
                self._rows_late += batch.num_rows
                if operator is self._operators[-1]:
                    yield batch

    def _dead_letters(self) -> Iterator[pa.RecordBatch]:
        """Count the failed records of all operators; hand out the tail's, for an edge."""
        for plan, operator in self._failing:
            routes = plan is self._plan.operators[-1] and Output.ERRORS in self._takes
            for batch in operator.take_errors():
                self._rows_failed += batch.num_rows
                if routes:
                    yield batch
                else:
                    last = batch.slice(batch.num_rows - 1).to_pylist()[0]
                    story = UserCodeError(plan.name, _told(last), "", plan.built_at).story
                    self._dropped = story

    def _split(self, emitted: Iterable[pa.RecordBatch]) -> Outputs:
        """Split whole batches, then cut: one copy per batch where keys need a copy, no other."""
        outputs: list[list[tuple[int, pa.RecordBatch, int]]] = [[] for _ in self._splitters]
        try:
            for side, batch in self._by_side(emitted):
                self._rows_out += batch.num_rows if side is Output.MAIN else 0
                for output, splitter, takes in zip(
                    outputs, self._splitters, self._takes, strict=True
                ):
                    if takes is side:
                        for target, rows in splitter.split(batch):
                            output.extend(self._sized(target, rows))
        except UserCodeError as error:
            # Of timers, which pass no `_feed`.
            with self._blames.get(error.operator, nullcontext()):
                raise
        return tuple(tuple(output) for output in outputs)

    def _sized(
        self, target: int, batch: pa.RecordBatch
    ) -> Iterable[tuple[int, pa.RecordBatch, int]]:
        """Cut into pieces of about equal rows, so that rows of equal size would fit in a buffer.

        A piece has at least a row.
        """
        size_bytes = self._sizes.of(batch)
        pieces = min(batch.num_rows, -(-size_bytes // self._buffer_bytes))
        if pieces <= 1:
            return ((target, batch, size_bytes),)
        bounds = [batch.num_rows * i // pieces for i in range(pieces + 1)]
        cut = [batch.slice(start, end - start) for start, end in pairwise(bounds)]
        return [(target, piece, self._sizes.of(piece)) for piece in cut]

    def _by_side(
        self, emitted: Iterable[pa.RecordBatch]
    ) -> Iterator[tuple[Output, pa.RecordBatch]]:
        """Results first: only then is it known which records were late, or failed."""
        yield from ((Output.MAIN, batch) for batch in emitted)
        yield from ((Output.LATE, batch) for batch in self._late_records())
        yield from ((Output.ERRORS, batch) for batch in self._dead_letters())


@contextmanager
def _named(plan: OperatorPlan) -> Iterator[None]:
    """Begin the sentence of a connector's own error with the connector's name.

    Any other error gets the operator's name as in every call (`Blames`).
    """
    try:
        yield
    except (UserError, StorageUnreachable) as error:
        if plan.operator is not None:
            raise
        kind = "source" if plan.source is not None else "sink"
        place = f" ({plan.built_at})" if plan.built_at else ""
        told = UserError if isinstance(error, UserError) else StorageUnreachable
        raise told(f"{kind} {plan.name!r}{place}: {error}") from error


def _told(letter: Mapping[str, object]) -> str:
    error, message = letter["error"], letter["message"]
    return f"{error}: {message} for record {shown(letter['record'])}"


def _takes(member: object, databases: Sequence[RestoredDatabase]) -> bool:
    return isinstance(member, KeepsDatabase) and member.restore_databases(databases)


def _joined(batches: Sequence[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Join neighbouring batches until `rows` are worth a call; a large batch is not copied."""
    run: list[pa.RecordBatch] = []
    for batch in batches:
        if run and batch.num_rows >= rows:
            yield _join(run)
            run = []
        run.append(batch)
        if sum(part.num_rows for part in run) >= rows:
            yield _join(run)
            run = []
    if run:
        yield _join(run)


def _join(run: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return run[0] if len(run) == 1 else pa.concat_batches(run)


class _Sizes:
    """Sizes of batches.

    Of columns of fixed width the size is known: Arrow's `nbytes` takes as long as a small batch's
    split, and gives the GIL away.
    """

    def __init__(self) -> None:
        #: The latest batch's schema, and the bits of a record without validity; None: they differ.
        self._known: tuple[pa.Schema, int | None] = (pa.schema([]), 0)

    def of(self, batch: pa.RecordBatch) -> int:
        """Size of the records, at least one byte."""
        if batch.schema != self._known[0]:
            self._known = batch.schema, _width_bits(batch.schema)
        width_bits = self._known[1]
        rows: int = batch.num_rows
        size_bytes: int = batch.nbytes if width_bits is None else width_bits * rows // 8
        return max(1, size_bytes)


def _width_bits(schema: pa.Schema) -> int | None:
    if any(pa.types.is_dictionary(field.type) for field in schema):
        return None
    try:
        widths: list[int] = [field.type.bit_width for field in schema]
    except ValueError:
        return None
    return sum(widths)
