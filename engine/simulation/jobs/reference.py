"""The expected output of a random job: the graph computed at once, record by record, without an
engine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.by_range import ByRange
from headrace.channels.partitioners.custom import Custom
from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.partitioner import Partitioner

from .asks import keyed_at, ordered_at
from .co_processes import totals_of
from .connects import TOLD_PATH
from .failing import calls, fails
from .graphs import ANEW, FAILING, JOINS, TIMED, WITH_TTL, Graph, Kind, TaskSpec
from .loops import ROUNDS_MAX, body_of, head_of, rounds_had, rounds_of
from .operators import PATH_STEP, is_dropped
from .source import key_of, records_of
from .timed_reference import Records, lives_of, pairs_of, windows_of


class Record(NamedTuple):
    """The part of a record that does not depend on the order in which records meet."""

    id: int
    key: int
    path: int
    by: int


@dataclass(slots=True)
class Reference:
    """Expected output.

    Attributes:
        sinks: {name of the sink: multiset of records}.
        places: {(history task, key): how many records enter the list}.
        ordered: paths along which the records of a source split and key keep their order.
        changed: paths over an edge with a changed partitioner, which may break their order.
        copied: paths over an edge that is a broadcast in some version. The number of copies depends
            on the parallelism of the time.
        pooled: paths from windows with late records. The run decides which records are told
            together; here each record stands for itself.
        failed: how many calls fail, those of all copies.
    """

    sinks: dict[str, Counter[Record]] = field(default_factory=dict)
    places: Counter[tuple[int, int]] = field(default_factory=Counter)
    ordered: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)
    copied: set[int] = field(default_factory=set)
    pooled: set[int] = field(default_factory=set)
    failed: int = 0
    total_rows: int = 0


#: By source task: {split: how many of its records were read}.
Places = Mapping[int, Mapping[int, int]]


def reference_of(graph: Graph, read: Places | None = None) -> Reference:
    """Compute the graph, of all records of the sources or of the `read` records."""
    reference = Reference()
    outputs: list[Counter[Record]] = []
    #: Paths by task; True: in order so far.
    orders: list[dict[int, bool]] = []
    #: Records of the task's letters.
    letters: list[Counter[Record]] = []
    for index, task in enumerate(graph.tasks):
        arriving, order = _arriving(task, letters if task.kind is Kind.DEAD else outputs, orders)
        match task.kind:
            case Kind.SOURCE:
                leaving = _read(index, graph, read)
                order = {0: True}
            case Kind.SINK | Kind.DEAD:
                if task.kind is Kind.DEAD:
                    arriving = _marked(index, arriving)
                    order = _stepped(graph, index, order)
                reference.sinks[f"{task.kind.value}{index}"] = arriving
                reference.ordered |= {path for path, kept in order.items() if kept}
                leaving = Counter()
            case Kind.HEAD:
                leaving = _all_rounds(graph, index, arriving)
                order = {record.path: False for record in leaving}
            case Kind.AGAIN | Kind.LEAVE:
                # The head has put out every round of every record.
                leaving = Counter() if task.kind is Kind.AGAIN else _done(graph, index, arriving)
            case kind if kind in JOINS:
                leaving = _joined(index, task, outputs)
                order = _stepped(graph, index, order)
            case Kind.CONNECT:
                main, order = _arriving(_with(task, task.inputs[:-1]), outputs, orders)
                told, _ = _arriving(_with(task, task.inputs[-1:]), outputs, orders)
                order = _stepped(graph, index, order) | {_told_path(index): False}
                leaving = _leaving(index, Kind.HISTORY, 1, main, reference)
                leaving += _gathered(told, task.parallelism, _told_path(index))
            case Kind.CO_PROCESS:
                leaving = _leaving(index, Kind.HISTORY, 1, arriving, reference)
                leaving += _totals_of_sides(index, task, outputs)
                order = _stepped(graph, index, order) | {_told_path(index): False}
            case _:
                leaving = _leaving(index, task.kind, task.parallelism, arriving, reference)
                order = _stepped(graph, index, order)
        outputs.append(leaving)
        failed = _failed(index, task.kind, arriving)
        letters.append(_marked(index, failed))
        reference.failed += sum(failed.values())
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
    later = {(change.task, change.port): change.partitioner for change in graph.changes}
    reference.changed = _paths_over(graph, lambda edge: edge.place in later)
    reference.copied = _paths_over(
        graph,
        lambda edge: (
            isinstance(edge.partitioner, Broadcast) or isinstance(later.get(edge.place), Broadcast)
        ),
    )
    late = {index for index, task in enumerate(graph.tasks) if task.kind is Kind.LATE}
    reference.pooled = _paths_over(graph, lambda edge: edge.producer in late)
    return reference


def spread_paths(graph: Graph, versions: Iterable[Sequence[int]]) -> set[int]:
    """Return the paths over forward edges that become a rebalance in some version of the job.

    `versions`: parallelisms by task.
    """
    return _paths_over(
        graph,
        lambda edge: (
            isinstance(edge.partitioner, Forward)
            and any(widths[edge.producer] != widths[edge.place[0]] for widths in versions)
        ),
    )


class _Edge(NamedTuple):
    """An edge of the graph; `place`: (consumer, port)."""

    producer: int
    partitioner: Partitioner
    place: tuple[int, int]


def _edges_into(graph: Graph, index: int) -> list[_Edge]:
    inputs = graph.tasks[index].inputs
    return [_Edge(*given, (index, port)) for port, given in enumerate(inputs)]


def _with(task: TaskSpec, inputs: tuple[tuple[int, Partitioner], ...]) -> TaskSpec:
    return replace(task, inputs=inputs)


def _told_path(index: int) -> int:
    return TOLD_PATH * PATH_STEP + index + 1


def _paths_over(graph: Graph, picked: Callable[[_Edge], bool]) -> set[int]:
    """Paths that reach a sink over a `picked` edge."""
    found: set[int] = set()
    #: By task: {path: it led over such an edge}.
    leaving: list[dict[int, bool]] = []
    for index, task in enumerate(graph.tasks):
        arriving: dict[int, bool] = {} if task.inputs else {0: False}
        edges = _edges_into(graph, index)
        # What is told is told by records of their own.
        told = edges[-1:] if task.kind is Kind.CONNECT else []
        for edge in edges[: len(edges) - len(told)]:
            for path, over in leaving[edge.producer].items():
                arriving[path] = arriving.get(path, False) or over or picked(edge)
        match task.kind:
            case Kind.SOURCE:
                leaving.append(arriving)
            case Kind.HEAD:
                leaving.append(_paths_of_rounds(graph, index, arriving))
            case Kind.AGAIN | Kind.LEAVE:
                leaving.append(arriving)
            case Kind.SINK:
                found |= {path for path, over in arriving.items() if over}
                leaving.append({})
            case Kind.DEAD:
                found |= {p * PATH_STEP + index + 1 for p, over in arriving.items() if over}
                leaving.append({})
            case anew if anew in ANEW:
                leaving.append({index + 1: any(arriving.values())})
            case _:
                left = {p * PATH_STEP + index + 1: over for p, over in arriving.items()}
                if task.kind is Kind.CO_PROCESS:
                    left[_told_path(index)] = any(arriving.values())
                leaving.append(left | {_told_path(index): picked(edge) for edge in told})
    return found


def _paths_of_rounds(graph: Graph, head: int, entering: dict[int, bool]) -> dict[int, bool]:
    found: dict[int, bool] = {}
    for _ in range(ROUNDS_MAX):
        out = {path * PATH_STEP + head + 1: over for path, over in entering.items()}
        found |= out
        for index in body_of(graph, head):
            out = {path * PATH_STEP + index + 1: over for path, over in out.items()}
        entering = out
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
        keeps = isinstance(partitioner, Forward | Hash | Custom | ByRange)
        for path, kept in orders[producer].items():
            # Two routes of one path (a union of both) would interleave.
            order[path] = kept and keeps and path not in order
    return arriving, order


def _all_rounds(graph: Graph, head: int, entering: Counter[Record]) -> Counter[Record]:
    """What a head puts out: the loop unrolled."""
    found: Counter[Record] = Counter()
    while entering:
        out = _marked(head, entering)
        found += out
        for index in body_of(graph, head):
            by = index if graph.tasks[index].kind is Kind.HISTORY else None
            out = _marked(index, out)
            if by is not None:
                out = Counter({r._replace(by=by): times for r, times in out.items()})
        entering = out - _done(graph, head + 1, out)
    return found


def _done(graph: Graph, index: int, records: Counter[Record]) -> Counter[Record]:
    """The records that leave the loop whose head is before task `index`."""
    head = head_of(graph, index)
    return Counter(
        {r: n for r, n in records.items() if rounds_had(r.path, head) >= rounds_of(r.id, head)}
    )


def _read(index: int, graph: Graph, read: Places | None) -> Counter[Record]:
    ids = [
        id
        for place, id in enumerate(records_of(index, graph.rows))
        if read is None or place // graph.splits < read[index].get(place % graph.splits, 0)
    ]
    return Counter(Record(id, key_of(id, graph.keys), 0, 0) for id in ids)


def _leaving(
    index: int, kind: Kind, parallelism: int, arriving: Counter[Record], reference: Reference
) -> Counter[Record]:
    if kind is Kind.TOTALS:
        return _totals(arriving, index + 1)
    if kind is Kind.GATHER:
        return _gathered(arriving, parallelism, index + 1)
    if kind is Kind.LATE:
        return _told(index, _plain(arriving))
    if kind in WITH_TTL:
        return _told(index, lives_of(_plain(arriving)))
    if kind in TIMED:
        return _told(index, windows_of(kind, _plain(arriving)))
    leaving: Counter[Record] = Counter()
    for record, times in arriving.items():
        if kind is Kind.DROP and is_dropped(record.id, index):
            continue
        if kind in FAILING and fails(record.id, index):
            continue
        by = record.by
        if kind is Kind.HISTORY:
            by = index
            reference.places[index, record.key] += times
        leaving[Record(record.id, record.key, record.path * PATH_STEP + index + 1, by)] += times
    return leaving


def _failed(index: int, kind: Kind, arriving: Counter[Record]) -> Counter[Record]:
    """Records on which the task fails."""
    if kind not in FAILING:
        return Counter()
    return Counter({r: times for r, times in arriving.items() if fails(r.id, index)})


def _marked(index: int, records: Counter[Record]) -> Counter[Record]:
    """The records with the task on their path."""
    marked = {r._replace(path=r.path * PATH_STEP + index + 1): n for r, n in records.items()}
    return Counter(marked)


def _totals(arriving: Counter[Record], path: int) -> Counter[Record]:
    counts: dict[int, int] = defaultdict(int)
    sums: dict[int, int] = defaultdict(int)
    for record, times in arriving.items():
        counts[record.key] += times
        sums[record.key] += record.id * times
    return Counter(Record(sums[key] * 31 + n, key, path, 0) for key, n in counts.items())


def _gathered(arriving: Counter[Record], parallelism: int, path: int) -> Counter[Record]:
    """Every subtask gets a copy of each record, and tells the totals of one copy."""
    one = Counter({record: times // parallelism for record, times in arriving.items()})
    return Counter(dict.fromkeys(_totals(one, path), parallelism))


def _joined(index: int, task: TaskSpec, outputs: list[Counter[Record]]) -> Counter[Record]:
    return _told(index, pairs_of(task.kind, *_sides(task, outputs)))


def _totals_of_sides(index: int, task: TaskSpec, outputs: list[Counter[Record]]) -> Counter[Record]:
    """A record for each key with the counts and sums of both sides."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(lambda: [(0, 0), (0, 0)])
    for side, records in enumerate(_sides(task, outputs)):
        for (id, key), times in records.items():
            count, total = found[key][side]
            found[key][side] = (count + times, total + id * times)
    path = _told_path(index)
    return Counter(Record(totals_of(*sides), key, path, 0) for key, sides in found.items())


def _sides(task: TaskSpec, outputs: list[Counter[Record]]) -> tuple[Records, Records]:
    """Records of the first input, and of the others."""
    left, right = (
        sum((outputs[producer] for producer, _ in inputs), Counter[Record]())
        for inputs in (task.inputs[:1], task.inputs[1:])
    )
    return _plain(left), _plain(right)


def _plain(arriving: Counter[Record]) -> Records:
    """Records without their paths."""
    found: Records = Counter()
    for record, times in arriving.items():
        found[record.id, record.key] += times
    return found


def _told(index: int, told: Records) -> Counter[Record]:
    return Counter({Record(id, key, index + 1, 0): times for (id, key), times in told.items()})


def _stepped(graph: Graph, index: int, order: dict[int, bool]) -> dict[int, bool]:
    kind = graph.tasks[index].kind
    if kind in ANEW:
        return {index + 1: False}
    keeps = not (kind in FAILING and calls(index))
    if kind is Kind.ASKS:
        keeps = ordered_at(index) and keyed_at(graph, index)
    return {path * PATH_STEP + index + 1: kept and keeps for path, kept in order.items()}
