"""The cuts of one subtask: each checkpoint from its first barrier until its cut is complete.

Aligned: the barrier is queued like data, blocks its channel when it is reached, and the cut is due
when every channel has reached it.
Unaligned: the cut is due when the first barrier *arrives*. The barrier goes to the head of every
output. Captured are the records that it passes there, and the records that the inputs hold or still
bring before their own barrier. The running work is cut *before*: its input is captured, too. Only a
subtask with outside effects waits for the end of its running work.
Aligned with a timeout: aligned until the deadline, unaligned from then on, at the inputs (by the
clock, or when a late barrier comes) and at the outputs (a barrier that still stands behind data
overtakes). The checkpoint's number makes this one cut, in whatever order barriers come.
At the head of a loop, in the modes that align: alignment is over the entries alone. From the cut on
the records of back-edges are captured up to their own barrier, which the cut itself has let into
the loop. So the in-flight data of a back-edge is the downstream log of ABS, and a restored head
replays it. What it has left to replay of such data belongs to the next cut, aligned or not.

Source: ABS (Carbone et al. 2015), Algorithm 1, and for loops Algorithm 2; FLIP-76, "unaligned
checkpoints". Deviations: the cut is before the running work; every edge can be unaligned. Of
Algorithm 2: a back-edge whose barrier comes before the cut, from a subtask of the loop that another
head's barrier has reached first, is blocked until the cut; ABS goes on reading it, and the head
would be ahead of the sender's cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.channels.alignment import Alignment
from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.events import MIN_WATERMARK, Barrier, CheckpointMode, Watermark
from headrace.channels.gate import BarrierPlace, Gate, InputChannel
from headrace.channels.spilled import Records, RunFile, with_spilled
from headrace.channels.subpartition import Overtaken, Subpartition
from headrace.inflight.handle import ChannelStateHandle
from headrace.inflight.replay_ledger import ReplayCount
from headrace.recovery.metadata import ChannelPosition

from ..contract.execution import SubtaskId
from ..contract.operators import Transaction
from .subtask_events import CapturedRun, Cut, CutTaken, DeclineCheckpoint, Hold, SubtaskEffect

#: An aligned barrier may stand behind data while so many newer checkpoints overtake it; then it
#: still means nothing.
_REMEMBERED = 10_000


@dataclass(slots=True)
class Capture:
    """One checkpoint at a subtask, from its first barrier until its cut is complete.

    The capture is first *due*, then *taken*, then *complete*: the operators' snapshot is frozen,
    and no barrier is missing at the inputs or outputs.

    Attributes:
        barrier: turns unaligned when a barrier overtakes.
        due_ns: since when only the subtask's own work is in the way; None: the cut is not due yet.
        taken_ns: None: the cut was not taken yet.
        frozen_ns: when the operators' snapshot was taken; None: it was not yet.
        arrived_ns: {channel: when its barrier came in}.
        delivered: channels whose records before the barrier are committed at the cut; of an aligned
            cut only back-edges.
        places: {channel: where its overtaking barrier came in}, until the cut is taken.
        pending: inputs whose barrier has not come; their records belong to the checkpoint.
        outgoing: outputs in which the (aligned) barrier may still be made to overtake.
        inputs: {channel: records before its barrier, from the cut on}.
        input_ends: channels whose end of input came before their barrier and after the cut's
            position.
        watermarks: {channel: (position, event time) before its barrier, from the cut on}.
        outputs: {channel: records that the barrier passed}.
        left: the output that the barrier was the last to leave, and when.
        watermark_ns: event time at the operators.
    """

    barrier: Barrier
    due_ns: int | None = None
    alignment_ns: int = 0
    taken_ns: int | None = None
    received: tuple[ChannelPosition, ...] = ()
    sent: tuple[ChannelPosition, ...] = ()
    replay: tuple[ChannelStateHandle, ...] = ()
    replayed: tuple[ReplayCount, ...] = ()
    finished: bool = False
    watermark_ns: int = MIN_WATERMARK
    frozen_ns: int | None = None
    transactions: tuple[tuple[str, Transaction], ...] = ()
    arrived_ns: dict[ChannelId, int] = field(default_factory=dict)
    delivered: frozenset[ChannelId] = frozenset()
    places: dict[ChannelId, BarrierPlace] = field(default_factory=dict)
    pending: set[ChannelId] = field(default_factory=set)
    outgoing: set[ChannelId] = field(default_factory=set)
    inputs: dict[ChannelId, list[Records]] = field(default_factory=dict)
    input_ends: set[ChannelId] = field(default_factory=set)
    watermarks: dict[ChannelId, list[tuple[int, int]]] = field(default_factory=dict)
    outputs: dict[ChannelId, Overtaken] = field(default_factory=dict)
    left: tuple[ChannelId, int] | None = None

    @property
    def is_due(self) -> bool:
        """The cut should be taken as soon as it can be."""
        return self.due_ns is not None and self.taken_ns is None

    @property
    def may_overtake(self) -> bool:
        """The barrier is aligned, and turns unaligned when it is late."""
        is_aligned = self.barrier.mode is CheckpointMode.ALIGNED
        return is_aligned and (self.taken_ns is None or bool(self.outgoing))

    @property
    def complete(self) -> bool:
        """Nothing of this checkpoint can come any more."""
        return self.frozen_ns is not None and not self.pending and not self.outgoing

    def overtake(self, now_ns: int) -> None:
        """Turn unaligned: the cut is due at once."""
        self.barrier = Barrier(
            self.barrier.checkpoint, CheckpointMode.UNALIGNED, self.barrier.created_ns
        )
        if self.due_ns is None:
            self.due_ns = now_ns

    def barrier_was_there(self, channel: InputChannel, place: BarrierPlace) -> None:
        """The barrier of `channel` came before the cut; capture the records before it."""
        id = channel.channel
        self.inputs[id] = list(channel.captured(place.position))
        self.watermarks[id] = list(place.watermarks)
        if place.ended and not channel.ended:
            self.input_ends.add(id)

    def barrier_is_missing(self, channel: InputChannel) -> None:
        """The barrier of `channel` is to come; capture all records until then."""
        id = channel.channel
        self.pending.add(id)
        self.inputs[id] = list(channel.captured(channel.arrived))
        self.watermarks[id] = list(channel.queued_watermarks)

    def barrier_arrived(self, channel: InputChannel, now_ns: int) -> None:
        """The missing barrier of `channel` has come: later records are not of this checkpoint."""
        assert channel.channel in self.pending, f"{channel.channel}: a second barrier"
        self.arrived_ns[channel.channel] = now_ns
        self.pending.discard(channel.channel)
        ended = {ChannelId(p.edge, p.producer, p.consumer) for p in self.received if p.ended}
        if channel.end_arrived and channel.channel not in ended:
            self.input_ends.add(channel.channel)

    def buffer_arrived(self, channel: ChannelId, buffer: Buffer) -> None:
        """Records came in over `channel`."""
        if channel in self.pending:
            self.inputs[channel].append(buffer)

    def watermark_arrived(self, channel: ChannelId, position: int, watermark: Watermark) -> None:
        """A watermark came in over `channel`. Idleness is not kept: the producer will repeat it."""
        if channel in self.pending and watermark.time_ns > MIN_WATERMARK:
            self.watermarks[channel].append((position, watermark.time_ns))

    def barrier_left(self, channel: ChannelId, now_ns: int) -> None:
        """The (aligned) barrier has left the output `channel`, and can overtake no data there."""
        if channel in self.outgoing:
            self.outgoing.discard(channel)
            self.left = (channel, now_ns)

    def hasten(self, subpartitions: Mapping[ChannelId, Subpartition], now_ns: int) -> None:
        """Let the (aligned) barrier overtake wherever it still stands behind data."""
        for channel in sorted(self.outgoing):
            overtaken = subpartitions[channel].hasten(self.barrier.checkpoint)
            if overtaken is not None:
                self.outputs[channel] = overtaken
                self.left = (channel, now_ns)
        self.outgoing.clear()

    def cut(self, subtask: SubtaskId, now_ns: int) -> Cut:
        """Hand over the complete cut."""
        assert self.taken_ns is not None, "a cut that was not taken"
        barrier, alignment_ns = self.barrier, self.alignment_ns
        if barrier.mode is CheckpointMode.UNALIGNED:
            alignment_ns = now_ns - self.taken_ns
        return Cut(
            subtask=subtask,
            checkpoint=barrier.checkpoint,
            finished=self.finished,
            received=self.received,
            sent=self.sent,
            transactions=self.transactions,
            inflight=self._inflight(),
            replay=self.replay,
            replayed=self.replayed,
            start_delay_ns=max(0, self.taken_ns - self.alignment_ns - barrier.created_ns),
            alignment_ns=alignment_ns,
            created_ns=barrier.created_ns,
            holds=self._holds(self.taken_ns),
            watermark_ns=self.watermark_ns,
        )

    def _inflight(self) -> tuple[CapturedRun, ...]:
        first = {ChannelId(p.edge, p.producer, p.consumer): p.position for p in self.received}
        runs = [
            CapturedRun(
                channel,
                "input",
                first[channel],
                tuple(buffers),
                channel in self.input_ends,
                tuple(self.watermarks[channel]),
            )
            for channel, buffers in sorted(self.inputs.items())
        ]
        runs += [
            CapturedRun(
                channel, "output", passed.first, passed.buffers, passed.ended, passed.watermarks
            )
            for channel, passed in sorted(self.outputs.items())
        ]
        return tuple(run for run in runs if run.buffers or run.ended or run.watermarks)

    def _holds(self, taken_ns: int) -> tuple[Hold, ...]:
        """List the holds of the cut, longest first, without those that took no time."""
        holds = [Hold("work", None, taken_ns - (self.due_ns or 0))]
        if self.frozen_ns is not None:
            holds.append(Hold("pre-commit", None, self.frozen_ns - taken_ns))
        if self.arrived_ns:
            last_ns, last = max((ns, channel) for channel, ns in self.arrived_ns.items())
            holds.append(Hold("barrier", last, last_ns - min(self.arrived_ns.values())))
        if self.left is not None:
            channel, left_ns = self.left
            holds.append(Hold("output", channel, left_ns - taken_ns))
        return tuple(sorted((h for h in holds if h.held_ns > 0), key=lambda h: -h.held_ns))


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
        self._feedback = {id: c for id, c in gate.channels.items() if c.feedback}
        self._alignment = Alignment(gate.channels, self._feedback) if gate.channels else None
        #: The newest checkpoint whose cut was handed over.
        self.newest = 0
        #: {checkpoint: its capture}; removed when complete or given up.
        self._captures: dict[int, Capture] = {}
        #: Checkpoints whose late barriers mean nothing any more.
        self._over: set[int] = set()

    # --- barriers ---------------------------------------------------------------------------------

    def triggered(self, barrier: Barrier, now_ns: int) -> None:
        """A source is to begin the checkpoint."""
        capture = self._captures[barrier.checkpoint] = Capture(barrier, due_ns=now_ns)
        if self._is_late(barrier, now_ns):
            capture.overtake(now_ns)

    def arrived(self, channel: InputChannel, position: int, barrier: Barrier, now_ns: int) -> None:
        """A barrier came in over `channel`, behind all that has come so far."""
        checkpoint = barrier.checkpoint
        if checkpoint in self._over:
            channel.overtaken_by(position)
            return
        capture = self._captures.get(checkpoint)
        if capture is None:
            capture = self._captures[checkpoint] = Capture(barrier)
        if capture.taken_ns is not None:
            channel.overtaken_by(position)
            capture.barrier_arrived(channel, now_ns)
            return
        capture.arrived_ns[channel.channel] = now_ns
        if barrier.mode is CheckpointMode.UNALIGNED or self._is_late(barrier, now_ns):
            capture.places[channel.channel] = channel.overtaken_by(position)
            capture.overtake(now_ns)
        else:
            channel.event_arrived(position, barrier)

    def reached(
        self, channel: InputChannel, barrier: Barrier, now_ns: int, effects: list[SubtaskEffect]
    ) -> None:
        """A queued barrier is at the head of `channel`; all before it is committed."""
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
            capture = self._captures.setdefault(barrier.checkpoint, Capture(barrier))
            capture.due_ns = max(capture.arrived_ns.values(), default=now_ns)
            capture.alignment_ns = outcome.aligned.alignment_ns
            capture.delivered = outcome.aligned.early

    def buffer_arrived(self, channel: ChannelId, buffer: Buffer) -> None:
        """Records came in; before a missing barrier they belong to the checkpoint."""
        for capture in self._captures.values():
            capture.buffer_arrived(channel, buffer)

    def watermark_arrived(self, channel: ChannelId, position: int, watermark: Watermark) -> None:
        """A watermark came in; see `buffer_arrived`."""
        for capture in self._captures.values():
            capture.watermark_arrived(channel, position, watermark)

    def spilled(
        self, channel: ChannelId, file: RunFile, first: int, end: int
    ) -> list[tuple[int, list[Records]]]:
        """The records `[first, end)` lie in `file`, too: open cuts let go of the memory.

        Returns the (checkpoint, records captured over `channel`) of these cuts.
        """
        found: list[tuple[int, list[Records]]] = []
        for checkpoint, capture in self._captures.items():
            if channel in capture.inputs:
                named: list[Records] = with_spilled(capture.inputs[channel], file, first, end)
                capture.inputs[channel] = named
                found.append((checkpoint, named))
        return found

    def sent(self, channel: ChannelId, barrier: Barrier, now_ns: int) -> None:
        """The barrier has left the output queue, and can overtake no data there."""
        capture = self._captures.get(barrier.checkpoint)
        if capture is not None:
            capture.barrier_left(channel, now_ns)

    def cancelled(self, checkpoint: int) -> None:
        """The coordinator gave the checkpoint up."""
        self._forget(checkpoint)
        self._over.add(checkpoint)

    def completed(self, checkpoint: int) -> None:
        """The checkpoint is durable.

        An older checkpoint goes on here if its cut is due, or may still turn unaligned.
        """
        self._over = {n for n in self._over if n > checkpoint - _REMEMBERED}
        self._captures = {
            number: capture
            for number, capture in self._captures.items()
            if number > checkpoint
            or capture.due_ns is not None
            or (self._timeout_ns is not None and capture.may_overtake)
        }

    # --- time -------------------------------------------------------------------------------------

    def next_deadline_ns(self) -> int | None:
        """When an aligned checkpoint becomes unaligned."""
        if self._timeout_ns is None or not self._captures:
            return None
        created = [c.barrier.created_ns for c in self._captures.values() if c.may_overtake]
        return min(created) + self._timeout_ns if created else None

    def time_passed(self, now_ns: int) -> None:
        """Let late barriers overtake, at inputs and outputs."""
        for capture in self._captures.values():
            if not capture.may_overtake or not self._is_late(capture.barrier, now_ns):
                continue
            if capture.taken_ns is None:
                capture.overtake(now_ns)
            else:
                capture.hasten(self._subpartitions, now_ns)

    # --- the cut ----------------------------------------------------------------------------------

    def next_due(self, *, running: bool) -> Capture | None:
        """Return the cut to take now; None: none is due, or it must wait for the running work."""
        if not self._captures:
            return None
        for _, capture in sorted(self._captures.items()):
            if capture.is_due:
                overtakes = capture.barrier.mode is CheckpointMode.UNALIGNED
                if not running or (overtakes and not self._waits):
                    return capture
        return None

    def take(
        self,
        capture: Capture,
        *,
        finished: bool,
        watermark_ns: int,
        replay: tuple[ChannelStateHandle, ...],
        replayed: tuple[ReplayCount, ...],
        now_ns: int,
    ) -> None:
        """Cut here: note positions, capture in-flight data, send the barrier on.

        `freeze` follows.
        """
        assert capture.is_due, f"{self._id}: a cut that is not due"
        capture.taken_ns = now_ns
        capture.finished, capture.watermark_ns = finished, watermark_ns
        capture.replay, capture.replayed = replay, replayed
        capture.received = tuple(_received(c) for c in self._gate.channels.values())
        capture.sent = tuple(
            ChannelPosition(*s.channel, position=s.tail, ended=finished)
            for s in self._subpartitions.values()
        )
        barrier = capture.barrier
        if barrier.mode is CheckpointMode.UNALIGNED:
            if self._alignment is not None:
                capture.delivered = self._alignment.delivered(barrier.checkpoint)
                self._unblock(barrier.checkpoint)
            self._capture_inputs(capture, self._gate.channels)
            for channel, subpartition in self._subpartitions.items():
                capture.outputs[channel] = subpartition.overtake(barrier)
            return
        self._capture_inputs(capture, self._feedback)
        back_edges = {channel.edge for channel in self._feedback}
        left = [handle for handle in replay if handle.edge not in back_edges]
        assert not left, f"{self._id}: an aligned cut with records left to replay"
        for subpartition in self._subpartitions.values():
            subpartition.append_event(barrier)
        if barrier.mode is CheckpointMode.ALIGNED and self._timeout_ns is not None:
            capture.outgoing = set(self._subpartitions)

    def freeze(
        self, checkpoint: int, transactions: tuple[tuple[str, Transaction], ...], now_ns: int
    ) -> bool:
        """Take the operators' snapshot now. False: the checkpoint was cancelled.

        `transactions`: pre-committed, and not known to be committed.
        """
        capture = self._captures.get(checkpoint)
        if capture is None or capture.taken_ns is None:
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
                self.newest = max(checkpoint, self.newest)
                effects.append(CutTaken(capture.cut(self._id, now_ns)))

    @property
    def open(self) -> bool:
        """A cut was taken and is not handed over."""
        return any(capture.taken_ns is not None for capture in self._captures.values())

    def describe(self) -> str:
        """The whole state as stable text."""
        alignment = "source" if self._alignment is None else self._alignment.describe()
        captures = " ".join(
            f"{number}:{len(c.pending)}+{len(c.outgoing)}"
            for number, c in self._captures.items()
            if c.taken_ns is not None
        )
        due = [number for number, capture in sorted(self._captures.items()) if capture.is_due]
        return f"{alignment} due={due} captures=[{captures}]"

    # --- helpers ----------------------------------------------------------------------------------

    def _is_late(self, barrier: Barrier, now_ns: int) -> bool:
        if self._timeout_ns is None or barrier.mode is not CheckpointMode.ALIGNED:
            return False
        return now_ns >= barrier.created_ns + self._timeout_ns

    def _capture_inputs(self, capture: Capture, channels: Mapping[ChannelId, InputChannel]) -> None:
        checkpoint = capture.barrier.checkpoint
        places, capture.places = capture.places, {}
        for id, channel in channels.items():
            if id in capture.delivered:
                continue
            place = places.get(id) or channel.remove_barrier(checkpoint)
            if place is None:
                capture.barrier_is_missing(channel)
            else:
                capture.barrier_was_there(channel, place)

    def _forget(self, checkpoint: int) -> None:
        self._captures.pop(checkpoint, None)
        self._unblock(checkpoint)

    def _unblock(self, checkpoint: int) -> None:
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
