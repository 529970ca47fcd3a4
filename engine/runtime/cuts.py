"""The cuts of one subtask: which barriers have come, when a snapshot is due, what in-flight data belongs to it.

Aligned: the barrier is queued like data, its channel is blocked when it is reached, and the cut is due when all have been.
Unaligned: the cut is due when the first barrier *arrives*; the barrier goes to the head of every output, what it overtakes there and what the
inputs hold, or still bring before their own barrier, is captured. The work that runs is cut *before*: its input is captured, too. Only a
subtask with outside effects waits for the end of its running work.
Aligned with a timeout: aligned until the deadline, unaligned from then on, at the inputs (actively by the clock, passively when a late
barrier comes) and at the outputs (a barrier that still stands behind data overtakes it). The checkpoint's number sees to it that
this yields one cut in whatever order they come.

Source: ABS, Algorithm 1; FLIP-76, "unaligned checkpoints". Deviations: the cut is before the running work; every edge can be unaligned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.channels.alignment import Alignment
from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.events import MIN_WATERMARK, Barrier, CheckpointMode, Watermark
from headrace.channels.gate import BarrierPlace, Gate, InputChannel
from headrace.channels.subpartition import Overtaken, Subpartition
from headrace.inflight.handle import ChannelStateHandle
from headrace.recovery.metadata import ChannelPosition

from ..operators.base import Transaction
from .work import CapturedRun, Cut, CutTaken, DeclineCheckpoint, SubtaskEffect, SubtaskId, Waited

#: An aligned barrier may stand behind data while so many newer checkpoints overtake it; then it still means nothing.
_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Due:
    """A cut that should be taken as soon as it can be. `since_ns`: from then on only the subtask's own work is in its way."""

    barrier: Barrier
    since_ns: int
    alignment_ns: int = 0


@dataclass(slots=True)
class _Capture:
    """A cut that was taken and is not yet complete.

    Attributes:
        frozen: the operators' snapshot was taken.
        pending: inputs whose barrier has not come; what they bring belongs to the checkpoint.
        outgoing: outputs in which the (aligned) barrier may still be made to overtake.
        inputs: {channel: records before its barrier, from the cut on}.
        input_ends: channels whose end of input came before their barrier and after the cut's position.
        arrived_ns: {channel: when its barrier came in}.
        left: the output that the barrier was the last to leave, and when.
        watermarks: {channel: (position, event time) of those before its barrier, from the cut on}.
        watermark_ns: how far event time had come at the operators.
    """

    due: Due
    taken_ns: int
    received: tuple[ChannelPosition, ...]
    sent: tuple[ChannelPosition, ...]
    replay: tuple[ChannelStateHandle, ...]
    finished: bool
    watermark_ns: int
    frozen_ns: int | None = None
    transactions: tuple[tuple[str, Transaction], ...] = ()
    pending: set[ChannelId] = field(default_factory=set)
    outgoing: set[ChannelId] = field(default_factory=set)
    inputs: dict[ChannelId, list[Buffer]] = field(default_factory=dict)
    input_ends: set[ChannelId] = field(default_factory=set)
    watermarks: dict[ChannelId, list[tuple[int, int]]] = field(default_factory=dict)
    outputs: dict[ChannelId, Overtaken] = field(default_factory=dict)
    arrived_ns: dict[ChannelId, int] = field(default_factory=dict)
    left: tuple[ChannelId, int] | None = None


