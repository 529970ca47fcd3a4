"""A subtask driven by hand: its effects as text, in order."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.credit import Budget
from headrace.channels.events import Barrier, ChannelEvent, CheckpointMode, Watermark
from headrace.engine.contract.execution import BatchRule, SubtaskId
from headrace.engine.operators.work import (
    AdvanceWork,
    CompletedWork,
    FinishWork,
    Outputs,
    PollWork,
    PrecommitWork,
    ProcessWork,
    WorkDone,
)
from headrace.engine.worker.subtask import Subtask
from headrace.engine.worker.subtask_events import (
    BufferArrived,
    CapturedRun,
    CommitWork,
    Cut,
    CutTaken,
    DeclineCheckpoint,
    EventArrived,
    GrantCredit,
    RunWork,
    SendBuffer,
    SendEvent,
    SubtaskEffect,
    SubtaskEvent,
    SubtaskFinished,
    TakeSnapshot,
)
from headrace.engine.worker.subtask_spec import NO_EVENT_TIME, EventTimeSpec, Limits, SubtaskSpec
from headrace.inflight.handle import ChannelStateHandle
from headrace.recovery.metadata import ChannelPosition

ROW_BYTES = 8
A, B = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
X, Y = ChannelId(1, 0, 0), ChannelId(1, 0, 1)
#: Of a back-edge.
L, M = ChannelId(2, 0, 0), ChannelId(2, 1, 0)
MIDDLE = SubtaskId(1, 0)
LIMITS = Limits(
    buffer_bytes=10 * ROW_BYTES,
    window_bytes=100 * ROW_BYTES,
    queue_bytes_max=10 * ROW_BYTES,
    work_rows_max=4,
    work_target_ns=1_000,
)


def batch(start: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(range(start, start + rows), pa.int64())})


def barrier(checkpoint: int, mode: CheckpointMode = CheckpointMode.ALIGNED) -> Barrier:
    return Barrier(checkpoint, mode, created_ns=0)


class Driven:
    """A subtask whose effects are noted as text; `now_ns` is the test's to set."""

    def __init__(
        self,
        inputs: Sequence[Sequence[ChannelId]] = ((A, B),),
        outputs: Sequence[Sequence[ChannelId]] = ((X,),),
        *,
        is_sink: bool = False,
        limits: Limits = LIMITS,
        finished: bool = False,
        received: Sequence[ChannelPosition] = (),
        sent: Sequence[ChannelPosition] = (),
        time: EventTimeSpec = NO_EVENT_TIME,
        batch: BatchRule | None = None,
        replay: Sequence[ChannelStateHandle] = (),
        wave: int = 0,
        feedback: Sequence[int] = (),
        budget: Budget | None = None,
        hears: bool = False,
    ) -> None:
        self.subtask = Subtask(
            SubtaskSpec(
                id=MIDDLE,
                is_source=not inputs,
                is_sink=is_sink,
                inputs=inputs,
                outputs=outputs,
                limits=limits,
                finished=finished,
                received={ChannelId(p.edge, p.producer, p.consumer): p for p in received},
                sent={ChannelId(p.edge, p.producer, p.consumer): p for p in sent},
                replay=replay,
                wave=wave,
                time=time,
                batch=batch,
                feedback=frozenset(feedback),
                hears=hears,
            ),
            budget=budget,
        )
        self.now_ns = 0
        self.cuts: list[Cut] = []
        self.arrived: dict[ChannelId, int] = {
            ChannelId(p.edge, p.producer, p.consumer): p.position for p in received
        }

    def start(self) -> list[str]:
        """Start; consumers have opened all outputs. Not told: inputs that are opened at once."""
        for subpartition in self.subtask._subpartitions.values():
            subpartition.grant(self.subtask._limits.window_bytes)
        begun = self.subtask.start(self.now_ns)
        replays = bool(self.subtask._replay.pending_ports)
        return self._noted([e for e in begun if replays or not isinstance(e, GrantCredit)])

    def opened(self) -> list[str]:
        """Start without credit from the consumers."""
        return self._noted(self.subtask.start(self.now_ns))

    def step(self, event: SubtaskEvent) -> list[str]:
        effects = self._noted(self.subtask.step(event, self.now_ns))
        self.subtask.check()
        return effects

    def records(self, channel: ChannelId, rows: int) -> list[str]:
        """`rows` records arrive; they are their own positions."""
        first = self.arrived.get(channel, 0)
        self.arrived[channel] = first + rows
        buffer = Buffer(first, rows, rows * ROW_BYTES, (batch(first, rows),))
        return self.step(BufferArrived(channel, buffer))

    def event(self, channel: ChannelId, event: ChannelEvent) -> list[str]:
        return self.step(EventArrived(channel, self.arrived.get(channel, 0), event))

    def done(self, work: int, *rows: int, **more: object) -> list[str]:
        """The work ended and emitted batches of `rows` to target 0 of the first output edge."""
        pieces = tuple((0, batch(0, count), count * ROW_BYTES) for count in rows)
        outputs: Outputs = (pieces,) if rows else ()
        return self.step(WorkDone(work, outputs, sum(rows), **more))  # type: ignore[arg-type]  # the tests' own keywords

    def _noted(self, effects: list[SubtaskEffect]) -> list[str]:
        self.cuts += [e.cut for e in effects if isinstance(e, CutTaken)]
        return [noted(effect) for effect in effects]


