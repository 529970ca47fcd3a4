"""The subtask machine: one parallel instance of a task, from its gate to its subpartitions.

It never blocks in mid-step: it takes new input only when every subpartition has room, and what one piece of work produces is appended
whole. So it can always answer a barrier. User code is not run here but asked for (`RunWork`), one piece at a time; until its
`WorkDone` the records it works on count as not yet consumed.

What a cut names is always the *committed* position of each input and the tail of each output. Aligned cuts are taken between two pieces of work,
because the barrier is looked at only when no work runs.

A finished subtask stays and relays barriers, so that the checkpoints after the end of input need no rules of their own.

Source: ABS (Carbone et al. 2015), Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from headrace.channels.alignment import Aligned, Alignment
from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.events import Barrier, EndOfInput
from headrace.channels.gate import Gate, GateInput, InputChannel
from headrace.channels.subpartition import Subpartition
from headrace.recovery.metadata import ChannelPosition

from ..operators.base import SourceStatus, Transaction
from ..operators.chain import Outputs
from .pace import Pace
from .work import (
    BufferArrived,
    CheckpointCancelled,
    CheckpointCompleted,
    CheckpointTriggered,
    CommitWork,
    CreditGranted,
    Cut,
    DeadlineReached,
    DeclineCheckpoint,
    EventArrived,
    FinishWork,
    GrantCredit,
    PollWork,
    PrecommitWork,
    ProcessWork,
    RunWork,
    SendBuffer,
    SendEvent,
    SubtaskEffect,
    SubtaskEvent,
    SubtaskFinished,
    SubtaskId,
    TakeSnapshot,
    Work,
    WorkDone,
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one subtask. All are soft by one buffer or one piece of work.

    Attributes:
        buffer_bytes: queued slices are merged up to this size when they are sent.
        window_bytes: credit per channel.
        queue_bytes_max: a subpartition that holds this much takes the room for new work away.
        work_rows_max: rows of one piece of work.
        work_target_ns: pieces are cut so that they aim at this time.
    """

    buffer_bytes: int
    window_bytes: int
    queue_bytes_max: int
    work_rows_max: int
    work_target_ns: int


@dataclass(frozen=True, slots=True)
class SubtaskSpec:
    """What a subtask is told when it is built.

    Attributes:
        inputs: channels by input port.
        outputs: by output edge, the channels to its consumers, in the partitioner's order of targets.
        received, sent: where to go on, by channel; a channel that is not named starts at 0.
    """

    id: SubtaskId
    is_source: bool
    is_sink: bool
    inputs: Sequence[Sequence[ChannelId]]
    outputs: Sequence[Sequence[ChannelId]]
    limits: Limits
    finished: bool
    received: Mapping[ChannelId, ChannelPosition]
    sent: Mapping[ChannelId, ChannelPosition]


