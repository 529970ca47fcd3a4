"""The second certificate: does a checkpoint account for every record that its attempt restored?

The tile check (`tiles.py`) covers records in channels. Records that a restore has put aside to be
replayed lie in no channel, and a checkpoint amid the replay only names what is left. So for each
consumer and edge

    restored = committed + left,

where `restored` is what the consumer was dealt, `committed` is counted where the consumer works
(`inflight/replay_ledger.py`), and `left` is what the checkpoint names again. And among consumers:
the dealt records are those of the checkpoint that was restored, once each. Where each record names
its consumer, everyone reads all of them and keeps some: those kept come to those there were.

And nothing new precedes what is left: while a port replays, its channels bring no record, unless
the job replays in waves.

The deal is compared here with the checkpoint and with the plan, not with the code that dealt
(`redistribution.py`). A checkpoint that does not account for its replay is not completed.

It costs one pass over counts, and over the buffers left while there are any. Records that were
dealt by their values twice, for another rescale came amid the replay, cannot be counted without
reading them: each consumer accounts for them, their sum is not checked.

Not here: order, of keys and of generations, which counting cannot see.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from headrace.channels.partitioners.partitioner import Affinity
from headrace.inflight.handle import BufferHandle
from headrace.inflight.replay_ledger import ReplayCount

from .metadata import CheckpointMetadata, SubtaskSnapshot
from .redistribution import NewEdge, is_repartitioned, old_edges


class SubtaskReplay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A subtask's account of its replay, by edge."""

    task: int
    index: int
    counts: list[ReplayCount]


@dataclass(frozen=True, slots=True)
class ReplayEdge:
    """An edge of the present plan; `consumer`: a task index, with `parallelism` subtasks."""

    edge: NewEdge
    consumer: int
    parallelism: int
    port: int
    #: Of a loop: its channels are never held.
    feedback: bool = False


