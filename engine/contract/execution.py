"""The execution plan of workers and coordinator, made from the logical graph by chaining.

Plain data, built once in the driver and shipped to the workers with the program (by Spark's own
channel, never over ours). Indexes are positions in `ExecutionPlan.tasks` and `.edges` and are equal
for equal programs; checkpoints name operators and edges by `name`/`key`, so a changed program still
finds its state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import pyarrow as pa

from headrace.channels.partitioners.partitioner import Partitioner

from .connectors import PreparedSource, SourceRun
from .operators import Operator, SinkCommitter, SinkWriter, SourceReader


class SubtaskId(NamedTuple):
    """Parallel instance number `subtask` (from 0) of the task with index `task` in the plan."""

    task: int
    subtask: int

    def __str__(self) -> str:
        return f"t{self.task}.{self.subtask}"


class EventTimeRole(Enum):
    """Role of watermarks for an operator."""

    #: Nothing: they go past it.
    PASSES = "passes"
    #: It waits for watermarks (`EventTimeOperator`), or this cannot be told yet.
    ACTS = "acts"
    #: It makes them (`operators.progress.WatermarkGenerator`).
    MAKES = "makes"


class Output(Enum):
    """Which of an operator's outputs a consumer takes from."""

    MAIN = "main"
    #: Late records, as they came in (Flink: a side output).
    LATE = "late"
    #: Dead letters: records whose call failed.
    ERRORS = "errors"


@dataclass(frozen=True, slots=True)
class BatchRule:
    """The calls of an operator that asks for full batches.

    Attributes:
        rows: of a full batch, at least 1; no call has more.
        linger_ns: how long the first row of a batch waits for the others; 0: not at all.
    """

    rows: int
    linger_ns: int = 0


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """One operator of a chain.

    Exactly one of the factories is set; each call makes a fresh instance for a subtask.

    Attributes:
        name: the user's `name=`, or a generated one; unique in the job.
        stateful: keeps state that a checkpoint must hold.
        prepare: of a source that the driver prepares for each run.
        time: the role of watermarks.
        idle_after_ns: of an operator that makes watermarks: without records for so long it counts
            as idle; None: never.
        batch: of an operator that asks for full batches, the head of its chain.
        built_at: "job.py:17", the line of the user's program that built it.
    """

    name: str
    operator: Callable[[], Operator] | None = None
    source: Callable[[], SourceReader] | None = None
    sink: Callable[[], SinkWriter] | None = None
    committer: Callable[[], SinkCommitter] | None = None
    prepare: Callable[[SourceRun], PreparedSource] | None = None
    stateful: bool = False
    time: EventTimeRole = EventTimeRole.PASSES
    idle_after_ns: int | None = None
    batch: BatchRule | None = None
    built_at: str = ""


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """Operators fused into one task; `parallelism` subtasks run it.

    Attributes:
        operators: head first; a source can only be the head, a sink only the tail.
        inputs: edge indexes by input port.
        outputs: edge indexes that the tail feeds.
        late_outputs: the outputs that take the tail's late records instead of its results.
        error_outputs: the outputs that take the tail's dead letters.
    """

    index: int
    name: str
    operators: tuple[OperatorPlan, ...]
    parallelism: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    late_outputs: tuple[int, ...] = ()
    error_outputs: tuple[int, ...] = ()

    @property
    def is_source(self) -> bool:
        return self.operators[0].source is not None

    @property
    def time(self) -> EventTimeRole:
        """Role of watermarks for the chain: made in it, else acted on, else passed on."""
        roles = {operator.time for operator in self.operators}
        order = (EventTimeRole.MAKES, EventTimeRole.ACTS, EventTimeRole.PASSES)
        return next(role for role in order if role in roles or role is EventTimeRole.PASSES)

    @property
    def idle_after_ns(self) -> int | None:
        """Of the watermark maker nearest to the tail."""
        makers = [o for o in self.operators if o.time is EventTimeRole.MAKES]
        return makers[-1].idle_after_ns if makers else None

    @property
    def batch(self) -> BatchRule | None:
        """The batches that the chain asks for."""
        return self.operators[0].batch

    @property
    def is_sink(self) -> bool:
        """Has outside effects: a cut must wait for the running work."""
        return self.operators[-1].sink is not None


@dataclass(frozen=True, slots=True)
class EdgePlan:
    """A connection between two tasks: producer.parallelism x consumer.parallelism channels (fewer
    on forward edges).

    Attributes:
        key: stable identity "producer->consumer/port", by operator names; of a back-edge
            "loop (again)->loop/0", so that the loop's name alone finds what is in flight.
        port: input port of the consumer.
        partitioner: a pure value; `partitioner.open(...)` makes one splitter a producer subtask.
        output: which of the producer's outputs it carries.
        feedback: the back-edge of a loop. Without such edges the plan has no cycle.
    """

    index: int
    key: str
    producer: int
    consumer: int
    port: int
    partitioner: Partitioner
    schema: pa.Schema
    output: Output = Output.MAIN
    feedback: bool = False


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """A job, ready to run.

    Attributes:
        regions: {region: its tasks}, of a job that logged edges part; such a plan shows the job as
            a whole, and each region runs by a plan of its own.
    """

    job: str
    tasks: tuple[TaskPlan, ...]
    edges: tuple[EdgePlan, ...]
    max_parallelism: int
    regions: Mapping[str, range] = field(default_factory=dict)

    @property
    def slots(self) -> int:
        """Slot i holds subtask i of every task; regions share no slots."""
        parts = list(self.regions.values()) or [range(len(self.tasks))]
        return sum(max(self.tasks[task].parallelism for task in part) for part in parts)

    @property
    def hops(self) -> int:
        """Edges on the longest way from a source to a sink, without back-edges."""
        hops = [0] * len(self.tasks)
        for task in self.tasks:  # producers come before their consumers, but for back-edges
            inputs = [
                edge for edge in map(self.edges.__getitem__, task.inputs) if not edge.feedback
            ]
            hops[task.index] = max((1 + hops[edge.producer] for edge in inputs), default=0)
        return max(hops)
