"""Small jobs for exhaustive exploration: few records, two sources, two workers, an operator, a
sink.

The machines are the product's own; their surroundings are reduced to the parts that machines can
see. A batch is a tuple of records (`Rows`) with the three attributes that machines ask for. A file
is a name: the handle's offset is the number of the content in `Contents`, so that a handle alone
tells the result of reading. The keyed operator and the others are a few lines; their state does not
depend on the order in which records of different sources meet, so that runs that differ only in
this order become equal states.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, assert_never

import pyarrow as pa

from headrace.channels.events import CheckpointMode
from headrace.channels.partitioners.hash import Hash

from ...contract.execution import EdgePlan, ExecutionPlan, OperatorPlan, SubtaskId, TaskPlan
from ...contract.operators import SourceStatus, Transaction
from ...operators.work import (
    AdvanceWork,
    CompletedWork,
    FinishWork,
    Outputs,
    PollWork,
    PrecommitWork,
    ProcessWork,
    Work,
    WorkDone,
)
from ...worker.subtask_spec import Limits
from ..watch import Violation

SOURCE, KEYED, SINK = range(3)
SOURCES = 2
#: Record `sequence` of source subtask `s` is `s * SPAN + sequence`.
SPAN = 10
ROW_BYTES = 10
#: More than any run sends.
UNLIMITED_BYTES = 1 << 30
#: From trigger to trigger, and from trigger to a checkpoint's possible events; each process's own
#: timers alone move its time.
INTERVAL_NS = 1000
MOMENT_NS = 1
NEVER_NS = 1 << 50


class Rows(NamedTuple):
    """A batch, with the attributes that machines look at."""

    ids: tuple[Hashable, ...]

    @property
    def num_rows(self) -> int:
        """How many records."""
        return len(self.ids)

    def slice(self, offset: int, length: int | None = None) -> Rows:
        """Return some of the records."""
        return Rows(self.ids[offset : None if length is None else offset + length])


@dataclass(frozen=True, slots=True)
class Scope:
    """Size of an exploration.

    Attributes:
        turns: aligned checkpoints may become unaligned at any moment (alignment timeout).
        rows: records of each source subtask.
        keyed: subtasks of the keyed operator.
        periodic: checkpoints besides the last one of the job.
        window_rows: credit of a channel; None: more than all records.
        expiries: number of checkpoints that may be given up, at any moment.
        crashes: number of processes that may die, at any moment.
        victims: processes that may die: 0 and 1 are workers, 2 is the coordinator.
    """

    mode: CheckpointMode
    turns: bool = False
    rows: tuple[int, int] = (1, 1)
    keyed: int = 1
    periodic: int = 1
    window_rows: int | None = None
    expiries: int = 0
    crashes: int = 0
    victims: tuple[int, ...] = (0, 1, 2)

    def limits(self) -> Limits:
        """Pieces of work and buffers of one record."""
        window = UNLIMITED_BYTES if self.window_rows is None else self.window_rows * ROW_BYTES
        return Limits(
            buffer_bytes=ROW_BYTES,
            window_bytes=window,
            queue_bytes_max=ROW_BYTES if self.window_rows else UNLIMITED_BYTES,
            work_rows_max=1,
            work_target_ns=1,
            alignment_timeout_ns=MOMENT_NS if self.turns else None,
        )

    def plan(self) -> ExecutionPlan:
        """Sources, keyed operator, sink."""
        operators = (
            OperatorPlan("source", source=_never, stateful=True),
            OperatorPlan("keyed", operator=_never, stateful=True),
            OperatorPlan("sink", sink=_never, committer=_never, stateful=True),
        )
        parallelisms = (SOURCES, self.keyed, 1)
        tasks = tuple(
            TaskPlan(
                index,
                operator.name,
                (operator,),
                parallelism,
                inputs=(index - 1,) if index else (),
                outputs=(index,) if index < SINK else (),
            )
            for index, (operator, parallelism) in enumerate(
                zip(operators, parallelisms, strict=True)
            )
        )
        hashed = Hash(("key",), SOURCES)
        edges = tuple(
            EdgePlan(edge, f"{edge}->{edge + 1}/0", edge, edge + 1, 0, hashed, pa.schema([]))
            for edge in range(2)
        )
        return ExecutionPlan("job", tasks, edges, SOURCES)

    def expected(self) -> list[Hashable]:
        """Return the sink's final output, sorted: every record, and each keyed subtask's total of
        all its records.
        """
        ids = [s * SPAN + i for s, rows in enumerate(self.rows) for i in range(rows)]
        totals = [
            (subtask, tuple(sorted(id for id in ids if self.target(id) == subtask)))
            for subtask in range(self.keyed)
        ]
        return sorted([*ids, *totals], key=repr)

    def target(self, id: int) -> int:
        """Which keyed subtask a record goes to."""
        return (id // SPAN + id) % self.keyed


def _never() -> NoReturn:
    raise AssertionError("operators of a small scope are made by the explorer")


class Contents:
    """The contents of stored files, by number; equal contents have equal numbers."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, value: Hashable) -> int:
        """Return the number of a value."""
        if value not in self._numbers:
            self._numbers[value] = len(self._values)
            self._values.append(value)
        return self._numbers[value]

    def value(self, number: int) -> Any:
        """Return the value of a number."""
        return self._values[number]


