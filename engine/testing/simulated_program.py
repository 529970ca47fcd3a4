"""A user's job as the simulation runs it: its own plan, with connectors of the simulation.

Operators, partitioners and user functions are the job's. Each sink writes into a system in memory
that shows what is committed; a source reads the records that the test gives, or is the job's own.
Every worker loads the plan anew, so workers share no class and no module of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa

from ..connectors.memory import BatchesReader
from ..contract.errors import UserError
from ..contract.execution import ExecutionPlan, OperatorPlan
from ..contract.operators import Operator, SinkCommitter, SourceReader
from ..contract.suggestion import did_you_mean
from ..operators.isolated import IsolatedOperator
from ..plan.graph import LogicalGraph, Role
from ..plan.regions import has_regions
from ..session.job import Job
from ..simulation.sink import SinkSystem, SystemWriter
from .fresh import Program

#: Records of a source: dictionaries, or columns.
Records: TypeAlias = Sequence[Mapping[str, Any]] | pa.RecordBatch | pa.Table
#: Subtasks of operators that state none, where the job states none either.
_PARALLELISM = 2


class SimulatedProgram:
    """A job, ready to be loaded by simulated processes.

    Attributes:
        parallelism: of operators that state none, at first.
        columns: {sink: names of its columns}.

    Raises: UserError when a part of the job cannot run in virtual time.
    """

    def __init__(
        self,
        job: Job,
        *,
        sources: Mapping[str, Records] | None = None,
        parallelism: int | None = None,
    ) -> None:
        if not isinstance(job, Job):
            raise UserError(f"a Job is due, or a function that makes one; got {job!r}")
        nodes = [sink.node for sink in job.sinks]
        if has_regions(nodes):
            raise UserError(
                f"job {job.name!r} has logged edges, which do not run in virtual time; test each"
                " region as a job of its own"
            )
        self.job = job
        self.parallelism = parallelism or job.options.parallelism or _PARALLELISM
        self.columns = {sink.name: sink.node.schema.names for sink in job.sinks}
        graph = LogicalGraph.of(nodes)
        schemas = {
            graph.names[node]: node.schema for node in graph.nodes if node.role is Role.SOURCE
        }
        self._given = {
            name: _batches(name, records, schemas) for name, records in (sources or {}).items()
        }
        #: {parallelism: the plan}; a rescale makes another one.
        self._programs: dict[int, Program[ExecutionPlan]] = {}
        #: {parallelism: keys of its edges}
        self._edges: dict[int, set[str]] = {}
        self._program(self.parallelism)

    def databases(self, plan: ExecutionPlan) -> frozenset[int]:
        """Return the tasks with an operator whose keyed state the user keeps in a database."""
        return frozenset(
            task.index
            for task in plan.tasks
            if any(_keeps_database(operator) for operator in task.operators)
        )

    def rescales_to(self, parallelism: int) -> bool:
        """A rescale can go there: operators that exchange records go on doing so.

        Else neighbours would be fused, and records in flight between them would have no place.
        """
        self._program(parallelism)
        return self._edges[parallelism] == self._edges[self.parallelism]

    def load(self, parallelism: int, sinks: SinkSystem) -> ExecutionPlan:
        """The plan as a new process gets it, at this parallelism. Raises: UserError."""
        plan = self._program(parallelism).load()
        return _with_operators(plan, partial(self._connected, sinks))

    def _program(self, parallelism: int) -> Program[ExecutionPlan]:
        if parallelism not in self._programs:
            plan = _with_operators(self.job.plan(parallelism), self._stripped)
            self._edges[parallelism] = {edge.key for edge in plan.edges}
            self._programs[parallelism] = Program(plan, what=f"job {self.job.name!r}")
        return self._programs[parallelism]

    def _stripped(self, operator: OperatorPlan) -> OperatorPlan:
        """Without what `_connected` puts in."""
        if operator.name in self._given:
            return replace(operator, source=None, prepare=None)
        if operator.prepare is not None:
            raise UserError(
                f"source {operator.name!r} cannot run in virtual time; give its records:"
                f" sources={{{operator.name!r}: [...]}}"
            )
        if operator.sink is not None:
            return replace(operator, sink=None, committer=None)
        return replace(operator, operator=_in_place(operator.operator))

    def _connected(self, sinks: SinkSystem, operator: OperatorPlan) -> OperatorPlan:
        if operator.name in self._given:
            return replace(operator, source=partial(_reader, self._given[operator.name]))
        if operator.name in self.columns:
            writer = partial(SystemWriter, sinks)
            return replace(operator, sink=writer, committer=partial(_no_committer, operator.name))
        return operator


def _reader(batches: Sequence[pa.RecordBatch]) -> SourceReader:
    return BatchesReader(batches)


def _no_committer(name: str) -> SinkCommitter:
    raise AssertionError(f"the committer of {name} is made by the simulated coordinator")


def _with_operators(
    plan: ExecutionPlan, change: Callable[[OperatorPlan], OperatorPlan]
) -> ExecutionPlan:
    tasks = [
        replace(task, operators=tuple(change(operator) for operator in task.operators))
        for task in plan.tasks
    ]
    return replace(plan, tasks=tuple(tasks))


def _in_place(make: Callable[[], Operator] | None) -> Callable[[], Operator] | None:
    """An isolated operator without a process of its own."""
    if isinstance(make, partial) and make.func is IsolatedOperator:
        return partial(make.args[0], *make.args[1:], **make.keywords)
    return make


def _keeps_database(operator: OperatorPlan) -> bool:
    make = operator.operator
    backend = make.keywords.get("backend") if isinstance(make, partial) else None
    return backend is not None and backend.kind != "heap"


def _batches(
    name: str, records: Records, schemas: Mapping[str, pa.Schema]
) -> tuple[pa.RecordBatch, ...]:
    """The records in the columns of the source. Raises: UserError."""
    if name not in schemas:
        raise UserError(f"the job has no source {name!r}; {did_you_mean(name, list(schemas))}")
    schema = schemas[name]
    try:
        if isinstance(records, pa.Table):
            return tuple(records.cast(schema).to_batches())
        if isinstance(records, pa.RecordBatch):
            return (records.cast(schema),)
        return (pa.RecordBatch.from_pylist([dict(row) for row in records], schema=schema),)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise UserError(
            f"the records of source {name!r} do not fit its columns: {error}"
        ) from error
