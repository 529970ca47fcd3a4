"""What a random job must put out: its graph computed in one go, record by record, without an engine."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headrace.channels.partitioners import Broadcast, Custom, Forward, Hash

from .event_time import bucket_of, told_of
from .graphs import ANEW, Graph, Kind, TaskSpec
from .operators import PATH_STEP, is_dropped
from .source import key_of, records_of
from .windows import pairs_of


class Record(NamedTuple):
    """What does not depend on the order in which records meet."""

    id: int
    key: int
    path: int
    by: int


@dataclass(slots=True)
class Reference:
    """Expected output.

    Attributes:
        sinks: {name of the sink: multiset of its records}.
        places: {(history task, key): how many records enter it}.
        ordered: paths along which the records of one source split and key keep their order.
        forwarded: paths over a forward edge. It keeps its order as long as the parallelism stays: after that, another subtask reads what
            follows than reads what is still in flight.
        copied: paths over a broadcast edge. How many copies there are depends on the parallelism of the time.
    """

    sinks: dict[str, Counter[Record]] = field(default_factory=dict)
    places: Counter[tuple[int, int]] = field(default_factory=Counter)
    ordered: set[int] = field(default_factory=set)
    forwarded: set[int] = field(default_factory=set)
    copied: set[int] = field(default_factory=set)
    total_rows: int = 0


#: By source task: {split: how many of its records were read}.
Places = Mapping[int, Mapping[int, int]]


def reference_of(graph: Graph, read: Places | None = None) -> Reference:
    """Compute the graph, of all records of its sources or of those that were `read`."""
    reference = Reference()
    outputs: list[Counter[Record]] = []
    #: Paths by task; True: in order so far.
    orders: list[dict[int, bool]] = []
    for index, task in enumerate(graph.tasks):
        arriving, order = _arriving(task, outputs, orders)
        match task.kind:
            case Kind.SOURCE:
                ids = [
                    id
                    for place, id in enumerate(records_of(index, graph.rows))
                    if read is None
                    or place // graph.splits < read[index].get(place % graph.splits, 0)
                ]
                leaving = Counter(Record(id, key_of(id, graph.keys), 0, 0) for id in ids)
                order = {0: True}
            case Kind.SINK:
                reference.sinks[f"sink{index}"] = arriving
                reference.ordered |= {path for path, kept in order.items() if kept}
                leaving = Counter()
            case Kind.JOIN:
                leaving = _joined(index, task, outputs, orders)
                order = _stepped(index, task.kind, order)
            case _:
                leaving = _leaving(index, task.kind, task.parallelism, arriving, reference)
                order = _stepped(index, task.kind, order)
        outputs.append(leaving)
        orders.append(order)
        reference.total_rows += sum(arriving.values())
    broken = {
        path
        for index, task in enumerate(graph.tasks)
        if task.kind is Kind.SINK
        for path, kept in _arriving(task, outputs, orders)[1].items()
        if not kept
    }
    reference.ordered -= broken
    reference.forwarded = _paths_over(graph, Forward)
    reference.copied = _paths_over(graph, Broadcast)
    return reference


def _paths_over(graph: Graph, kind: type) -> set[int]:
    """Paths that reach a sink over an edge of this kind."""
    found: set[int] = set()
    #: By task: {path: it led over such an edge}.
    leaving: list[dict[int, bool]] = []
    for index, task in enumerate(graph.tasks):
        arriving: dict[int, bool] = {} if task.inputs else {0: False}
        for producer, partitioner in task.inputs:
            for path, over in leaving[producer].items():
                arriving[path] = arriving.get(path, False) or over or isinstance(partitioner, kind)
        match task.kind:
            case Kind.SOURCE:
                leaving.append(arriving)
            case Kind.SINK:
                found |= {path for path, over in arriving.items() if over}
                leaving.append({})
            case anew if anew in ANEW:
                leaving.append({index + 1: any(arriving.values())})
            case _:
                leaving.append({p * PATH_STEP + index + 1: over for p, over in arriving.items()})
    return found


def _arriving(
    task: TaskSpec, outputs: list[Counter[Record]], orders: list[dict[int, bool]]
) -> tuple[Counter[Record], dict[int, bool]]:
    arriving: Counter[Record] = Counter()
    order: dict[int, bool] = {}
    for producer, partitioner in task.inputs:
        copies = task.parallelism if isinstance(partitioner, Broadcast) else 1
        for record, times in outputs[producer].items():
            arriving[record] += times * copies
        keeps = isinstance(partitioner, Forward | Hash | Custom)
        for path, kept in orders[producer].items():
            # Two routes of one path (a union of both) would interleave.
            order[path] = kept and keeps and path not in order
    return arriving, order


def _leaving(
    index: int, kind: Kind, parallelism: int, arriving: Counter[Record], reference: Reference
) -> Counter[Record]:
    if kind is Kind.TOTALS:
        return _totals(index, arriving)
    if kind is Kind.GATHER:
        # Every subtask gets a copy of each record, and tells what one of each comes to.
        one = Counter({record: times // parallelism for record, times in arriving.items()})
        return Counter(dict.fromkeys(_totals(index, one), parallelism))
    if kind in (Kind.BUCKETS, Kind.WINDOWS):
        return _buckets(index, arriving)
    leaving: Counter[Record] = Counter()
    for record, times in arriving.items():
        if kind is Kind.DROP and is_dropped(record.id, index):
            continue
        by = record.by
        if kind is Kind.HISTORY:
            by = index
            reference.places[index, record.key] += times
        leaving[Record(record.id, record.key, record.path * PATH_STEP + index + 1, by)] += times
    return leaving


def _totals(index: int, arriving: Counter[Record]) -> Counter[Record]:
    counts: dict[int, int] = defaultdict(int)
    sums: dict[int, int] = defaultdict(int)
    for record, times in arriving.items():
        counts[record.key] += times
        sums[record.key] += record.id * times
    return Counter(Record(sums[key] * 31 + n, key, index + 1, 0) for key, n in counts.items())


def _buckets(index: int, arriving: Counter[Record]) -> Counter[Record]:
    counts: dict[tuple[int, int], int] = defaultdict(int)
    sums: dict[tuple[int, int], int] = defaultdict(int)
    for record, times in arriving.items():
        where = record.key, bucket_of(record.id)
        counts[where] += times
        sums[where] += record.id * times
    return Counter(
        Record(told_of(n, sums[key, bucket], bucket), key, index + 1, 0)
        for (key, bucket), n in counts.items()
    )


def _joined(
    index: int, task: TaskSpec, outputs: list[Counter[Record]], orders: list[dict[int, bool]]
) -> Counter[Record]:
    sides: list[Counter[tuple[int, int]]] = []
    for inputs in (task.inputs[:1], task.inputs[1:]):
        side: Counter[tuple[int, int]] = Counter()
        for record, times in _arriving(replace(task, inputs=inputs), outputs, orders)[0].items():
            side[record.id, record.key] += times
        sides.append(side)
    told = pairs_of(*sides)
    return Counter({Record(id, key, index + 1, 0): times for (id, key), times in told.items()})


def _stepped(index: int, kind: Kind, order: dict[int, bool]) -> dict[int, bool]:
    if kind in ANEW:
        return {index + 1: False}
    return {path * PATH_STEP + index + 1: kept for path, kept in order.items()}