class Cuts:
    """Barriers and captures of one subtask.

    Args:
        waits: the subtask has outside effects, so that no cut is taken while work runs.
        timeout_ns: aligned checkpoints become unaligned when they are this old; None: never.
    """

    def __init__(
        self,
        id: SubtaskId,
        gate: Gate,
        subpartitions: Mapping[ChannelId, Subpartition],
        *,
        waits: bool,
        timeout_ns: int | None,
    ) -> None:
        self._id = id
        self._gate = gate
        self._subpartitions = subpartitions
        self._waits = waits
        self._timeout_ns = timeout_ns
        self._alignment = Alignment(gate.channels) if gate.channels else None
        #: Cuts to take, in order of their checkpoints.
        self._due: list[Due] = []
        #: {checkpoint: {channel: where its priority barrier came in}}, before the cut.
        self._arrivals: dict[int, dict[ChannelId, BarrierPlace]] = {}
        #: {checkpoint: {channel: when its barrier came in}}, before the cut.
        self._arrived_ns: dict[int, dict[ChannelId, int]] = {}
        #: {checkpoint: barrier}: aligned, arrived or triggered, not cut.
        self._waiting: dict[int, Barrier] = {}
        self._captures: dict[int, _Capture] = {}
        #: Checkpoints whose late barriers mean nothing any more.
        self._over: set[int] = set()

    # --- barriers ---------------------------------------------------------------------------------------------

    def triggered(self, barrier: Barrier, now_ns: int) -> None:
        """A source is to begin the checkpoint."""
        if barrier.mode is CheckpointMode.ALIGNED and self._is_late(barrier, now_ns):
            barrier = _unaligned(barrier)
        if barrier.mode is CheckpointMode.ALIGNED and self._timeout_ns is not None:
            self._waiting[barrier.checkpoint] = barrier
        self._due.append(Due(barrier, now_ns))

    def arrived(self, channel: InputChannel, position: int, barrier: Barrier, now_ns: int) -> None:
        """A barrier came in over `channel`, at the end of what has come so far."""
        checkpoint = barrier.checkpoint
        capture = self._captures.get(checkpoint)
        overtakes = barrier.mode is CheckpointMode.UNALIGNED or self._is_late(barrier, now_ns)
        if checkpoint in self._over:
            channel.overtaken_by(position)
        elif capture is not None:
            channel.overtaken_by(position)
            capture.arrived_ns[channel.channel] = now_ns
            self._close(capture, channel)
        elif overtakes:
            self._arrived_ns.setdefault(checkpoint, {})[channel.channel] = now_ns
            arrivals = self._arrivals.setdefault(checkpoint, {})
            arrivals[channel.channel] = channel.overtaken_by(position)
            self._make_due(_unaligned(barrier), now_ns)
        else:
            self._arrived_ns.setdefault(checkpoint, {})[channel.channel] = now_ns
            if barrier.mode is CheckpointMode.ALIGNED and self._timeout_ns is not None:
                self._waiting[checkpoint] = barrier
            channel.event_arrived(position, barrier)

    def reached(
        self, channel: InputChannel, barrier: Barrier, now_ns: int, effects: list[SubtaskEffect]
    ) -> None:
        """An aligned (or at-least-once) barrier is at the head of `channel`; all before it is committed."""
        assert self._alignment is not None, f"{self._id}: a barrier at a source"
        outcome = self._alignment.barrier(channel.channel, barrier, now_ns)
        for checkpoint in outcome.subsumed:
            reason = f"barrier {barrier.checkpoint} came before all of {checkpoint}'s"
            effects.append(DeclineCheckpoint(self._id, checkpoint, reason))
            self._forget(checkpoint)
        for unblocked in outcome.unblock:
            self._gate.channels[unblocked].blocked = False
        if outcome.block is not None:
            self._gate.channels[outcome.block].blocked = True
        if outcome.aligned is not None:
            arrived_ns = self._arrived_ns.get(barrier.checkpoint, {})
            since_ns = max(arrived_ns.values(), default=now_ns)
            self._due.append(Due(barrier, since_ns, outcome.aligned.alignment_ns))

    def buffer_arrived(self, channel: ChannelId, buffer: Buffer) -> None:
        """Records came in; those before a barrier that is still missing belong to its checkpoint."""
        for capture in self._captures.values():
            if channel in capture.pending:
                capture.inputs[channel].append(buffer)

    def watermark_arrived(self, channel: ChannelId, position: int, watermark: Watermark) -> None:
        """The same for a watermark."""
        for capture in self._captures.values():
            if channel in capture.pending and watermark.time_ns > MIN_WATERMARK:
                capture.watermarks[channel].append((position, watermark.time_ns))

    def sent(self, channel: ChannelId, barrier: Barrier, now_ns: int) -> None:
        """The barrier has left the output queue; it can overtake nothing there any more."""
        capture = self._captures.get(barrier.checkpoint)
        if capture is not None and channel in capture.outgoing:
            capture.outgoing.discard(channel)
            capture.left = (channel, now_ns)

    def cancelled(self, checkpoint: int) -> None:
        """The coordinator gave the checkpoint up."""
        self._forget(checkpoint)
        self._over.add(checkpoint)

    def completed(self, checkpoint: int) -> None:
        """The checkpoint is durable; nothing older can matter."""
        self._over = {n for n in self._over if n > checkpoint - _REMEMBERED}
        self._arrived_ns = {n: ns for n, ns in self._arrived_ns.items() if n > checkpoint}

    # --- time -------------------------------------------------------------------------------------------------

    def next_deadline_ns(self) -> int | None:
        """When the oldest aligned checkpoint under way becomes unaligned."""
        if self._timeout_ns is None:
            return None
        if not self._waiting and not self._captures:
            return None
        created = [barrier.created_ns for barrier in self._waiting.values()]
        created += [c.due.barrier.created_ns for c in self._captures.values() if c.outgoing]
        return min(created) + self._timeout_ns if created else None

    def time_passed(self, now_ns: int) -> None:
        """Let what is late overtake, at inputs and outputs."""
        for barrier in list(self._waiting.values()):
            if self._is_late(barrier, now_ns):
                self._make_due(_unaligned(barrier), now_ns)
        for capture in self._captures.values():
            if capture.outgoing and self._is_late(capture.due.barrier, now_ns):
                for channel in sorted(capture.outgoing):
                    overtaken = self._subpartitions[channel].hasten(capture.due.barrier.checkpoint)
                    if overtaken is not None:
                        capture.outputs[channel] = overtaken
                        capture.left = (channel, now_ns)
                capture.outgoing.clear()

    # --- the cut ----------------------------------------------------------------------------------------------

    def next_due(self, *, running: bool) -> Due | None:
        """The cut to take now, removed from the list; None: none is due, or it must wait for the running work."""
        for place, due in enumerate(self._due):
            overtakes = due.barrier.mode is CheckpointMode.UNALIGNED
            if not running or (overtakes and not self._waits):
                return self._due.pop(place)
        return None

    def take(
        self,
        due: Due,
        *,
        finished: bool,
        watermark_ns: int,
        replay: tuple[ChannelStateHandle, ...],
        now_ns: int,
    ) -> None:
        """Cut here: note positions, capture in-flight data, send the barrier on. The snapshot follows (`freeze`)."""
        barrier = due.barrier
        capture = _Capture(
            due,
            now_ns,
            received=tuple(_received(c) for c in self._gate.channels.values()),
            sent=tuple(
                ChannelPosition(*s.channel, position=s.tail, ended=finished)
                for s in self._subpartitions.values()
            ),
            replay=replay,
            finished=finished,
            arrived_ns=self._arrived_ns.pop(barrier.checkpoint, {}),
            watermark_ns=watermark_ns,
        )
        self._captures[barrier.checkpoint] = capture
        self._waiting.pop(barrier.checkpoint, None)
        if barrier.mode is CheckpointMode.UNALIGNED:
            self._capture_inputs(capture, self._arrivals.pop(barrier.checkpoint, {}))
            for channel, subpartition in self._subpartitions.items():
                capture.outputs[channel] = subpartition.overtake(barrier)
            return
        assert not replay, f"{self._id}: an aligned cut with records left to replay"
        for subpartition in self._subpartitions.values():
            subpartition.append_event(barrier)
        if barrier.mode is CheckpointMode.ALIGNED and self._timeout_ns is not None:
            capture.outgoing = set(self._subpartitions)

    def freeze(
        self, checkpoint: int, transactions: tuple[tuple[str, Transaction], ...], now_ns: int
    ) -> bool:
        """The operators' snapshot is taken now; `transactions` are not known to be committed. False: it was cancelled."""
        capture = self._captures.get(checkpoint)
        if capture is None:
            return False
        capture.frozen_ns = now_ns
        capture.transactions = transactions
        return True

    def flush(self, now_ns: int, effects: list[SubtaskEffect]) -> None:
        """Hand over the cuts that have become complete."""
        if not self._captures:
            return
        for checkpoint, capture in list(self._captures.items()):
            if capture.frozen_ns is not None and not capture.pending and not capture.outgoing:
                del self._captures[checkpoint]
                effects.append(CutTaken(self._cut_of(capture, now_ns)))

    @property
    def open(self) -> bool:
        """A cut was taken and is not handed over."""
        return bool(self._captures)

    def describe(self) -> str:
        """The whole state as stable text."""
        alignment = "source" if self._alignment is None else self._alignment.describe()
        captures = " ".join(
            f"{number}:{len(c.pending)}+{len(c.outgoing)}" for number, c in self._captures.items()
        )
        due = [due.barrier.checkpoint for due in self._due]
        return f"{alignment} due={due} captures=[{captures}]"

    # --- helpers ----------------------------------------------------------------------------------------------

    def _is_late(self, barrier: Barrier, now_ns: int) -> bool:
        if self._timeout_ns is None or barrier.mode is not CheckpointMode.ALIGNED:
            return False
        return now_ns >= barrier.created_ns + self._timeout_ns

    def _make_due(self, barrier: Barrier, now_ns: int) -> None:
        """Due once: the aligned entry of the same checkpoint, if there is one, turns unaligned."""
        self._waiting.pop(barrier.checkpoint, None)
        for place, due in enumerate(self._due):
            if due.barrier.checkpoint == barrier.checkpoint:
                self._due[place] = replace(due, barrier=barrier)
                return
        self._due.append(Due(barrier, now_ns))
        self._due.sort(key=lambda due: due.barrier.checkpoint)

    def _capture_inputs(
        self, capture: _Capture, arrivals: Mapping[ChannelId, BarrierPlace]
    ) -> None:
        checkpoint = capture.due.barrier.checkpoint
        delivered: frozenset[ChannelId] = frozenset()
        if self._alignment is not None:
            delivered = self._alignment.delivered(checkpoint)
            for unblocked in self._alignment.cancel(checkpoint):
                self._gate.channels[unblocked].blocked = False
        for id, channel in self._gate.channels.items():
            if id in delivered:
                continue
            come = arrivals.get(id) or channel.remove_barrier(checkpoint)
            if come is None:
                capture.pending.add(id)
                capture.inputs[id] = list(channel.captured(channel.arrived))
                capture.watermarks[id] = list(channel.queued_watermarks)
            else:
                capture.inputs[id] = list(channel.captured(come.position))
                capture.watermarks[id] = list(come.watermarks)
                if come.ended and not channel.ended:
                    capture.input_ends.add(id)

    def _close(self, capture: _Capture, channel: InputChannel) -> None:
        """The missing barrier of `channel` has come: what follows it is not of this checkpoint."""
        assert channel.channel in capture.pending, f"{channel.channel}: a second barrier"
        capture.pending.discard(channel.channel)
        ended = {ChannelId(p.edge, p.producer, p.consumer) for p in capture.received if p.ended}
        if channel.end_arrived and channel.channel not in ended:
            capture.input_ends.add(channel.channel)

    def _forget(self, checkpoint: int) -> None:
        self._due = [due for due in self._due if due.barrier.checkpoint != checkpoint]
        self._arrivals.pop(checkpoint, None)
        self._arrived_ns.pop(checkpoint, None)
        self._waiting.pop(checkpoint, None)
        self._captures.pop(checkpoint, None)
        if self._alignment is not None:
            for channel in self._alignment.cancel(checkpoint):
                self._gate.channels[channel].blocked = False

    def _cut_of(self, capture: _Capture, now_ns: int) -> Cut:
        barrier = capture.due.barrier
        first = {ChannelId(p.edge, p.producer, p.consumer): p.position for p in capture.received}
        runs = [
            CapturedRun(
                channel,
                "input",
                first[channel],
                tuple(buffers),
                channel in capture.input_ends,
                tuple(capture.watermarks[channel]),
            )
            for channel, buffers in sorted(capture.inputs.items())
        ]
        runs += [
            CapturedRun(
                channel, "output", passed.first, passed.buffers, passed.ended, passed.watermarks
            )
            for channel, passed in sorted(capture.outputs.items())
        ]
        alignment_ns = capture.due.alignment_ns
        if barrier.mode is CheckpointMode.UNALIGNED:
            alignment_ns = now_ns - capture.taken_ns
        return Cut(
            subtask=self._id,
            checkpoint=barrier.checkpoint,
            finished=capture.finished,
            received=capture.received,
            sent=capture.sent,
            transactions=capture.transactions,
            inflight=tuple(run for run in runs if run.buffers or run.ended or run.watermarks),
            replay=capture.replay,
            start_delay_ns=max(0, capture.taken_ns - capture.due.alignment_ns - barrier.created_ns),
            alignment_ns=alignment_ns,
            created_ns=barrier.created_ns,
            waited=_waited(capture),
            watermark_ns=capture.watermark_ns,
        )


def _waited(capture: _Capture) -> tuple[Waited, ...]:
    """What the cut waited for, longest first; what took no time is left out."""
    taken_ns = capture.taken_ns
    waited = [Waited("work", None, taken_ns - capture.due.since_ns)]
    if capture.frozen_ns is not None:
        waited.append(Waited("pre-commit", None, capture.frozen_ns - taken_ns))
    if capture.arrived_ns:
        last_ns, last = max((ns, channel) for channel, ns in capture.arrived_ns.items())
        waited.append(Waited("barrier", last, last_ns - min(capture.arrived_ns.values())))
    if capture.left is not None:
        channel, left_ns = capture.left
        waited.append(Waited("output", channel, left_ns - taken_ns))
    return tuple(sorted((w for w in waited if w.held_ns > 0), key=lambda w: -w.held_ns))


def _received(channel: InputChannel) -> ChannelPosition:
    return ChannelPosition(
        *channel.channel,
        position=channel.committed,
        ended=channel.ended,
        watermark=channel.watermark_ns,
        idle=channel.idle,
    )


def _unaligned(barrier: Barrier) -> Barrier:
    return Barrier(barrier.checkpoint, CheckpointMode.UNALIGNED, barrier.created_ns)