@dataclass(slots=True)
class _Share:
    """What one consumer was dealt of one edge."""

    buffers: list[BufferHandle] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows to work on, if no filter drops some."""
        return sum(buffer.rows - buffer.skip for buffer in self.buffers)


class RestoredReplay:
    """Everything that one attempt has to replay.

    Args:
        metadata: the restored checkpoint.
        edges: of the present plan, by index.
        dealt: the snapshots that the subtasks start from.
    """

    def __init__(
        self,
        metadata: CheckpointMetadata,
        edges: Mapping[int, ReplayEdge],
        dealt: Sequence[SubtaskSnapshot],
    ) -> None:
        self._edges = edges
        #: {task: its input edges}.
        self._inputs: dict[int, list[int]] = defaultdict(list)
        for index, edge in edges.items():
            self._inputs[edge.consumer].append(index)
        #: {(edge, consumer): its share}; edges and consumers without records are left out.
        self._shares: dict[tuple[int, int], _Share] = defaultdict(_Share)
        #: The attempt replays in waves, which send records to ports that wait.
        self._in_waves = any(h.wave for snapshot in dealt for h in snapshot.inflight)
        for snapshot in dealt:
            for handle in snapshot.inflight:
                self._shares[handle.edge, snapshot.index].buffers += handle.buffers
        #: {edge: rows that consumers keep of all that each of them reads}.
        self._kept: dict[int, int] = {}
        self._misdealt = [
            f"edge {edge.edge.key!r}: {problem}"
            for index, edge in edges.items()
            for problem in self._wrong_deal(metadata, index, edge)
        ]

    def problems(
        self, subtasks: Iterable[SubtaskSnapshot], accounts: Iterable[SubtaskReplay]
    ) -> list[str]:
        """Return the faults of a checkpoint as sentences; an empty list: all is accounted for."""
        if not self._shares and not self._misdealt:
            return [
                f"subtask {s.index} of task {s.task} names records to replay, and none were"
                " restored"
                for s in subtasks
                if _left(s)
            ]
        counts = {(a.task, a.index, c.edge): c for a in accounts for c in a.counts}
        problems = list(self._misdealt)
        #: {edge: (consumers that are through, rows they kept)}.
        done: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
        for snapshot in subtasks:
            left = _left(snapshot)
            problems += self._overtaken(snapshot, left, counts)
            for index in self._inputs[snapshot.task]:
                share = self._shares.get((index, snapshot.index), _Share())
                none = ReplayCount(index, 0, 0, 0, 0, 0)
                count = counts.get((snapshot.task, snapshot.index, index), none)
                rest = left.get(index, ())
                wrong = _unaccounted(share, count, rest)
                key = self._edges[index].edge.key
                problems += [f"edge {key!r} at {snapshot.index}: {w}" for w in wrong]
                through, kept = done[index]
                done[index] = (through + (not rest), kept + count.passed)
        return problems + [
            f"edge {self._edges[index].edge.key!r}: {done[index][1]} records passed the consumers'"
            f" filters, of {rows}"
            for index, rows in self._kept.items()
            if done[index][0] == self._edges[index].parallelism and done[index][1] != rows
        ]

    def _wrong_deal(self, metadata: CheckpointMetadata, index: int, edge: ReplayEdge) -> list[str]:
        """Say where the shares of an edge are not what the checkpoint holds."""
        owned = _owned(metadata, old_edges(metadata, edge.edge))
        shares = [self._shares.get((index, at), _Share()) for at in range(edge.parallelism)]
        if not owned and not any(share.buffers for share in shares):
            return []
        old = old_edges(metadata, edge.edge)
        moved = is_repartitioned(metadata, old, edge.edge)
        before = {metadata.tasks[metadata.edges[i].consumer].parallelism for i in old}
        if before == {edge.parallelism} and not moved:
            return _not_equal(shares, [owned.get(at, []) for at in range(edge.parallelism)])
        everything = [buffer for _, buffers in sorted(owned.items()) for buffer in buffers]
        if edge.edge.partitioner.names_consumers():
            return self._wrong_filters(index, shares, everything)
        if edge.edge.partitioner.affinity is not Affinity.COPY:
            rows = sum(share.rows for share in shares)
            there = _Share(everything).rows
            return [f"{rows} records were dealt, of {there}"] if rows != there else []
        copies = [everything] * edge.parallelism
        if not moved:
            copies = [owned.get(at % max(before), []) for at in range(edge.parallelism)]
        return _not_equal(shares, copies)

    def _wrong_filters(
        self, index: int, shares: Sequence[_Share], everything: Sequence[BufferHandle]
    ) -> list[str]:
        """Every consumer reads everything, and keeps the records that name it."""
        there = sum(buffer.rows for buffer in everything)
        for at, share in enumerate(shares):
            rows = sum(buffer.rows for buffer in share.buffers)
            if (len(share.buffers), rows) != (len(everything), there):
                return [f"consumer {at} was dealt {rows} records, of {there}"]
            mine = (len(shares), at)
            if any(not b.filters or b.filters[-1][1:] != mine for b in share.buffers):
                return [f"consumer {at} was dealt records that name others"]
        if not any(buffer.filters for buffer in everything):
            self._kept[index] = _Share(list(everything)).rows
        return []

    def _overtaken(
        self,
        snapshot: SubtaskSnapshot,
        left: Mapping[int, Sequence[BufferHandle]],
        counts: Mapping[tuple[int, int, int], ReplayCount],
    ) -> list[str]:
        """New records came while older ones are left."""
        held = set() if self._in_waves else {self._edges[edge].port for edge in left}
        return [
            f"edge {self._edges[edge].edge.key!r} at {snapshot.index}: {count.arrived} new records"
            " came before records that are left to replay"
            for edge in self._inputs[snapshot.task]
            if self._edges[edge].port in held and not self._edges[edge].feedback
            if (count := counts.get((snapshot.task, snapshot.index, edge))) and count.arrived
        ]


def _left(snapshot: SubtaskSnapshot) -> dict[int, list[BufferHandle]]:
    """Return what a checkpoint names again of one subtask, by edge."""
    left: dict[int, list[BufferHandle]] = {}
    for handle in snapshot.inflight:
        if handle.side == "replay" and handle.buffers:
            left.setdefault(handle.edge, []).extend(handle.buffers)
    return left


def _owned(metadata: CheckpointMetadata, old: Sequence[int]) -> dict[int, list[BufferHandle]]:
    """Return the in-flight buffers of an edge by the consumer that they were on the way to."""
    owned: dict[int, list[BufferHandle]] = {}
    for snapshot in metadata.subtasks:
        for handle in snapshot.inflight:
            if handle.edge in old and handle.buffers:
                owner = handle.consumer if handle.side == "output" else snapshot.index
                owned.setdefault(owner, []).extend(handle.buffers)
    return owned


def _not_equal(shares: Sequence[_Share], expected: Sequence[Sequence[BufferHandle]]) -> list[str]:
    """Each consumer takes over exactly the records that it owned, or copied."""
    return [
        f"consumer {at} was dealt other records: {share.rows} in {len(share.buffers)} buffers,"
        f" of {_Share(list(mine)).rows} in {len(mine)}"
        for at, (share, mine) in enumerate(zip(shares, expected, strict=True))
        if _places(share.buffers) != _places(mine)
    ]


def _places(buffers: Iterable[BufferHandle]) -> set[tuple[str, int, int, int, int]]:
    return {(b.path, b.offset, b.start, b.rows, b.skip) for b in buffers}


def _unaccounted(share: _Share, count: ReplayCount, left: Sequence[BufferHandle]) -> list[str]:
    """Hold the share of one consumer against its counts and against what is left."""
    gone = len(share.buffers) - len(left)
    if not count.buffers <= gone <= count.buffers + count.empty:
        done = f"{count.buffers} are worked on, {count.empty} empty and {len(left)} left"
        return [f"{len(share.buffers)} buffers were restored, but {done}"]
    begun, strangers = _matched(share.buffers, left)
    if strangers:
        return [f"{strangers} buffers are left that were not restored"]
    before = sum(buffer.skip for buffer in begun)
    part = sum(buffer.skip for buffer in left) - before
    if count.committed != count.passed + part:
        known = f"{count.passed} in whole buffers and {part} in buffers that are left"
        return [f"{count.committed} records are committed, but {known}"]
    if any(buffer.filters for buffer in share.buffers):
        return []
    rows = share.rows - (sum(buffer.rows for buffer in begun) - before)
    if count.passed != rows:
        return [f"{rows} records of whole buffers were restored, but {count.passed} worked on"]
    return []


def _matched(
    dealt: Sequence[BufferHandle], left: Sequence[BufferHandle]
) -> tuple[list[BufferHandle], int]:
    """Return the dealt buffers that are left, as they were dealt, and the number of strangers."""
    if not left:
        return [], 0
    known: dict[tuple[str, int, int], list[BufferHandle]] = {}
    # A savepoint may have copied them to another place.
    for buffer in dealt:
        known.setdefault((buffer.checksum, buffer.start, buffer.rows), []).append(buffer)
    begun: list[BufferHandle] = []
    for buffer in left:
        alike = known.get((buffer.checksum, buffer.start, buffer.rows), [])
        # After two rescales in a row a consumer has shares of one buffer from several owners.
        for at in reversed(range(len(alike))):
            if alike[at].filters == buffer.filters:
                begun.append(alike.pop(at))
                break
    return begun, len(left) - len(begun)