@dataclass(slots=True)
class SmallTask:
    """A subtask's operator: committed state, and the writes of the running work.

    The state of a source is the number of records read, of the keyed operator the set of its
    records, of the sink the number of transactions begun.
    """

    scope: Scope
    id: SubtaskId
    epoch: int
    state: Any = None
    written: Any = None
    #: Of a sink: records of the open transaction.
    open: tuple[Hashable, ...] = ()
    #: (id, records) of the transaction that the last pre-commit made ready.
    prepared: tuple[str, tuple[Hashable, ...]] | None = field(default=None)

    def __post_init__(self) -> None:
        if self.state is None:
            self.state = () if self.id.task == KEYED else 0
        self.written = self.state

    def run(self, number: int, work: Work) -> WorkDone:
        """Do a piece of work; `commit` follows."""
        match work:
            case PollWork():
                return self._poll(number)
            case ProcessWork(_, parts):
                ids = tuple(id for part in parts for id in part.ids)
                return WorkDone(number, self._process(ids), len(ids))
            case FinishWork():
                total = (self.id.subtask, self.state)
                return WorkDone(number, self._to_sink((total,)) if self.id.task == KEYED else ())
            case PrecommitWork():
                return self._precommit(number)
            case AdvanceWork() | CompletedWork():
                raise AssertionError("nobody has event time, or hears of checkpoints")
            case _:
                assert_never(work)

    def commit(self) -> None:
        """Publish the writes of the work."""
        self.state = self.written

    def _poll(self, number: int) -> WorkDone:
        last = self.state + 1 >= self.scope.rows[self.id.subtask]
        status = SourceStatus.END if last else SourceStatus.MORE
        if self.state >= self.scope.rows[self.id.subtask]:
            return WorkDone(number, ((),), status=SourceStatus.END)
        id = self.id.subtask * SPAN + self.state
        self.written = self.state + 1
        return WorkDone(number, (((self.scope.target(id), Rows((id,)), ROW_BYTES),),), 1, 0, status)

    def _process(self, ids: tuple[Any, ...]) -> Outputs:
        if self.id.task == SINK:
            self.open += ids
            return ()
        for id in ids:
            newer = [seen for seen in self.written if seen // SPAN == id // SPAN and seen >= id]
            if newer:
                raise Violation(f"{self.id}: record {id} comes after {newer}")
            self.written = tuple(sorted((*self.written, id)))
        return self._to_sink(ids)

    def _to_sink(self, ids: tuple[Hashable, ...]) -> Outputs:
        return (tuple((0, Rows((id,)), ROW_BYTES) for id in ids),)

    def _precommit(self, number: int) -> WorkDone:
        if not self.open:
            return WorkDone(number)
        name = f"sink-{self.id.subtask}-{self.epoch}-{self.state + 1}"
        self.prepared, self.open, self.written = (name, self.open), (), self.state + 1
        return WorkDone(number, transactions=(("sink", Transaction(name, {})),))
