"""The watch: stands beside the operators, outside the engine's channels, and compares records.

The watch notes the records that each committed piece of work emitted and consumed. So the watch
needs none of the engine's own positions:

- a channel's consumer takes exactly the records of its producer, in order;
- before new records of an edge the consumer takes the in-flight records of the restored checkpoint,
  each old channel in order;
- a complete checkpoint cuts every channel consistently: records sent before the sender's cut and
  not received before the receiver's cut are the checkpoint's in-flight records, and records still
  to be replayed are kept for replay.

A watch serves one version of the job, with the parallelism of the version's plan.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.channels.buffer import ChannelId
from headrace.channels.events import CheckpointMode
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.replay import merge_sides
from headrace.recovery.layout import checkpoint_folder
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot
from headrace.recovery.store import Store

from ..contract.execution import ExecutionPlan, SubtaskId
from ..operators.work import (
    Outputs,
    ProcessWork,
    Work,
    WorkDone,
)
from ..storage.snapshots import CorruptState, passes_of, read_buffer
from ..worker.wiring import channels_from, channels_to

#: In the reason of a failed attempt: the engine itself is at fault.
OUR_FAULTS = ("broken invariant", "does not tile", "does not account for its replay")


class Violation(Exception):
    """The engine broke a promise; the message says which."""


class Observer:
    """Hears what happens in the attempts of a simulated job; this one lets all pass."""

    def ended(self, subtask: SubtaskId, done: WorkDone | Exception) -> None:
        """A piece of work has ended, and is not committed yet."""

    def committed(
        self,
        epoch: int,
        subtask: SubtaskId,
        work: Work,
        outputs: Outputs,
        *,
        replayed: bool | None = None,
    ) -> None:
        """A piece of work was committed."""

    def cut(self, epoch: int, checkpoint: int, subtask: SubtaskId) -> None:
        """The subtask takes its snapshot now."""

    def attempt_failed(self, reason: str) -> None:
        """An attempt failed."""

    def restored(self, epoch: int, snapshot: SubtaskSnapshot, store: Store) -> None:
        """The subtask starts from `snapshot`."""

    def completed(self, metadata: CheckpointMetadata, store: Store) -> None:
        """A checkpoint is complete."""


#: One end of an edge: (edge, consumer subtask).
_End = tuple[int, int]
#: An old channel of an end: (producer, consumer) in the old plan.
_Old = tuple[int, int]


@dataclass(slots=True)
class _Replaying:
    """The replay of an end of an edge.

    Attributes:
        records: by old channel, in order.
        places: numbers of records read, in the order of `records`; several candidates, if the old
            channel of a read is ambiguous.
    """

    #: The last wave with records.
    wave: int = 0
    records: dict[_Old, list[int]] = field(default_factory=dict)
    places: set[tuple[int, ...]] = field(default_factory=lambda: {()})

    def hold(self, old: _Old, ids: list[int], wave: int) -> None:
        """Add the next records of an old channel."""
        self.wave = min(self.wave, wave) if self.records else wave
        self.records.setdefault(old, []).extend(ids)
        self.places = {(0,) * len(self.records)}

    @property
    def is_over(self) -> bool:
        """Everything has been read."""
        return tuple(map(len, self.records.values())) in self.places

    def read(self, ids: list[int]) -> bool:
        """Read a run of records, all of one old channel.

        False: no old channel goes on with these records.
        """
        found = {
            (*places[:i], place + len(ids), *places[i + 1 :])
            for places in self.places
            for i, (place, held) in enumerate(zip(places, self.records.values(), strict=True))
            if held[place : place + len(ids)] == ids
        }
        self.places = found or self.places
        return bool(found)

    def left(self) -> list[dict[_Old, list[int]]]:
        """Return the candidates for the unread records, each by old channel."""
        return [
            {
                old: held[place:]
                for place, (old, held) in zip(places, self.records.items(), strict=True)
                if held[place:]
            }
            for places in sorted(self.places)
        ]


@dataclass(slots=True)
class _AttemptLog:
    """The records sent and received in an attempt."""

    #: Ids that the channel's producer has put out, in order.
    sent: dict[ChannelId, list[int]] = field(default_factory=lambda: defaultdict(list))
    #: How many of them its consumer has taken in.
    received: Counter[ChannelId] = field(default_factory=Counter)
    replaying: dict[_End, _Replaying] = field(default_factory=lambda: defaultdict(_Replaying))
    #: The first wave of the replay.
    wave: int = 0
    #: {checkpoint: {channel: number of records sent at the sender's cut, or received at the
    #: receiver's cut}}
    sent_at: dict[int, dict[ChannelId, int]] = field(default_factory=lambda: defaultdict(dict))
    received_at: dict[int, dict[ChannelId, int]] = field(default_factory=lambda: defaultdict(dict))
    #: {checkpoint: {end: candidates for the records left to replay at its cut}}
    left_at: dict[int, dict[_End, list[dict[_Old, list[int]]]]] = field(
        default_factory=lambda: defaultdict(dict)
    )


class Watch(Observer):
    """Watches every attempt of a version of the job."""

    def __init__(
        self, plan: ExecutionPlan, mode: CheckpointMode, *, duration_max_ns: int | None = None
    ) -> None:
        """`duration_max_ns`: no checkpoint may take longer (`promptness.py`); None: unknown."""
        self._plan = plan
        self._mode = mode
        self._duration_max_ns = duration_max_ns
        self._attempts: dict[int, _AttemptLog] = defaultdict(_AttemptLog)
        subtasks = [SubtaskId(t.index, i) for t in plan.tasks for i in range(t.parallelism)]
        self._outputs = {
            id: [
                channels_from(plan, plan.edges[e], id.subtask) for e in plan.tasks[id.task].outputs
            ]
            for id in subtasks
        }
        self._inputs = {
            id: [
                channel
                for e in plan.tasks[id.task].inputs
                for channel in channels_to(plan, plan.edges[e], id.subtask)
            ]
            for id in subtasks
        }
        self._channels = sorted({c for channels in self._inputs.values() for c in channels})

    def committed(
        self,
        epoch: int,
        subtask: SubtaskId,
        work: Work,
        outputs: Outputs,
        *,
        replayed: bool | None = None,
    ) -> None:
        """A piece of work was committed.

        Raises Violation when consumed records differ from sent records.

        `replayed`: the subtask took it from its replay, or not; of use where copies of a record are
        both in flight and left to replay. None: unknown.
        """
        log = self._attempts[epoch]
        if isinstance(work, ProcessWork):
            self._received(log, subtask, work, replayed)
        for channels, batches in zip(self._outputs[subtask], outputs, strict=False):
            for target, batch, *_ in batches:
                log.sent[channels[target]].extend(_marks(self._plan, batch))

    def _received(
        self, log: _AttemptLog, subtask: SubtaskId, work: ProcessWork, replayed: bool | None
    ) -> None:
        edge = self._plan.tasks[subtask.task].inputs[work.port]
        replaying = log.replaying.get((edge, subtask.subtask))
        if replaying is not None and not replaying.is_over:
            ids = [id for part in work.parts for id in _marks(self._plan, part)]
            if replayed is not False and replaying.read(ids):
                return
            # Records that came of an earlier wave go before the replay of a later one.
            if replayed or not 0 < replaying.wave < log.wave:
                raise Violation(f"{subtask} on edge {edge}: {ids} does not go on with the replay")
        by_sender: dict[int, list[int]] = {}
        for part in work.parts:
            ids, senders = _marks(self._plan, part), part.column(5).to_pylist()
            for id, sender in zip(ids, senders, strict=True):
                by_sender.setdefault(sender, []).append(id)
        for sender, ids in by_sender.items():
            channel = ChannelId(edge, sender, subtask.subtask)
            first = log.received[channel]
            expected = log.sent[channel][first : first + len(ids)]
            if ids != expected:
                raise Violation(f"channel {channel} at {first}: sent {expected}, received {ids}")
            log.received[channel] = first + len(ids)

    def cut(self, epoch: int, checkpoint: int, subtask: SubtaskId) -> None:
        """The subtask takes its snapshot now."""
        log = self._attempts[epoch]
        for channels in self._outputs[subtask]:
            for channel in channels:
                log.sent_at[checkpoint][channel] = len(log.sent[channel])
        for channel in self._inputs[subtask]:
            log.received_at[checkpoint][channel] = log.received[channel]
        for edge in self._plan.tasks[subtask.task].inputs:
            end = (edge, subtask.subtask)
            if end in log.replaying:
                log.left_at[checkpoint][end] = log.replaying[end].left()
                self._check_nothing_new(log, subtask, edge)

    def _check_nothing_new(self, log: _AttemptLog, subtask: SubtaskId, edge: int) -> None:
        """Check that nothing new is in flight behind records left to replay.

        It would be one more queue in flight after each restart. Waves are exempt: what they send
        was in flight before. Back-edges accept always.
        """
        back = self._plan.edges[edge].feedback
        if back or log.wave or log.replaying[edge, subtask.subtask].is_over:
            return
        for channel in self._inputs[subtask]:
            if channel.edge == edge and log.sent[channel]:
                raise Violation(f"{channel} brings new records to {subtask}, which replays older")

    def attempt_failed(self, reason: str) -> None:
        """An attempt failed.

        Raises Violation when the reason is no fault of the simulated world.
        """
        if any(each in reason for each in OUR_FAULTS):
            raise Violation(reason)

    def restored(self, epoch: int, snapshot: SubtaskSnapshot, store: Store) -> None:
        """The subtask starts from `snapshot`: its in-flight records precede new records of their
        edge.
        """
        log = self._attempts[epoch]
        for handle in merge_sides(snapshot.inflight):
            ids = self._held(handle, store)
            if ids:
                end = (handle.edge, snapshot.index)
                replaying = log.replaying[end]
                replaying.hold((handle.producer, handle.consumer), ids, handle.wave)
                log.wave = max(log.wave, handle.wave)

    def completed(self, metadata: CheckpointMetadata, store: Store) -> None:
        """Check a complete checkpoint: a consistent cut, few files, and a prompt end."""
        self._check_files(metadata, store)
        self._check_duration(metadata)
        log, number = self._attempts[metadata.epoch], metadata.checkpoint
        sent, received = log.sent_at[number], log.received_at[number]
        held: dict[ChannelId, list[int]] = defaultdict(list)
        for snapshot in metadata.subtasks:
            self._check_replay(log, number, snapshot, store)
        new = [h for s in metadata.subtasks for h in s.inflight if h.side != "replay"]
        for handle in merge_sides(new):
            channel = ChannelId(handle.edge, handle.producer, handle.consumer)
            held[channel].extend(self._held(handle, store))
        for channel in self._channels:
            if channel not in sent or channel not in received:
                raise Violation(f"chk-{number} is complete, but an end of {channel} took no cut")
            if self._mode is CheckpointMode.AT_LEAST_ONCE and received[channel] >= sent[channel]:
                continue
            expected = log.sent[channel][received[channel] : sent[channel]]
            if received[channel] > sent[channel] or held[channel] != expected:
                raise Violation(
                    f"chk-{number} cuts channel {channel} wrongly: {sent[channel]} sent,"
                    f" {received[channel]} received, in flight {expected}, held {held[channel]}"
                )

    def _check_files(self, metadata: CheckpointMetadata, store: Store) -> None:
        """Check that each write of a worker makes one file, however many channels and subtasks
        there are.
        """
        number = metadata.checkpoint
        paths = store.list(checkpoint_folder(metadata.job, number))
        files = Counter(path.rpartition("/")[2].split(".segment")[0] for path in paths)
        for name, count in files.items():
            if count > 1:
                raise Violation(f"chk-{number} has {count} files of {name}")

    def _check_duration(self, metadata: CheckpointMetadata) -> None:
        highest_ns = self._duration_max_ns
        if highest_ns is not None and metadata.duration_ns > highest_ns:
            took, most = metadata.duration_ns / 1e6, highest_ns / 1e6
            raise Violation(f"chk-{metadata.checkpoint} took {took:.1f} ms, {most:.1f} at most")

    def _check_replay(
        self, log: _AttemptLog, number: int, snapshot: SubtaskSnapshot, store: Store
    ) -> None:
        """Check that the checkpoint keeps the records left to replay at the cut."""
        held: dict[_End, dict[_Old, list[int]]] = defaultdict(dict)
        for handle in merge_sides([h for h in snapshot.inflight if h.side == "replay"]):
            ids = self._held(handle, store)
            if ids:
                old = (handle.producer, handle.consumer)
                held[handle.edge, snapshot.index].setdefault(old, []).extend(ids)
        for edge in self._plan.tasks[snapshot.task].inputs:
            end = (edge, snapshot.index)
            possible = log.left_at[number].get(end, [{}])
            if held[end] not in possible:
                raise Violation(
                    f"chk-{number} holds {held[end]} as left to replay on edge {edge} by subtask"
                    f" {snapshot.index},"
                    f" but left is {' or '.join(map(str, possible))}"
                )

    def _held(self, handle: ChannelStateHandle, store: Store) -> list[int]:
        return ids_held(store, self._plan, handle.edge, handle.buffers)


def ids_held(
    store: Store, plan: ExecutionPlan, edge: int, buffers: Iterable[BufferHandle]
) -> list[int]:
    """Return the marks of stored in-flight records of an edge of the plan, in order.

    Raises Violation when unreadable.
    """
    passes = passes_of(plan.edges[edge].partitioner)
    ids: list[int] = []
    for buffer in buffers:
        try:
            batch = read_buffer(store, plan.job, buffer, passes)
        except CorruptState as damage:
            raise Violation(f"a complete checkpoint lacks in-flight data: {damage}") from damage
        ids += _marks(plan, batch)
    return ids


def _marks(plan: ExecutionPlan, batch: pa.RecordBatch) -> list[int]:
    """The ids of records; with the rounds that they had, where they come by again in a loop."""
    ids: list[int] = batch.column(0).to_pylist()
    if not any(edge.feedback for edge in plan.edges):
        return ids
    return [id + (path << 32) for id, path in zip(ids, batch.column(2).to_pylist(), strict=True)]
