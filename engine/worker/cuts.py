"""The cuts of one subtask: which barriers have come, when a snapshot is due, and what goes on from there (`capture.py`).

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
from dataclasses import replace

from headrace.channels.alignment import Alignment
from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.events import Barrier, CheckpointMode, Watermark
from headrace.channels.gate import BarrierPlace, Gate, InputChannel
from headrace.channels.subpartition import Subpartition
from headrace.inflight.handle import ChannelStateHandle
from headrace.recovery.metadata import ChannelPosition

from ..contract.operators import Transaction
from .capture import Capture, Due
from .subtask_events import CutTaken, DeclineCheckpoint, SubtaskEffect, SubtaskId

#: An aligned barrier may stand behind data while so many newer checkpoints overtake it; then it still means nothing.
_REMEMBERED = 10_000


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
        self._captures: dict[int, Capture] = {}
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
            capture.barrier_arrived(channel, now_ns)
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
            capture.buffer_arrived(channel, buffer)

    def watermark_arrived(self, channel: ChannelId, position: int, watermark: Watermark) -> None:
        """The same for a watermark."""
        for capture in self._captures.values():
            capture.watermark_arrived(channel, position, watermark)

    def sent(self, channel: ChannelId, barrier: Barrier, now_ns: int) -> None:
        """The barrier has left the output queue; it can overtake nothing there any more."""
        capture = self._captures.get(barrier.checkpoint)
        if capture is not None:
            capture.barrier_left(channel, now_ns)

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
                capture.hasten(self._subpartitions, now_ns)

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
        capture = Capture(
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
            if capture.complete:
                del self._captures[checkpoint]
                effects.append(CutTaken(capture.cut(self._id, now_ns)))

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

    def _capture_inputs(self, capture: Capture, arrivals: Mapping[ChannelId, BarrierPlace]) -> None:
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
                capture.barrier_is_missing(channel)
            else:
                capture.barrier_was_there(channel, come)

    def _forget(self, checkpoint: int) -> None:
        self._due = [due for due in self._due if due.barrier.checkpoint != checkpoint]
        self._arrivals.pop(checkpoint, None)
        self._arrived_ns.pop(checkpoint, None)
        self._waiting.pop(checkpoint, None)
        self._captures.pop(checkpoint, None)
        if self._alignment is not None:
            for channel in self._alignment.cancel(checkpoint):
                self._gate.channels[channel].blocked = False


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
