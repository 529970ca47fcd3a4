"""The subtask machine: one parallel instance of a task, from its gate to its subpartitions.

The machine never blocks in mid-step: it takes new input only when every subpartition has room, and
appends the output of a piece of work whole. So it can always answer a barrier. User code does not
run here; the machine asks for it (`RunWork`), one piece at a time, and until `WorkDone` the records
of the piece count as not yet consumed.

A cut names the *committed* position of each input and the tail of each output; `cuts.py` decides
when a cut is due. After a restore the in-flight records of the checkpoint are replayed before
anything new of the same port is taken (`inflight/replay.py`).

A finished subtask stays and relays barriers, so that checkpoints after the end of input need no
rules of their own.

Source: ABS (Carbone et al. 2015), Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import assert_never

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.connection_room import NO_ROOMS, ConnectionRoom
from headrace.channels.credit import Budget
from headrace.channels.events import Barrier, EndOfInput, Watermark
from headrace.channels.gate import Gate, GateInput
from headrace.inflight.replay import Replay, ReplayInput
from headrace.inflight.replay_ledger import ReplayLedger
from headrace.inflight.spill import (
    RunRead,
    RunUnwritten,
    RunWritten,
    Spill,
    SpillOutcome,
)

from ..contract.operators import SourceStatus
from ..operators.work import (
    AdvanceWork,
    CompletedWork,
    FinishWork,
    PollWork,
    PrecommitWork,
    ProcessWork,
    Work,
    WorkDone,
)
from .batches import Batches
from .calls import Calls
from .cuts import Cuts
from .event_time import EventTime
from .pace import Pace
from .precommits import Precommits
from .result_partition import ResultPartition
from .subtask_events import (
    BufferArrived,
    BufferRead,
    CheckpointCancelled,
    CheckpointCompleted,
    CheckpointTriggered,
    CommitWork,
    CreditGranted,
    DeadlineReached,
    DiskExceeded,
    DiskUsed,
    EndLoop,
    EventArrived,
    GrantCredit,
    InputDrained,
    LogBuffer,
    PartStored,
    ReadBuffer,
    RoomReturned,
    RunWork,
    SendBuffer,
    SendEvent,
    SubtaskEffect,
    SubtaskEvent,
    SubtaskFinished,
    TakeSnapshot,
    UseDisk,
    WaveBegan,
)
from .subtask_spec import Limits, SubtaskSpec, input_end, output_end


class Subtask:
    """Machine of one subtask; `start` once, then `step` for every event.

    Args:
        now_ns: its operators begin to open, which counts as busy: a model may be loading.
        opened_ns: they were open, and wait for other subtasks; None: not known.
        budget: of the worker's windows and queues; None: they share nothing.
        rooms: of the connections that its output channels share.
    """

    def __init__(
        self,
        spec: SubtaskSpec,
        now_ns: int = 0,
        budget: Budget | None = None,
        *,
        opened_ns: int | None = None,
        rooms: Mapping[ChannelId, ConnectionRoom] = NO_ROOMS,
    ) -> None:
        assert spec.is_source == (not spec.inputs), (
            f"{spec.id}: sources, and only they, have no input"
        )
        self.id = spec.id
        self._spec = spec
        self._limits = spec.limits
        self._gate = Gate(
            input_end(spec, channel, port, budget)
            for port, channels in enumerate(spec.inputs)
            for channel in channels
        )
        ports = {c.channel.edge: c.port for c in self._gate.channels.values()}
        self._spill = _spill_of(self._gate, spec.limits)
        self._replay = Replay(spec.replay, ports, wave=spec.wave)
        self._ledger = ReplayLedger()
        #: Until wave 0 nothing new is worked on: no record of a source, no timer, no end of input.
        self._wave = spec.wave
        self._gate.held_ports = self._replay.pending_ports
        self._results = ResultPartition(
            [[output_end(spec, channel, budget) for channel in edge] for edge in spec.outputs],
            spec.limits.queue_bytes_max,
            rooms,
        )
        self._subpartitions = self._results.subpartitions
        self._cuts = Cuts(
            spec.id,
            self._gate,
            self._subpartitions,
            waits=spec.is_sink,
            timeout_ns=spec.limits.alignment_timeout_ns,
        )
        self._batches = None if spec.batch is None else Batches(self._gate, spec.batch)
        self._time = EventTime(self._gate, self._results, spec.time)
        self._pace = Pace(spec.limits.work_target_ns, spec.limits.work_rows_max)
        self._pace.start(now_ns)
        self._pace.account(now_ns, busy=True, backpressured=False)
        if opened_ns is not None:
            self._pace.account(opened_ns, busy=False, backpressured=False)
        self._finished = spec.finished
        #: The running work and its number; None while idle.
        self._running: Work | None = None
        #: What it works on: of the gate, or of the replay.
        self._given: tuple[GateInput, ...] | ReplayInput = ()
        self._work = 0
        self._run_at_ns = 0
        self._calls = Calls()
        #: A source that was told to wait polls again at this time.
        self._poll_at_ns: int | None = None
        self._source_ended = False
        #: A source is to end where it stands; it does between two pieces of work.
        self._draining = False
        #: Something was worked on since the last pre-commit, so that the next cut needs one.
        self._unflushed = True
        self._precommits = Precommits()
        #: The newest complete checkpoint of which the source has still to be told.
        self._completed: int | None = None
        #: The last failure for which a record was dropped, in words.
        self._dropped = ""
        self._now_ns = now_ns

    # --- the five verbs ---------------------------------------------------------------------------

    def start(self, now_ns: int) -> list[SubtaskEffect]:
        """Begin: everything is restored and all peers can be reached."""
        self._now_ns = now_ns
        effects: list[SubtaskEffect] = []
        if not self._finished:
            self._time.start(now_ns)
        self._replayed(effects)
        self._advance(effects)
        return effects

    def step(self, event: SubtaskEvent, now_ns: int) -> list[SubtaskEffect]:
        """Take one event and go on; effects are to be performed in order (`subtask_events.py`)."""
        effects = self.take(event, now_ns)
        return effects + self.advance()

    def take(self, event: SubtaskEvent, now_ns: int) -> list[SubtaskEffect]:
        """Take one event, and begin nothing before `advance`: more events may be there."""
        self._now_ns = now_ns
        effects: list[SubtaskEffect] = []
        match event:
            case BufferArrived():
                channel = self._gate.channels[event.channel]
                channel.buffer_arrived(event.buffer)
                self._cuts.buffer_arrived(event.channel, event.buffer)
                limit_bytes = channel.accepted() if self._spill is None else None
                if limit_bytes is not None:
                    effects.append(GrantCredit(event.channel, limit_bytes))
                if self._batches is not None:
                    self._batches.arrived(event.channel, event.buffer, now_ns)
            case EventArrived():
                self._event_arrived(event)
            case CreditGranted():
                self._subpartitions[event.channel].grant(event.limit_bytes)
            case RoomReturned():
                pass  # what waits is sent below
            case WorkDone():
                self._work_done(event, effects)
            case InputDrained():
                assert self._spec.is_source, f"{self.id}: only sources are drained"
                self._draining = True
            case EndLoop():
                self._end_loop()
            case CheckpointTriggered():
                assert self._spec.is_source, f"{self.id}: only sources are triggered"
                self._cuts.triggered(event.barrier, now_ns)
            case CheckpointCancelled():
                self._cuts.cancelled(event.checkpoint)
                self._release(event.checkpoint)
            case PartStored():
                self._release(event.checkpoint)
            case DiskUsed():
                self._disk_used(event.outcome)
            case CheckpointCompleted():
                self._precommits.completed(event.checkpoint)
                self._cuts.completed(event.checkpoint)
                if self._spec.hears:
                    self._completed = event.checkpoint
            case BufferRead():
                self._ledger.read(event.number, event.batch.num_rows)
                self._replay.was_read(event.number, event.batch)
                self._replayed(effects)
            case WaveBegan():
                self._wave = event.wave
                self._replay.wave_began(event.wave)
                self._replayed(effects)
            case DeadlineReached():
                self._deadline_reached()
            case _:
                assert_never(event)
        return effects

    def advance(self) -> list[SubtaskEffect]:
        """Go on after the events taken: cuts, new work, sending."""
        effects: list[SubtaskEffect] = []
        self._advance(effects)
        return effects

    def next_deadline_ns(self) -> int | None:
        """When `DeadlineReached` is wanted.

        By a waiting source, by a silent source that turns idle, by a timer, by rows that wait for a
        full batch, or by a checkpoint that turns unaligned.
        """
        due_ns = _earlier(self._poll_at_ns, self._cuts.next_deadline_ns())
        if self._spill is not None:
            due_ns = _earlier(due_ns, self._spill.next_deadline_ns())
        if self._finished or self._wave:
            return due_ns
        of_time = _earlier(self._time.next_deadline_ns(), self._time.next_timer_ns(self._now_ns))
        if self._batches is not None:
            of_time = _earlier(of_time, self._batches.next_deadline_ns(self._now_ns))
        return _earlier(due_ns, of_time)

    def check(self) -> None:
        """Assert every invariant."""
        self._gate.check()
        if self._spill is not None:
            self._spill.check()
        for subpartition in self._subpartitions.values():
            subpartition.check()
        assert bool(self._given) == isinstance(self._running, ProcessWork), self.describe()

    @property
    def replays(self) -> bool:
        """The running work is on records of the replay."""
        return isinstance(self._given, ReplayInput)

    def positions(self) -> tuple[dict[ChannelId, int], dict[ChannelId, int]] | None:
        """Return the committed positions of inputs and the sent positions of outputs.

        None: a cut is open.
        """
        committed = {id: channel.committed for id, channel in self._gate.channels.items()}
        sent = {id: subpartition.sent for id, subpartition in self._subpartitions.items()}
        return None if self._cuts.open else (committed, sent)

    def counts(self, edges: Collection[int]) -> tuple[int, int] | None:
        """Return the records sent and consumed on `edges`, those of a cycle, since the start.

        None: not at rest, for there is something to do, or to wait for except records of the cycle.
        """
        if self._running is not None or self._wave or self._replay.pending_ports:
            return None
        if not self._finished and not self._time.is_at_rest:
            return None
        consumed = 0
        for id, channel in self._gate.channels.items():
            if id.edge in edges:
                consumed += channel.committed
            elif not channel.ended:
                return None
        sent = sum(s.tail for id, s in self._subpartitions.items() if id.edge in edges)
        return sent, consumed

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait at inputs and outputs."""
        return self._gate.queued_bytes + self._results.queued_bytes

    def describe(self) -> str:
        """The whole state as stable text."""
        running = "idle" if self._running is None else type(self._running).__name__
        lines = [f"{self.id} {running} finished={self._finished} {self._cuts.describe()}"]
        lines += [line for line in self._replay.describe().splitlines() if line]
        lines += [line for line in self._gate.describe().splitlines() if line]
        lines += [subpartition.describe() for subpartition in self._subpartitions.values()]
        return "\n".join(lines)

    def statistics(self, now_ns: int) -> SubtaskStatistics:
        """Numbers for metrics; a call under way counts as busy up to now."""
        self._pace.book(now_ns)
        return SubtaskStatistics(
            rows_in=self._pace.rows_in,
            rows_out=self._pace.rows_out,
            rows_late=self._pace.rows_late,
            rows_failed=self._pace.rows_failed,
            dropped=self._dropped,
            unspilled="" if self._spill is None else self._spill.trouble,
            busy_ns=self._pace.busy_ns,
            backpressured_ns=self._pace.backpressured_ns,
            idle_ns=self._pace.idle_ns,
            input_queued_bytes=self._gate.queued_bytes,
            window_bytes=self._gate.window_bytes,
            output_queued_bytes=self._results.queued_bytes,
            watermark_ns=self._time.passed_ns,
            inputs=self._gate.edges(),
            outputs=self._results.edges(),
            calls=self._calls,
            call_ns=0 if self._running is None else now_ns - self._run_at_ns,
            cut=self._cuts.newest,
        )

    # --- what there is to do ----------------------------------------------------------------------

    def _advance(self, effects: list[SubtaskEffect]) -> None:
        """Do all work that need not wait: due events, new work, sending."""
        while True:
            while self._take_cut(effects) or (self._running is None and self._next(effects)):
                pass
            # What the drain makes room for begins now: no later event is certain to come.
            was_full = self._running is None and not self._results.has_room
            self._drain(effects)
            if not was_full or not self._results.has_room:
                break
        self._cuts.flush(self._now_ns, effects)
        if self._batches is not None:
            effects += [GrantCredit(*extended) for extended in self._batches.extensions()]
        if self._spill is not None:
            self._go_on_spilling(self._spill, effects)
        busy = self._running is not None
        full = not busy and not self._results.has_room
        self._pace.account(self._now_ns, busy=busy, backpressured=full)

    def _next(self, effects: list[SubtaskEffect]) -> bool:
        """Do one thing that is due while no work runs. False: none is due."""
        due = self._gate.next_event()
        if due is not None:
            channel, event = due
            if isinstance(event, Barrier):
                self._cuts.reached(channel, event, self._now_ns, effects)
                return True
            if isinstance(event, Watermark):
                channel.reached(event)
            else:
                channel.ended = True
            self._time.moved()
            return True
        return self._next_work(effects)

    def _next_work(self, effects: list[SubtaskEffect]) -> bool:
        if self._completed is not None:
            checkpoint, self._completed = self._completed, None
            self._run(CompletedWork(checkpoint), effects)
            return True
        if self._finished or not self._results.has_room:
            return False
        if self._draining:
            self._end_source()
        rows_max = self._pace.rows_for(self._results.room_bytes)
        if self._wave:
            return self._old_work(rows_max, effects)
        advance = self._time.next_work(rows_max, self._now_ns)
        if advance is not None:
            self._run(advance, effects)
            return True
        if self._source_ended or (not self._spec.is_source and self._gate.ended):
            self._run(FinishWork(), effects)
            return True
        if self._spec.is_source:
            if self._poll_at_ns is not None:
                return False
            self._run(PollWork(rows_max, self._now_ns), effects)
            return True
        return self._old_work(rows_max, effects)

    def _old_work(self, rows_max: int, effects: list[SubtaskEffect]) -> bool:
        """Work on records to replay or on records that channels brought."""
        batches = self._batches
        rows_max = rows_max if batches is None else batches.rule.rows
        replayed = self._replay.next_input(rows_max)
        if replayed is not None:
            self._given = replayed
            work = ProcessWork(replayed.port, replayed.parts, replayed.rows, self._now_ns)
            self._run(work, effects)
            return True
        # A wave must come to an end: old records wait for no full batch.
        if batches is None or self._wave:
            given = self._gate.next_input(rows_max, self._now_ns)
        else:
            given = batches.next_batch(self._now_ns)
        if not given:
            return False
        self._given = given
        parts = tuple(part for g in given for part in g.buffer.parts)
        rows = sum(g.buffer.rows for g in given)
        self._run(ProcessWork(given[0].port, parts, rows, self._now_ns), effects)
        return True

    def _run(self, work: Work, effects: list[SubtaskEffect]) -> None:
        assert self._running is None, f"{self.id}: two works at once"
        self._running = work
        self._run_at_ns = self._now_ns
        self._work += 1
        effects.append(RunWork(self.id, self._work, work))

    def _drain(self, effects: list[SubtaskEffect]) -> None:
        for channel, item in self._results.drain(self._limits.buffer_bytes, self._now_ns):
            if isinstance(item, Buffer):
                effects.append(SendBuffer(channel, item))
                continue
            effects.append(SendEvent(channel, item.position, item.event))
            if isinstance(item.event, Barrier):
                self._cuts.sent(channel, item.event, self._now_ns)

    # --- work that ended --------------------------------------------------------------------------

    def _work_done(self, done: WorkDone, effects: list[SubtaskEffect]) -> None:
        assert done.work == self._work, f"{self.id}: work {done.work} ended, {self._work} runs"
        work, self._running = self._running, None
        assert work is not None, f"{self.id}: work {done.work} ended twice"
        effects.append(CommitWork(self.id))
        self._calls.made(done.spent)
        self._time.spoke(done.time, self._now_ns)
        if not isinstance(work, CompletedWork):
            self._unflushed = not isinstance(work, PrecommitWork)
        self._pace.rows_late += done.rows_late
        self._pace.rows_failed += done.rows_failed
        self._dropped = done.dropped or self._dropped
        bytes_out, queued = self._results.append(done.outputs, self._now_ns)
        if self._limits.logs:
            effects += [LogBuffer(channel, buffer) for channel, buffer in queued]
        match work:
            case ProcessWork():
                self._pace.worked(work.rows, done.rows_out, done.elapsed_ns, bytes_out)
                self._time.worked(done.time)
                self._consumed(effects)
            case PollWork():
                self._pace.worked(done.rows_polled, done.rows_out, done.elapsed_ns, bytes_out)
                self._time.worked(done.time)
                self._polled(done)
            case AdvanceWork():
                self._pace.worked(0, done.rows_out, done.elapsed_ns)
                self._time.worked(done.time, work.watermark_ns)
            case FinishWork():
                self._finish(effects)
            case PrecommitWork():
                self._precommits.add(done.transactions)
                self._freeze(work.checkpoint, effects)
            case CompletedWork():
                pass
            case _:
                assert_never(work)

    def _consumed(self, effects: list[SubtaskEffect]) -> None:
        given, self._given = self._given, ()
        if isinstance(given, ReplayInput):
            self._ledger.worked(given)
            self._replay.commit()
            self._replayed(effects)
            return
        self._gate.rows_worth = self._pace.rows_worth
        self._gate.rows_quick = self._pace.rows_quick
        granted = self._gate.commit(given, self._now_ns)
        effects += [GrantCredit(*credit) for credit in granted]
        if self._time.is_idle or self._batches is not None:
            self._time.moved()

    def _polled(self, done: WorkDone) -> None:
        if done.status is SourceStatus.END:
            self._end_source()
        elif done.status is SourceStatus.IDLE:
            self._poll_at_ns = self._now_ns + max(1, done.wait_ns)

    def _end_source(self) -> None:
        if not self._source_ended:
            self._source_ended = True
            self._time.source_ended()

    def _end_loop(self) -> None:
        if not self._finished:
            self._gate.end_loop()
            self._time.moved()

    def _finish(self, effects: list[SubtaskEffect]) -> None:
        self._finished = True
        self._results.append_event(EndOfInput())
        effects.append(SubtaskFinished(self.id))

    # --- replay -----------------------------------------------------------------------------------

    def _replayed(self, effects: list[SubtaskEffect]) -> None:
        """Stored records came in or are worked on: read on, and release ports without any left."""
        for id, watermark_ns in self._replay.watermarks():
            if id in self._gate.channels:
                self._gate.channels[id].reached(Watermark(watermark_ns))
        self._gate.held_ports = self._replay.pending_ports
        # What a wave sends is in flight already, and nothing else is sent until wave 0.
        opened = self._gate.open(held=self._wave > 0)
        effects += [GrantCredit(*credit) for credit in opened]
        if not self._finished:
            self._time.moved()
        orders = self._replay.wanted()
        self._ledger.ordered(orders)
        effects += [ReadBuffer(self.id, order) for order in orders]

    # --- records on local disk --------------------------------------------------------------------

    def _go_on_spilling(self, spill: Spill, effects: list[SubtaskEffect]) -> None:
        effects += [GrantCredit(*granted) for granted in spill.grants()]
        rows_wanted = 0 if self._batches is None else self._batches.rule.rows
        orders = spill.orders(self._now_ns, rows_wanted)
        effects += [UseDisk(self.id, order) for order in orders]
        if spill.is_exceeded:
            effects.append(DiskExceeded(self.id, spill.trouble))

    def _disk_used(self, outcome: SpillOutcome) -> None:
        assert self._spill is not None, f"{self.id}: nobody asked for the disk"
        match outcome:
            case RunWritten(file):
                run = self._spill.written(file)
                if run is not None:
                    spilled = self._cuts.spilled(run.channel, file, run.first, run.end)
                    for checkpoint, captured in spilled:
                        self._spill.hold(checkpoint, captured)
            case RunUnwritten(number, reason):
                self._spill.unwritten(number, reason, self._now_ns)
            case RunRead(number, records):
                self._spill.was_read(number, records)
            case _:
                assert_never(outcome)

    def _release(self, checkpoint: int) -> None:
        if self._spill is not None:
            self._spill.release(checkpoint)

    # --- checkpoints ------------------------------------------------------------------------------

    def _event_arrived(self, event: EventArrived) -> None:
        channel = self._gate.channels[event.channel]
        if isinstance(event.event, Barrier):
            self._cuts.arrived(channel, event.position, event.event, self._now_ns)
            return
        channel.event_arrived(event.position, event.event)
        if isinstance(event.event, Watermark):
            self._cuts.watermark_arrived(event.channel, event.position, event.event)

    def _deadline_reached(self) -> None:
        if self._poll_at_ns is not None and self._poll_at_ns <= self._now_ns:
            self._poll_at_ns = None
        if not self._finished and not self._wave:
            busy = self._running is not None or not self._results.has_room
            self._time.time_passed(self._now_ns, busy=busy)
        self._cuts.time_passed(self._now_ns)
        if self._spill is not None:
            self._spill.time_passed(self._now_ns)

    def _take_cut(self, effects: list[SubtaskEffect]) -> bool:
        """Take a due cut, unless it must wait for the running work.

        Barrier first: the next tasks need not wait.
        """
        running = self._running is not None
        if isinstance(self._running, CompletedWork) and not self._spec.is_sink:
            running = False  # it reads no record and emits none: every cut goes by it
        capture = self._cuts.next_due(running=running)
        if capture is None:
            return False
        self._cuts.take(
            capture,
            finished=self._finished,
            watermark_ns=self._time.watermark_ns,
            replay=tuple(self._replay.remaining()),
            replayed=self._ledger.counts(self._gate.channels.values()),
            now_ns=self._now_ns,
        )
        self._drain(effects)
        checkpoint = capture.barrier.checkpoint
        if self._spill is not None:
            for captured in capture.inputs.values():
                self._spill.hold(checkpoint, captured)
        # Checkpoints may follow each other faster than a sink flushes: it must get to write between
        # them.
        if self._spec.is_sink and self._unflushed:
            self._run(PrecommitWork(checkpoint), effects)
        else:
            self._freeze(checkpoint, effects)
        return True

    def _freeze(self, checkpoint: int, effects: list[SubtaskEffect]) -> None:
        if self._cuts.freeze(checkpoint, self._precommits.cut(checkpoint), self._now_ns):
            effects.append(TakeSnapshot(self.id, checkpoint))


