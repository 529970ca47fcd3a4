"""The logical graph: operators as the user wrote them, before chaining and before any parallelism
is known.

A node points at its inputs, so a graph is the set of nodes that its sinks can reach: a value, with
no registry and no hidden global. The head of a loop points at the loop's end as well (`again`), the
only way to make a cycle. Partitionings such as `rebalance` or `union` are not nodes but
facts about an input. All orders follow from the order in which the user wrote sinks and inputs; the
same program always gives the same graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import pyarrow as pa

from headrace.channels.partitioners.partitioner import Partitioner

from ..contract.connectors import PreparedSource, SourceRun
from ..contract.errors import UserError
from ..contract.execution import BatchRule, Output
from ..contract.operators import Operator, SinkCommitter, SinkWriter, SourceReader


class Role(Enum):
    """Role of a node in the runtime."""

    SOURCE = "source"
    OPERATOR = "operator"
    SINK = "sink"
    #: A logged edge: the sink of one region and the source of others (`regions.py`).
    LOG = "log"


@dataclass(frozen=True, slots=True)
class Keyed:
    """Partition by the hash of `columns`.

    The partitioner itself needs the job's number of key groups.
    """

    columns: tuple[str, ...]


#: How records reach the subtasks of a consumer. None leaves it to the plan: forward at equal
#: parallelism, else rebalance.
Partitioning = Keyed | Partitioner | None


@dataclass(frozen=True, slots=True)
class Input:
    """One stream that a node consumes.

    Attributes:
        node: the producer.
        partitioning: see `Partitioning`.
        output: which of its outputs.
    """

    node: Node
    partitioning: Partitioning = None
    output: Output = Output.MAIN

    @property
    def schema(self) -> pa.Schema:
        """Of the incoming records."""
        schemas = {
            Output.MAIN: self.node.schema,
            Output.LATE: self.node.late,
            Output.ERRORS: self.node.errors,
        }
        schema = schemas[self.output]
        assert schema is not None, f"{self.node.label} has no {self.output.value} records"
        return schema

    def partitioned(self, partitioning: Partitioning) -> Input:
        """The same records under another partitioning; the one nearest to the consumer counts."""
        return replace(self, partitioning=partitioning)


# eq=False: each object is a node of its own. Equal calls make two operators.
@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One operator of a job.

    Attributes:
        kind: the API's word for it ("map", "read.parquet"), from which unnamed operators get a
            name.
        role: source, operator or sink.
        name: the user's `name=`.
        inputs: by port; none for a source.
        schema: of what it emits; of what it takes for a sink.
        operator: makes an instance for a subtask; called with the keyword `operator`, its name. Set
            for OPERATOR.
        reader: the same for SOURCE, called without arguments.
        prepare: of a source that the driver prepares for each run.
        writer: the same for SINK, called without arguments.
        committer: makes a sink's committer from the names of job and sink, or None if it needs
            none.
        parallelism: the user's `parallelism=`.
        stateful: keeps state, which must be found again by name.
        idle_after_ns: of one that makes watermarks: without records for so long it counts as idle.
        runs_user_code: a call may take as long as a user's function likes.
        late: schema of its late records; None if it has none.
        batch: the batches that it asks for; None: it takes records as they come.
        errors: schema of its dead letters; None if it routes none.
        takes_event_time: a sink whose writers are told event time.
        reads_early: of a log: its readers do not wait for the writing region's checkpoints.
        again: of the head of a loop: what comes round again. Filled in once, when the body is
            built; its ports follow those of `inputs`.
        built_at: "job.py:17", where the user wrote it.
    """

    kind: str
    role: Role
    name: str | None
    inputs: tuple[Input, ...]
    schema: pa.Schema
    operator: Callable[..., Operator] | None = None
    reader: Callable[[], SourceReader] | None = None
    prepare: Callable[[SourceRun], PreparedSource] | None = None
    writer: Callable[[], SinkWriter] | None = None
    committer: Callable[[str, str], SinkCommitter | None] | None = None
    parallelism: int | None = None
    stateful: bool = False
    runs_user_code: bool = False
    idle_after_ns: int | None = None
    late: pa.Schema | None = None
    batch: BatchRule | None = None
    errors: pa.Schema | None = None
    takes_event_time: bool = False
    reads_early: bool = False
    again: list[Input] = field(default_factory=list)
    built_at: str = "?"

    @property
    def label(self) -> str:
        """How an error calls this node: "map 'clean' (job.py:17)"."""
        name = "" if self.name is None else f" {self.name!r}"
        return f"{self.kind}{name} ({self.built_at})"


@dataclass(frozen=True, slots=True)
class LogicalGraph:
    """The nodes that the sinks can reach.

    Attributes:
        nodes: every producer before its consumers, but for back-edges.
        names: {node: its unique name}; generated where the user gave none.
    """

    nodes: tuple[Node, ...]
    names: dict[Node, str]

    @staticmethod
    def of(sinks: Sequence[Node]) -> LogicalGraph:
        """Collect all nodes that `sinks` reach, in an order that only the program determines.

        Raises: UserError on a cycle.
        """
        nodes = _producers_first(sinks)
        return LogicalGraph(nodes, _names(nodes))

    def consumers(self) -> dict[Node, list[Node]]:
        """Return {node: its consumers, once for each input from the node}."""
        found: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for edge in (*node.inputs, *node.again):
                found[edge.node].append(node)
        return found


def _producers_first(sinks: Sequence[Node]) -> tuple[Node, ...]:
    """All nodes that `sinks` reach; the ends of loops, which no sink need reach, come last."""
    done: dict[Node, None] = {}
    missing = list(sinks)
    while missing:
        _visit(missing, done)
        ends = [edge.node for node in done for edge in node.again]
        missing = [node for node in ends if node not in done]
    return tuple(done)


def _visit(nodes: Sequence[Node], done: dict[Node, None]) -> None:
    """Depth-first post-order, without recursion: a pipeline may be longer than Python's stack is
    deep.
    """
    open_: set[Node] = set()
    stack = [(node, False) for node in reversed(nodes)]
    while stack:
        node, inputs_are_done = stack.pop()
        if inputs_are_done:
            open_.discard(node)
            done[node] = None
        elif node in open_:
            raise UserError(f"{node.label} consumes its own output; write a loop with iterate()")
        elif node not in done:
            open_.add(node)
            stack.append((node, True))
            stack.extend((edge.node, False) for edge in reversed(node.inputs))


def _names(nodes: Sequence[Node]) -> dict[Node, str]:
    """Return the users' names, and "kind-1", "kind-2" for the rest, passing over users' names."""
    taken = {node.name for node in nodes}
    counts: dict[str, int] = {}
    names: dict[Node, str] = {}
    for node in nodes:
        name = node.name
        while name is None:
            counts[node.kind] = counts.get(node.kind, 0) + 1
            candidate = f"{node.kind}-{counts[node.kind]}"
            name = None if candidate in taken else candidate
        names[node] = name
    return names
