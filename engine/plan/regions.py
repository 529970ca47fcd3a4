"""The regions of a job: the parts into which logged edges cut its graph.

A region is a weakly connected part of the graph without its logged edges. It becomes a job of its
own: with its own workers, coordinator, epochs and checkpoints. A logged edge becomes a sink of the
region that writes the log, and a source of each region that reads it.

Regions have no cycles among themselves: a region begins to end when those before it have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..contract.connectors import Sink, Source
from ..contract.errors import UserError
from ..contract.suggestion import did_you_mean
from ..operators.watermark import CarriedWatermarkOperator
from .graph import Input, LogicalGraph, Node, Role

#: Makes the two ends of a log for a region, given the log's name and node, and the region's name.
Ends = Callable[[str, Node, str], tuple[Sink, Source]]

#: An end of a logged edge, or another node: (node, the consumer for which it is read).
_Part = tuple[Node, Node | None]


@dataclass(frozen=True, slots=True)
class RegionGraph:
    """One region.

    Attributes:
        name: unique in the job.
        sinks: the region's graph.
        writes, reads: names of logs.
        reads_early: the logs among `reads` whose records are read at once.
    """

    name: str
    sinks: tuple[Node, ...]
    writes: tuple[str, ...]
    reads: tuple[str, ...]
    reads_early: tuple[str, ...] = ()


def has_regions(sinks: Sequence[Node]) -> bool:
    """Say whether some edge of the job is logged."""
    return any(node.role is Role.LOG for node in LogicalGraph.of(sinks).nodes)


def split(sinks: Sequence[Node], ends: Ends, named: Sequence[str] = ()) -> list[RegionGraph]:
    """Cut a job's graph into regions; those that write a log come before those that read it.

    Args:
        named: names of operators, each of which names its region; other regions are named after
            their first source or log.

    Raises: UserError for a log with both ends in one region, regions in a circle, and names that
    are no operator's.
    """
    graph = LogicalGraph.of(sinks)
    parts = _Parts(graph)
    parts.check_ends()
    names = _region_names(graph, parts, named)
    made = {root: _region(graph, parts, root, names[root], ends) for root in parts.in_order()}
    return _writers_first(list(made.values()))


class _Parts:
    """The parts of a graph, and which of them belong together."""

    def __init__(self, graph: LogicalGraph) -> None:
        self._graph = graph
        self._above: dict[_Part, _Part] = {}
        for node in graph.nodes:
            self._above.setdefault((node, None), (node, None))
            for edge in (*node.inputs, *node.again):
                self._join(self.read_end(edge, node), (node, None))

    def read_end(self, edge: Input, consumer: Node) -> _Part:
        """The part from which a consumer takes an input."""
        part = (edge.node, consumer if edge.node.role is Role.LOG else None)
        self._above.setdefault(part, part)
        return part

    def root(self, part: _Part) -> _Part:
        """The part that stands for the whole region."""
        while self._above[part] != part:
            part = self._above[part]
        return part

    def in_order(self) -> list[_Part]:
        """The roots, in the order of the graph."""
        return list(dict.fromkeys(self.root((node, None)) for node in self._graph.nodes))

    def check_ends(self) -> None:
        """Refuse a log that is written and read in one region."""
        for consumer in self._graph.nodes:
            for edge in (*consumer.inputs, *consumer.again):
                if edge.node.role is not Role.LOG:
                    continue
                if self.root(self.read_end(edge, consumer)) == self.root((edge.node, None)):
                    raise UserError(
                        f"{edge.node.label} has both ends in one region, since another edge or a"
                        f" loop joins them by {consumer.label}: log every edge between the two, and"
                        " none within a loop"
                    )

    def _join(self, left: _Part, right: _Part) -> None:
        self._above[self.root(left)] = self.root(right)


def _region_names(graph: LogicalGraph, parts: _Parts, named: Sequence[str]) -> Mapping[_Part, str]:
    by_name = {graph.names[node]: node for node in graph.nodes}
    found: dict[_Part, str] = {}
    for name in named:
        if name not in by_name:
            raise UserError(
                f"Region {name!r}: the job has no operator of that name;"
                f" {did_you_mean(name, by_name)}"
            )
        root = parts.root(_place_of(by_name[name], graph))
        if root in found:
            raise UserError(
                f"Region {name!r} and Region {found[root]!r} are one region, since no logged edge"
                " parts them: state one of the two"
            )
        found[root] = name
    for node in graph.nodes:
        found.setdefault(parts.root(_place_of(node, graph)), graph.names[node])
    return found


def _place_of(node: Node, graph: LogicalGraph) -> _Part:
    """The part that a name means: of a log, its first reader's end."""
    if node.role is not Role.LOG:
        return node, None
    return node, next(c for c in graph.nodes for edge in c.inputs if edge.node is node)


def _region(graph: LogicalGraph, parts: _Parts, root: _Part, name: str, ends: Ends) -> RegionGraph:
    """Copy the nodes of a region, logs replaced by their ends."""
    copies: dict[Node, Node] = {}
    sources: dict[Node, Node] = {}
    sinks: list[Node] = []
    writes: list[str] = []
    for node in graph.nodes:
        if parts.root((node, None)) != root:
            continue
        inputs = []
        for edge in node.inputs:
            if edge.node.role is Role.LOG and edge.node not in sources:
                sources[edge.node] = _source(edge.node, graph.names[edge.node], name, ends)
            inputs.append(replace(edge, node=(sources | copies)[edge.node]))
        if node.role is Role.LOG:
            writes.append(graph.names[node])
            sinks.append(_sink(node, graph.names[node], name, tuple(inputs), ends))
        else:
            copies[node] = replace(node, name=graph.names[node], inputs=tuple(inputs), again=[])
            if node.role is Role.SINK:
                sinks.append(copies[node])
    for node, copy in copies.items():
        copy.again.extend(replace(edge, node=copies[edge.node]) for edge in node.again)
    reads = tuple(graph.names[log] for log in sources)
    early = tuple(graph.names[log] for log in sources if log.reads_early)
    return RegionGraph(name, tuple(sinks), tuple(writes), reads, early)


def _source(log: Node, name: str, region: str, ends: Ends) -> Node:
    """Make the reading end; event time goes on where the writing region's stood."""
    source = replace(
        log,
        role=Role.SOURCE,
        name=name,
        inputs=(),
        reader=ends(name, log, region)[1].reader,
        takes_event_time=False,
    )
    if not log.takes_event_time:
        return source
    return replace(
        source,
        role=Role.OPERATOR,
        name=f"{name}-watermark",
        inputs=(Input(source),),
        reader=None,
        operator=CarriedWatermarkOperator,
    )


def _sink(log: Node, name: str, region: str, inputs: tuple[Input, ...], ends: Ends) -> Node:
    sink = ends(name, log, region)[0]
    widths = {edge.node.parallelism for edge in inputs}
    return replace(
        log,
        role=Role.SINK,
        name=name,
        inputs=inputs,
        writer=sink.writer,
        committer=sink.committer,
        parallelism=widths.pop() if len(widths) == 1 else None,
    )


def _writers_first(regions: Sequence[RegionGraph]) -> list[RegionGraph]:
    left = list(regions)
    done: list[RegionGraph] = []
    while left:
        unwritten = {log for region in left for log in region.writes}
        ready = [region for region in left if not unwritten.intersection(region.reads)]
        if not ready:
            names = ", ".join(repr(region.name) for region in left)
            raise UserError(
                f"regions {names} read each other's logs in a circle: log fewer edges, so that"
                " what depends on each other is one region"
            )
        done += ready
        left = [region for region in left if region not in ready]
    return done