class Subtask:
    """Machine of one subtask; `start` once, then `step` for every event."""

    def __init__(self, spec: SubtaskSpec) -> None:
        assert spec.is_source == (not spec.inputs), (
            f"{spec.id}: sources, and only they, have no input"
        )
        self.id = spec.id
        self._spec = spec
        self._limits = spec.limits
        self._gate = Gate(
            _input_channel(spec, channel, port)
            for port, channels in enumerate(spec.inputs)
            for channel in channels
        )
        self._alignment = Alignment(self._gate.channels) if self._gate.channels else None
        self._outputs = [
            [
                Subpartition(
                    channel,
                    position=_position(spec.sent, channel),
                    window_bytes=spec.limits.window_bytes,
                )
                for channel in channels
            ]
            for channels in spec.outputs
        ]
        self._subpartitions = {s.channel: s for edge in self._outputs for s in edge}
        self._pace = Pace(spec.limits.work_target_ns, spec.limits.work_rows_max)
        self._finished = spec.finished
        #: The running work and its number; None while idle.
        self._running: Work | None = None
        self._given: tuple[GateInput, ...] = ()
        self._work = 0
        #: A source that was told to wait polls again at this time.
        self._poll_at_ns: int | None = None
        self._source_ended = False
        #: Checkpoints to cut as soon as no work runs (sources only); at most a few.
        self._triggered: list[Barrier] = []
        #: The cut whose pre-commit runs.
        self._precommitting: Aligned | None = None
        #: (checkpoint, sink, transaction), pre-committed and not known to be committed.
        self._transactions: list[tuple[int, str, Transaction]] = []
        self._now_ns = 0

    # --- the five verbs ---------------------------------------------------------------------------------------

    def start(self, now_ns: int) -> list[SubtaskEffect]:
        """Begin: everything is restored and all peers can be reached."""
        self._now_ns = now_ns
        self._pace.start(now_ns)
        effects: list[SubtaskEffect] = []
        self._advance(effects)
        return effects

    def step(self, event: SubtaskEvent, now_ns: int) -> list[SubtaskEffect]:
        """Take one event; the effects are to be performed in order (see `work.py`)."""
        self._now_ns = now_ns
        effects: list[SubtaskEffect] = []
        match event:
            case BufferArrived():
                self._gate.channels[event.channel].buffer_arrived(event.buffer)
            case EventArrived():
                channel = self._gate.channels[event.channel]
                channel.event_arrived(event.position, event.event)
            case CreditGranted():
                self._subpartitions[event.channel].grant(event.limit_bytes)
            case WorkDone():
                self._work_done(event, effects)
            case CheckpointTriggered():
                assert self._spec.is_source, f"{self.id}: only sources are triggered"
                self._triggered.append(event.barrier)
            case CheckpointCancelled():
                self._cancelled(event.checkpoint)
            case CheckpointCompleted():
                self._transactions = [t for t in self._transactions if t[0] > event.checkpoint]
            case DeadlineReached():
                self._poll_at_ns = None
            case _:
                assert_never(event)
        self._advance(effects)
        return effects

    def next_deadline_ns(self) -> int | None:
        """When a waiting source wants `DeadlineReached`."""
        return self._poll_at_ns

    def check(self) -> None:
        """Assert every invariant."""
        self._gate.check()
        for subpartition in self._subpartitions.values():
            subpartition.check()
        assert bool(self._given) == isinstance(self._running, ProcessWork), self.describe()
        assert self._precommitting is None or isinstance(self._running, PrecommitWork)

    def describe(self) -> str:
        """The whole state as stable text."""
        running = "idle" if self._running is None else type(self._running).__name__
        alignment = self._alignment.describe() if self._alignment else "source"
        lines = [f"{self.id} {running} finished={self._finished} {alignment}"]
        lines += [line for line in self._gate.describe().splitlines() if line]
        lines += [subpartition.describe() for subpartition in self._subpartitions.values()]
        return "\n".join(lines)

    def statistics(self) -> SubtaskStatistics:
        """Numbers for metrics."""
        gate = self._gate.statistics()
        return SubtaskStatistics(
            rows_in=self._pace.rows_in,
            rows_out=self._pace.rows_out,
            busy_ns=self._pace.busy_ns,
            backpressured_ns=self._pace.backpressured_ns,
            idle_ns=self._pace.idle_ns,
            input_queued_bytes=gate.queued_bytes,
            output_queued_bytes=sum(s.queued_bytes for s in self._subpartitions.values()),
            finished=self._finished,
        )

    # --- what there is to do ----------------------------------------------------------------------------------

    def _advance(self, effects: list[SubtaskEffect]) -> None:
        """Do all that can be done without waiting: due events, new work, sending."""
        while True:
            while self._running is None and self._next(effects):
                pass
            had_room = self._has_room()
            self._drain(effects)
            # What the drain made room for begins now: no later event is certain to come.
            if had_room or self._running is not None or not self._has_room():
                break
        self._pace.account(
            self._now_ns, busy=self._running is not None, backpressured=not self._has_room()
        )

    def _next(self, effects: list[SubtaskEffect]) -> bool:
        """Do one thing that is due while no work runs. False: nothing is."""
        if self._triggered:
            barrier = self._triggered.pop(0)
            self._cut(Aligned(barrier, 0), effects)
            return True
        due = self._gate.next_event()
        if due is not None:
            channel, event = due
            if isinstance(event, Barrier):
                self._barrier(channel, event, effects)
            else:
                channel.ended = True
            return True
        return self._next_work(effects)

    def _next_work(self, effects: list[SubtaskEffect]) -> bool:
        if self._finished or not self._has_room():
            return False
        if self._source_ended or (not self._spec.is_source and self._gate.ended):
            self._run(FinishWork(), effects)
            return True
        if self._spec.is_source:
            if self._poll_at_ns is not None:
                return False
            self._run(PollWork(self._pace.rows_max), effects)
            return True
        given = self._gate.next_input(self._pace.rows_max)
        if not given:
            return False
        self._given = given
        parts = tuple(part for g in given for part in g.buffer.parts)
        self._run(ProcessWork(given[0].port, parts, sum(g.buffer.rows for g in given)), effects)
        return True

    def _run(self, work: Work, effects: list[SubtaskEffect]) -> None:
        assert self._running is None, f"{self.id}: two works at once"
        self._running = work
        self._work += 1
        effects.append(RunWork(self.id, self._work, work))

    def _has_room(self) -> bool:
        limit = self._limits.queue_bytes_max
        return all(s.queued_bytes < limit for s in self._subpartitions.values())

    def _drain(self, effects: list[SubtaskEffect]) -> None:
        for subpartition in self._subpartitions.values():
            while (item := subpartition.take(self._limits.buffer_bytes)) is not None:
                if isinstance(item, Buffer):
                    effects.append(SendBuffer(subpartition.channel, item))
                else:
                    effects.append(SendEvent(subpartition.channel, item.position, item.event))

    # --- work that ended --------------------------------------------------------------------------------------

    def _work_done(self, done: WorkDone, effects: list[SubtaskEffect]) -> None:
        assert done.work == self._work, f"{self.id}: work {done.work} ended, {self._work} runs"
        work, self._running = self._running, None
        assert work is not None, f"{self.id}: work {done.work} ended twice"
        effects.append(CommitWork(self.id))
        self._append(done.outputs)
        match work:
            case ProcessWork():
                self._pace.worked(work.rows, done.rows_out, done.elapsed_ns)
                self._consumed(effects)
            case PollWork():
                self._pace.worked(done.rows_out, done.rows_out, done.elapsed_ns)
                self._polled(done)
            case FinishWork():
                self._finish(effects)
            case PrecommitWork():
                self._precommitted(work.checkpoint, done, effects)
            case _:
                assert_never(work)

    def _append(self, outputs: Outputs) -> None:
        assert not outputs or len(outputs) == len(self._outputs), (
            f"{self.id}: outputs for other edges"
        )
        for edge, batches in zip(self._outputs, outputs, strict=False):
            for target, batch, size_bytes in batches:
                edge[target].append(batch, size_bytes)

    def _consumed(self, effects: list[SubtaskEffect]) -> None:
        given, self._given = self._given, ()
        for consumed in given:
            limit_bytes = self._gate.commit(consumed)
            if limit_bytes is not None:
                effects.append(GrantCredit(consumed.channel, limit_bytes))

    def _polled(self, done: WorkDone) -> None:
        if done.status is SourceStatus.END:
            self._source_ended = True
        elif done.status is SourceStatus.IDLE:
            self._poll_at_ns = self._now_ns + max(1, done.wait_ns)

    def _finish(self, effects: list[SubtaskEffect]) -> None:
        self._finished = True
        for subpartition in self._subpartitions.values():
            subpartition.append_event(EndOfInput())
        effects.append(SubtaskFinished(self.id))

    # --- checkpoints ------------------------------------------------------------------------------------------

    def _barrier(
        self, channel: InputChannel, barrier: Barrier, effects: list[SubtaskEffect]
    ) -> None:
        assert self._alignment is not None
        outcome = self._alignment.barrier(channel.channel, barrier, self._now_ns)
        for checkpoint in outcome.subsumed:
            reason = f"barrier {barrier.checkpoint} came before all of {checkpoint}'s"
            effects.append(DeclineCheckpoint(self.id, checkpoint, reason))
        for unblocked in outcome.unblock:
            self._gate.channels[unblocked].blocked = False
        if outcome.block is not None:
            self._gate.channels[outcome.block].blocked = True
        if outcome.aligned is not None:
            self._cut(outcome.aligned, effects)

    def _cut(self, aligned: Aligned, effects: list[SubtaskEffect]) -> None:
        """Barrier first: the next tasks need not wait for this one's snapshot."""
        for subpartition in self._subpartitions.values():
            subpartition.append_event(aligned.barrier)
        if self._spec.is_sink:
            self._precommitting = aligned
            self._run(PrecommitWork(aligned.barrier.checkpoint), effects)
        else:
            self._drain(effects)
            effects.append(TakeSnapshot(self._cut_of(aligned)))

    def _precommitted(self, checkpoint: int, done: WorkDone, effects: list[SubtaskEffect]) -> None:
        aligned, self._precommitting = self._precommitting, None
        assert aligned is not None, f"{self.id}: pre-commit {checkpoint} out of nowhere"
        assert aligned.barrier.checkpoint == checkpoint, f"{self.id}: pre-commit {checkpoint}"
        self._transactions += [(checkpoint, sink, t) for sink, t in done.transactions]
        effects.append(TakeSnapshot(self._cut_of(aligned)))

    def _cut_of(self, aligned: Aligned) -> Cut:
        barrier = aligned.barrier
        return Cut(
            subtask=self.id,
            checkpoint=barrier.checkpoint,
            finished=self._finished,
            received=tuple(
                ChannelPosition(*c.channel, position=c.committed, ended=c.ended)
                for c in self._gate.channels.values()
            ),
            sent=tuple(
                ChannelPosition(*s.channel, position=s.tail, ended=self._finished)
                for s in self._subpartitions.values()
            ),
            transactions=tuple((sink, t) for _, sink, t in self._transactions),
            start_delay_ns=max(0, self._now_ns - aligned.alignment_ns - barrier.created_ns),
            alignment_ns=aligned.alignment_ns,
        )

    def _cancelled(self, checkpoint: int) -> None:
        """Forget the checkpoint. A pre-commit that runs for it goes on; its transactions ride with the next one."""
        self._triggered = [b for b in self._triggered if b.checkpoint != checkpoint]
        if self._alignment is not None:
            for channel in self._alignment.cancel(checkpoint):
                self._gate.channels[channel].blocked = False


@dataclass(frozen=True, slots=True)
class SubtaskStatistics:
    """Frozen numbers of one subtask since its attempt began."""

    rows_in: int
    rows_out: int
    busy_ns: int
    backpressured_ns: int
    idle_ns: int
    input_queued_bytes: int
    output_queued_bytes: int
    finished: bool


def _position(positions: Mapping[ChannelId, ChannelPosition], channel: ChannelId) -> int:
    return positions[channel].position if channel in positions else 0


def _input_channel(spec: SubtaskSpec, channel: ChannelId, port: int) -> InputChannel:
    return InputChannel(
        channel,
        port,
        position=_position(spec.received, channel),
        ended=channel in spec.received and spec.received[channel].ended,
        window_bytes=spec.limits.window_bytes,
    )
