"""Oracles: what must hold whatever went wrong, checked from outside the engine.

`Watch` stands beside the operators, not inside the engine's channels: it notes what each committed piece of work put out and took
in, by record, and compares. So it needs none of the engine's own positions:

- a channel's consumer takes exactly what its producer put out, in order;
- a complete checkpoint cuts every channel consistently: what was sent before the sender's cut and not received before the
  receiver's is what the checkpoint holds as in flight.

`check_output` compares what became visible in the sinks with the reference: every record as often as it must, the places of keyed
lists without forks, and order per key where the edges promise it. `check_credit` compares both ends of each channel.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from headrace.channels.buffer import ChannelId
from headrace.channels.events import CheckpointMode
from headrace.inflight.handle import ChannelStateHandle
from headrace.inflight.replay import merge_sides
from headrace.recovery.layout import checkpoint_folder
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot
from headrace.recovery.store import Store

from ..operators.chain import Outputs
from ..plan.execution import ExecutionPlan
from ..runtime.snapshots import CorruptState, read_buffer
from ..runtime.subtask import Subtask
from ..runtime.wiring import channels_from, channels_to
from ..runtime.work import ProcessWork, SubtaskId, Work
from .coverage import Coverage
from .reference import Record, Reference
from .sink import SinkSystem, TransactionStatus
from .source import ID_SPAN


class Violation(Exception):
    """The engine broke a promise; the message says which."""


@dataclass(slots=True)
class _AttemptLog:
    """What passed in one attempt."""

    #: Ids that the channel's producer has put out, in order, behind those that a restored checkpoint held in flight.
    sent: dict[ChannelId, list[int]] = field(default_factory=lambda: defaultdict(list))
    #: How many of them its consumer has taken in.
    received: Counter[ChannelId] = field(default_factory=Counter)
    #: {checkpoint: {channel: how many were sent, or received, at the cut of its sender, or receiver}}
    sent_at: dict[int, dict[ChannelId, int]] = field(default_factory=lambda: defaultdict(dict))
    received_at: dict[int, dict[ChannelId, int]] = field(default_factory=lambda: defaultdict(dict))


class Watch:
    """Notes what passed in every attempt of a run."""

    def __init__(
        self, plan: ExecutionPlan, mode: CheckpointMode, *, duration_max_ns: int | None = None
    ) -> None:
        """`duration_max_ns`: no checkpoint may take longer (`promptness.py`); None: unknown."""
        self._plan = plan
        self._mode = mode
        self._duration_max_ns = duration_max_ns
        self._attempts: dict[int, _AttemptLog] = defaultdict(_AttemptLog)
        self._outputs = {
            SubtaskId(task.index, i): [channels_from(plan, plan.edges[e], i) for e in task.outputs]
            for task in plan.tasks
            for i in range(task.parallelism)
        }
        self._inputs = {
            SubtaskId(task.index, i): [
                c for e in task.inputs for c in channels_to(plan, plan.edges[e], i)
            ]
            for task in plan.tasks
            for i in range(task.parallelism)
        }

        self._channels = sorted({c for channels in self._inputs.values() for c in channels})

    def committed(self, epoch: int, subtask: SubtaskId, work: Work, outputs: Outputs) -> None:
        """A piece of work was committed. Raises Violation when what it took in is not what was sent."""
        log = self._attempts[epoch]
        if isinstance(work, ProcessWork):
            self._received(log, subtask, work)
        for channels, batches in zip(self._outputs[subtask], outputs, strict=False):
            for target, batch, *_ in batches:
                log.sent[channels[target]].extend(batch.column(0).to_pylist())

    def _received(self, log: _AttemptLog, subtask: SubtaskId, work: ProcessWork) -> None:
        edge = self._plan.tasks[subtask.task].inputs[work.port]
        by_sender: dict[int, list[int]] = {}
        for part in work.parts:
            ids, senders = part.column(0).to_pylist(), part.column(5).to_pylist()
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

    def attempt_failed(self, reason: str) -> None:
        """An attempt failed. Raises Violation when the reason is no fault that the world made."""
        if "broken invariant" in reason or "does not tile" in reason:
            raise Violation(reason)

    def restored(self, epoch: int, snapshot: SubtaskSnapshot, store: Store) -> None:
        """The subtask starts from `snapshot`: what was in flight comes before everything new of its channel."""
        log = self._attempts[epoch]
        for handle in merge_sides(snapshot.inflight):
            channel = ChannelId(handle.edge, handle.producer, handle.consumer)
            log.sent[channel].extend(self._held(handle, store))

    def completed(self, metadata: CheckpointMetadata, store: Store) -> None:
        """The checkpoint is complete: its cut must be consistent, its files few, and it must have come about in time."""
        self._check_files(metadata, store)
        self._check_duration(metadata)
        log, number = self._attempts[metadata.epoch], metadata.checkpoint
        sent, received = log.sent_at[number], log.received_at[number]
        held: dict[ChannelId, list[int]] = defaultdict(list)
        for handle in merge_sides([h for s in metadata.subtasks for h in s.inflight]):
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
        """One write of a worker makes one file, however many channels and subtasks there are."""
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

    def _held(self, handle: ChannelStateHandle, store: Store) -> list[int]:
        ids: list[int] = []
        for buffer in handle.buffers:
            try:
                batch = read_buffer(store, self._plan.job, buffer, _passes)
            except CorruptState as damage:
                raise Violation(f"a complete checkpoint lacks in-flight data: {damage}") from damage
            ids += batch.column(0).to_pylist()
        return ids


def _passes(batch: object, parallelism: int, consumer: int) -> NoReturn:
    raise AssertionError("no record is given out anew while the parallelism stays")


# --- credit -----------------------------------------------------------------------------------------------------------


def check_credit(
    subtasks: Mapping[SubtaskId, Subtask], plan: ExecutionPlan, window_bytes: int, cover: Coverage
) -> None:
    """Both ends of each channel, where both are given: nothing beyond what was granted, nothing granted twice."""
    for id, subtask in subtasks.items():
        for channel, subpartition in subtask._subpartitions.items():
            if subpartition.queued_bytes and subpartition.sent_bytes >= subpartition.limit_bytes:
                cover.count("channels blocked by backpressure")
            consumer = subtasks.get(SubtaskId(plan.edges[channel.edge].consumer, channel.consumer))
            if consumer is None:
                continue
            end = consumer._gate.channels[channel]
            if subpartition.limit_bytes > end.limit_bytes:
                raise Violation(f"{id} uses credit on {channel} that nobody granted")
            if end.limit_bytes > end.consumed_bytes + window_bytes:
                raise Violation(f"channel {channel}: more was granted than consumed")
            if subpartition.sent_bytes < end.received_bytes:
                raise Violation(f"channel {channel}: more bytes were received than sent")


# --- output -----------------------------------------------------------------------------------------------------------


def check_output(
    reference: Reference, system: SinkSystem, mode: CheckpointMode, parallelisms: Mapping[int, int]
) -> None:
    """What is visible at the end of the job. `parallelisms`: {source: its subtasks}."""
    exact = mode is not CheckpointMode.AT_LEAST_ONCE
    for sink, expected in reference.sinks.items():
        rows = system.rows(sink)
        actual = Counter(Record(*row[:4]) for _, row in rows)
        missing, extra = expected - actual, actual - expected
        if missing or (exact and extra):
            raise Violation(f"{sink}: missing {_some(missing)}, extra {_some(extra)}")
        if exact:
            _check_order(sink, rows, reference, parallelisms)
    if exact:
        _check_places(reference, system)
    stuck = [id for id, t in system.transactions.items() if _is_stuck(t.status)]
    if stuck:
        raise Violation(f"transactions are still open at the end: {stuck[:5]}")


def _is_stuck(status: TransactionStatus) -> bool:
    return status in (TransactionStatus.OPEN, TransactionStatus.PREPARED)


def _some(records: Counter[Record]) -> str:
    shown = ", ".join(f"{tuple(r)}x{n}" for r, n in sorted(records.items())[:5])
    return f"{sum(records.values())} ({shown})"


def _check_places(reference: Reference, system: SinkSystem) -> None:
    """No two records at one place of a list, none beyond its end."""
    holders: dict[tuple[int, int, int], int] = {}
    for sink in reference.sinks:
        for _, (id, key, _, by, nth, _) in system.rows(sink):
            if not by:
                continue
            if not 1 <= nth <= reference.places[by, key]:
                raise Violation(f"{sink}: record {id} is at place {nth} of key {key}")
            if holders.setdefault((by, key, nth), id) != id:
                other = holders[by, key, nth]
                raise Violation(f"{sink}: {id} and {other} share place {nth} of key {key}")


def _check_order(
    sink: str,
    rows: Iterable[tuple[int, tuple[int, ...]]],
    reference: Reference,
    parallelisms: Mapping[int, int],
) -> None:
    """Records of one source subtask and key, along a path that keeps order, come in order."""
    last: dict[tuple[int, int, int, int, int], int] = {}
    for subtask, (id, key, path, *_) in rows:
        if path not in reference.ordered:
            continue
        source = id // ID_SPAN
        where = (subtask, source, id % ID_SPAN % parallelisms[source], key, path)
        if last.get(where, -1) >= id:
            raise Violation(f"{sink}: record {id} of key {key} comes after {last[where]}")
        last[where] = id