def _spill_of(gate: Gate, limits: Limits) -> Spill | None:
    """None: no channel spills."""
    loops = any(channel.feedback for channel in gate.channels.values())
    if limits.spill is None or not (limits.spill.blocked or loops):
        return None
    return Spill(gate, limits.spill)


def _earlier(one_ns: int | None, other_ns: int | None) -> int | None:
    if one_ns is None or (other_ns is not None and other_ns < one_ns):
        return other_ns
    return one_ns


@dataclass(frozen=True, slots=True)
class SubtaskStatistics:
    """Frozen numbers of one subtask since its attempt began.

    Attributes:
        inputs, outputs: {edge: (bytes that wait, bytes that may wait, rows)}; see `EdgeNumbers`.
        calls: it goes on changing.
        call_ns: how long the work under way has run.
        cut: the newest complete cut.
    """

    rows_in: int
    rows_out: int
    rows_late: int
    rows_failed: int
    busy_ns: int
    backpressured_ns: int
    idle_ns: int
    input_queued_bytes: int
    window_bytes: int
    output_queued_bytes: int
    watermark_ns: int
    dropped: str
    unspilled: str
    inputs: Mapping[int, tuple[int, int, int]]
    outputs: Mapping[int, tuple[int, int, int]]
    calls: Calls
    call_ns: int
    cut: int