def noted(effect: SubtaskEffect) -> str:
    match effect:
        case RunWork(_, number, ProcessWork(port, parts, rows)):
            values = [x for part in parts for x in part["x"].to_pylist()]
            assert len(values) == rows
            return f"run {number}: port {port} {values}"
        case RunWork(_, number, PollWork(rows_max)):
            return f"run {number}: poll {rows_max}"
        case RunWork(_, number, AdvanceWork(watermark_ns)):
            return f"run {number}: advance {watermark_ns}"
        case RunWork(_, number, FinishWork()):
            return f"run {number}: finish"
        case RunWork(_, number, PrecommitWork(checkpoint)):
            return f"run {number}: pre-commit {checkpoint}"
        case RunWork(_, number, CompletedWork(checkpoint)):
            return f"run {number}: completed {checkpoint}"
        case CommitWork():
            return "commit"
        case SendBuffer(channel, buffer):
            return f"send {channel} {buffer.first}..{buffer.end}"
        case SendEvent(channel, position, Watermark(time_ns, idle)):
            return f"send {channel} {'idle' if idle else 'watermark'} {time_ns}@{position}"
        case SendEvent(channel, position, event):
            name = f"barrier {event.checkpoint}" if isinstance(event, Barrier) else "end"
            return f"send {channel} {name}@{position}"
        case GrantCredit(channel, limit_bytes):
            return f"grant {channel} {limit_bytes}"
        case TakeSnapshot(_, checkpoint):
            return f"snapshot {checkpoint}"
        case CutTaken(cut):
            received = " ".join(str(c.position) for c in cut.received)
            sent = " ".join(str(c.position) for c in cut.sent)
            inflight = "".join(f"; {captured(run)}" for run in cut.inflight)
            return f"cut {cut.checkpoint}: received {received}; sent {sent}{inflight}"
        case DeclineCheckpoint(_, checkpoint):
            return f"decline {checkpoint}"
        case SubtaskFinished():
            return "finished"
    return f"other {effect}"


def captured(run: CapturedRun) -> str:
    end = run.buffers[-1].end if run.buffers else run.first
    ended = " and the end" if run.ended else ""
    return f"{run.side} {run.channel} {run.first}..{end}{ended}"


def source(**options: object) -> Driven:
    return Driven(inputs=(), **options)  # type: ignore[arg-type]  # the options of Driven


def loop_head(**options: object) -> Driven:
    """The head of a loop: entries `A` and `B` are port 0, back-edges `L` and `M` port 1."""
    return Driven(inputs=((A, B), (L, M)), feedback=(1,), **options)  # type: ignore[arg-type]  # the options of Driven


def sink() -> Driven:
    return Driven(outputs=(), is_sink=True)


def without_credit() -> Driven:
    """One record of credit; 20 queued records are beyond the limit of 10."""
    subject = Driven(limits=Limits(80, ROW_BYTES, 80, 4, 1_000))
    subject.start()
    subject.records(A, 1)
    subject.done(1, 5, 5, 5, 5)
    return subject
