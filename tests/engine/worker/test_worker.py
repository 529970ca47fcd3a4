"""The worker machine: the life of an attempt, what is fenced, and how things fail."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.events import Barrier, CheckpointMode, EndOfInput
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.channels.wire import BufferFrame, CreditFrame, EventFrame
from headrace.engine.contract import messages as m
from headrace.engine.contract.execution import (
    EdgePlan,
    ExecutionPlan,
    OperatorPlan,
    SubtaskId,
    TaskPlan,
)
from headrace.engine.contract.operators import SinkWriter, SourceReader, SourceStatus, Transaction
from headrace.engine.operators.work import WorkDone
from headrace.engine.worker.subtask_events import CommitWork, RunWork, TakeSnapshot
from headrace.engine.worker.subtask_spec import Limits
from headrace.engine.worker.worker import Phase, Worker
from headrace.engine.worker.worker_events import (
    AttemptLoaded,
    AttemptLoadFailed,
    CheckpointPersisted,
    CheckpointPersistFailed,
    ConfirmCheckpoint,
    ConnectPeers,
    ControlLost,
    ControlReceived,
    DropAttempt,
    FramesReceived,
    GiveUpCheckpoint,
    LoadAttempt,
    OperatorsOpened,
    PeerConnected,
    PeerLost,
    PersistCheckpoint,
    ReadCorrupt,
    Report,
    SendFrame,
    StopWorker,
    TimePassed,
    WorkEnded,
    WorkerEffect,
    WorkerEvent,
    WorkFailed,
)
from headrace.inflight.handle import ChannelStateHandle
from headrace.recovery.handles import StateHandle
from headrace.recovery.metadata import Hold, TransactionRecord

SCHEMA = pa.schema([("x", pa.int64())])
LIMITS = Limits(80, 800, 800, 4, 1_000)
HEARTBEAT_NS = 1_000
SOURCE, SINK = SubtaskId(0, 0), SubtaskId(1, 0)
#: From the source of the other worker to the sink of this one.
INCOMING = ChannelId(0, 1, 0)


def never_source() -> SourceReader:
    raise AssertionError("nothing is opened here")


def never_sink() -> SinkWriter:
    raise AssertionError("nothing is opened here")


PLAN = ExecutionPlan(
    "job",
    (
        TaskPlan(0, "numbers", (OperatorPlan("numbers", source=never_source),), 2, (), (0,)),
        TaskPlan(1, "out", (OperatorPlan("out", sink=never_sink),), 2, (0,), ()),
    ),
    (EdgePlan(0, "numbers->out/0", 0, 1, 0, Rebalance(), SCHEMA),),
    128,
)


def noted(effect: WorkerEffect) -> str:
    match effect:
        case RunWork(subtask, number, what):
            return f"run {subtask} {number} {type(what).__name__}"
        case CommitWork(subtask):
            return f"commit {subtask}"
        case TakeSnapshot(subtask, checkpoint):
            return f"snapshot {subtask} {checkpoint}"
        case SendFrame(epoch, worker, frame):
            return f"frame to {worker} in {epoch}: {type(frame).__name__} {frame.channel}"
        case PersistCheckpoint(_, checkpoint):
            return f"persist {checkpoint}"
        case LoadAttempt(epoch, checkpoint, _, _, subtasks):
            return f"load {epoch} from {checkpoint}: {' '.join(map(str, subtasks))}"
        case DropAttempt(epoch):
            return f"drop {epoch}"
        case ConnectPeers(_, connect, expect):
            return f"connect {[p.worker for p in connect]} expect {list(expect)}"
        case GiveUpCheckpoint(_, checkpoint):
            return f"discard {checkpoint}"
        case ConfirmCheckpoint(_, checkpoint):
            return f"confirm {checkpoint}"
        case Report(message):
            return f"report {type(message).__name__}"
        case StopWorker(reason, clean):
            return f"stop {'clean' if clean else 'lost'}: {reason}"
    return f"other {effect}"


class Driven:
    """A worker whose effects are noted as text, and whose reports are kept."""

    def __init__(self, me: int = 0, plan: ExecutionPlan = PLAN) -> None:
        self.worker = Worker(me, plan, LIMITS, HEARTBEAT_NS)
        self.now_ns = 0
        self.reports: list[m.ToCoordinator] = []

    def step(self, event: WorkerEvent) -> list[str]:
        was_running = self.worker.phase is Phase.RUNNING
        effects = self.worker.step(event, self.now_ns)
        if self.worker.phase is Phase.RUNNING and not was_running:
            effects = self._opened(effects)
        self.worker.check()
        self.reports += [e.message for e in effects if isinstance(e, Report)]
        return [noted(effect) for effect in effects]

    def _opened(self, effects: list[WorkerEffect]) -> list[WorkerEffect]:
        """Leave out the credit that the worker gives; it gets credit from the other one at once."""
        assert self.worker._attempt is not None
        subtasks, me = self.worker._attempt.subtasks, self.worker.me
        produced = [channel for subtask in subtasks.values() for channel in subtask._subpartitions]
        channels = [c for c in produced if SubtaskId(1, c.consumer) not in subtasks]
        credit = tuple(CreditFrame(channel, LIMITS.window_bytes) for channel in channels)
        effects += self.worker.step(FramesReceived(1, 1 - me, credit), self.now_ns)
        return [
            e
            for e in effects
            if not (isinstance(e, SendFrame) and isinstance(e.frame, CreditFrame))
        ]

    def told(self, message: m.ToWorker) -> list[str]:
        return self.step(ControlReceived(message))

    def done(self, subtask: SubtaskId, done: WorkDone, epoch: int = 1) -> list[str]:
        return self.step(WorkEnded(epoch, subtask, done))


def deploy(epoch: int, *, workers: int = 2, checkpoint: int = 0) -> m.Deploy:
    slots = [[0], [1]] if workers == 2 else [[0, 1]]
    peers = [m.PeerAddress(w, "host", 1000 + w, held) for w, held in enumerate(slots)]
    return m.Deploy(epoch, peers, checkpoint, "job", "", [])


def loaded(me: int = 0, *, epoch: int = 1) -> Driven:
    """A worker of two that has loaded its attempt."""
    subject = Driven(me)
    subject.told(deploy(epoch))
    subject.step(AttemptLoaded(epoch))
    return subject


def running() -> Driven:
    """Worker 0 of two, which runs; its source has been polled and is idle."""
    subject = loaded()
    subject.told(m.Start(1))
    assert subject.step(PeerConnected(1, 1)) == ["run t0.0 1 PollWork"]
    subject.done(SOURCE, WorkDone(1, status=SourceStatus.IDLE, wait_ns=10**12))
    return subject


def handle(name: str) -> StateHandle:
    return StateHandle(name, "state", "list", "chk-1/x", 0, 1, "0" * 16, 1)


def persisted(checkpoint: int) -> CheckpointPersisted:
    """Nothing was in flight and nobody had state."""
    return CheckpointPersisted(
        1, checkpoint, {SOURCE: [], SINK: []}, {SOURCE: [], SINK: []}, {SOURCE: 0, SINK: 0}, 0
    )


# --- life -----------------------------------------------------------------------------------------


def test_an_attempt_is_loaded_then_connected_then_run() -> None:
    subject = Driven()
    assert subject.told(deploy(1)) == ["load 1 from 0: t0.0 t1.0"]
    assert subject.step(AttemptLoaded(1)) == ["report Deployed"]
    assert subject.told(m.Start(1)) == ["connect [1] expect []"]
    assert subject.step(PeerConnected(1, 1)) == ["run t0.0 1 PollWork"]


def test_the_higher_number_waits_for_the_lower_to_connect() -> None:
    subject = loaded(1)
    assert subject.told(m.Start(1)) == ["connect [] expect [0]"]
    assert subject.step(PeerConnected(1, 0)) == ["run t0.1 1 PollWork"]


def test_a_worker_alone_runs_at_once() -> None:
    subject = Driven()
    subject.told(deploy(1, workers=1))
    subject.step(AttemptLoaded(1))
    assert subject.told(m.Start(1)) == ["run t0.0 1 PollWork", "run t0.1 1 PollWork"]


def test_a_peer_that_connects_before_the_start_is_remembered() -> None:
    subject = loaded(1)
    assert subject.step(PeerConnected(1, 0)) == []
    assert subject.told(m.Start(1)) == ["run t0.1 1 PollWork"]


def test_frames_of_a_faster_peer_are_kept_in_order_until_the_worker_runs() -> None:
    subject = loaded()
    batch = pa.record_batch({"x": pa.array([5, 6], pa.int64())})
    assert (
        subject.step(FramesReceived(1, 1, (BufferFrame(INCOMING, Buffer(0, 2, 16, (batch,))),)))
        == []
    )
    assert subject.told(m.Start(1)) == ["connect [1] expect []"]
    assert subject.step(FramesReceived(1, 1, (EventFrame(INCOMING, 2, EndOfInput()),))) == []
    assert subject.step(PeerConnected(1, 1)) == ["run t1.0 1 ProcessWork", "run t0.0 1 PollWork"]


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_trigger_waits_until_the_peers_are_connected(cancelled: bool) -> None:
    """Otherwise the barrier, and records with it, would be sent to nobody."""
    subject = loaded()
    subject.told(m.Start(1))
    assert subject.told(m.Trigger(1, 1, "aligned", 0)) == []
    if cancelled:
        assert subject.told(m.Cancelled(1, 1)) == []
    effects = subject.step(PeerConnected(1, 1))
    effects += subject.done(SOURCE, WorkDone(1))
    assert "frame to 1 in 1: EventFrame e0:0>1" in effects
    assert ("discard 1" in effects) == cancelled


def test_a_new_deploy_ends_the_attempt_and_loads_the_next() -> None:
    subject = running()
    assert subject.told(deploy(2, checkpoint=7)) == ["drop 1", "load 2 from 7: t0.0 t1.0"]
    assert subject.step(AttemptLoaded(2)) == ["report Deployed"]


def test_an_abandoned_attempt_is_dropped_and_the_worker_waits() -> None:
    subject = running()
    assert subject.told(m.Abandon(1)) == ["drop 1"]
    assert subject.told(m.Abandon(1)) == []
    assert subject.told(deploy(2)) == ["load 2 from 0: t0.0 t1.0"]


def test_an_attempt_can_be_abandoned_while_it_is_loaded() -> None:
    subject = Driven()
    subject.told(deploy(1))
    assert subject.told(m.Abandon(1)) == ["drop 1"]
    assert subject.step(AttemptLoaded(1)) == []
    assert subject.worker.fenced == 1


def test_a_shutdown_ends_the_worker_for_good() -> None:
    subject = running()
    assert subject.told(m.Shutdown("the job is over")) == ["drop 1", "stop clean: the job is over"]
    assert subject.told(deploy(2)) == []
    assert subject.worker.next_deadline_ns() is None


def test_a_worker_without_coordinator_ends() -> None:
    subject = running()
    effects = subject.step(ControlLost("reset"))
    assert effects == ["drop 1", "stop lost: the coordinator is gone: reset"]


def test_a_subtask_that_finishes_is_reported() -> None:
    subject = loaded()
    subject.told(m.Start(1))
    subject.step(PeerConnected(1, 1))
    subject.done(SOURCE, WorkDone(1, status=SourceStatus.END))
    subject.done(SOURCE, WorkDone(2))
    assert subject.reports[-1] == m.TaskFinished(1, 0, 0)


# --- heartbeats -----------------------------------------------------------------------------------


def test_a_worker_beats_before_its_first_deploy() -> None:
    """The coordinator may wait for the other workers for longer than it bears silence."""
    subject = Driven()
    subject.now_ns = 5_000
    deadline_ns = subject.worker.next_deadline_ns()
    assert deadline_ns is not None
    assert deadline_ns <= 5_000
    assert subject.step(TimePassed()) == ["report Heartbeat"]
    assert subject.worker.next_deadline_ns() == 6_000


def test_heartbeats_carry_the_numbers_of_every_subtask() -> None:
    subject = running()
    subject.now_ns = HEARTBEAT_NS
    assert subject.step(TimePassed()) == ["report Heartbeat"]
    (beat,) = beats(subject)
    assert [(n.task, n.subtask) for n in beat.subtasks] == [(0, 0), (1, 0)]
    assert subject.worker.next_deadline_ns() == 2 * HEARTBEAT_NS


def test_operators_that_still_open_are_busy_and_those_that_are_open_are_idle() -> None:
    subject = Driven()
    subject.now_ns = 5_000
    subject.told(deploy(1))
    subject.now_ns = 6_000
    subject.step(OperatorsOpened(1, SOURCE))
    subject.now_ns = 9_000
    subject.step(TimePassed())
    opened = [(n.task, n.busy_ns, n.idle_ns, n.call_ns) for n in beats(subject)[-1].subtasks]
    assert opened == [(0, 1_000, 3_000, 0), (1, 4_000, 0, 4_000)]
    # The attempt goes on from these times: nobody seems to have opened twice, or not at all.
    subject.step(OperatorsOpened(1, SINK))
    subject.step(AttemptLoaded(1))
    subject.now_ns = 15_000
    subject.step(TimePassed())
    times = [(n.task, n.busy_ns, n.idle_ns) for n in beats(subject)[-1].subtasks]
    assert times == [(0, 1_000, 9_000), (1, 4_000, 6_000)]


def test_numbers_tell_the_call_under_way_the_time_by_operator_and_queues_by_edge() -> None:
    subject = loaded()
    subject.told(m.Start(1))
    subject.now_ns = 200
    subject.step(PeerConnected(1, 1))
    subject.now_ns = HEARTBEAT_NS
    subject.step(TimePassed())
    source, sink = beats(subject)[-1].subtasks
    assert source.call_ns == 800
    assert not source.calls
    assert [end.edge for end in source.outputs] == [0]
    assert [end.edge for end in sink.inputs] == [0]
    subject.done(SOURCE, WorkDone(1, spent=((0, 3_000),), status=SourceStatus.IDLE, wait_ns=10**12))
    subject.now_ns = 2 * HEARTBEAT_NS
    subject.step(TimePassed())
    source, _ = beats(subject)[-1].subtasks
    assert source.call_ns == 0
    assert source.calls == [m.CallNumbers(0, 3_000, [0, 0, 1])]


def beats(subject: Driven) -> list[m.Heartbeat]:
    return [report for report in subject.reports if isinstance(report, m.Heartbeat)]


def test_a_failed_worker_goes_on_beating() -> None:
    subject = running()
    subject.step(PeerLost(1, 1, "reset"))
    subject.now_ns = HEARTBEAT_NS
    assert subject.step(TimePassed()) == ["report Heartbeat"]


# --- checkpoints ----------------------------------------------------------------------------------


def cut(subject: Driven, checkpoint: int = 1, position: int = 0) -> list[str]:
    """Both sources cut, the sink pre-commits; returns the effects of the last step."""
    barrier = Barrier(checkpoint, CheckpointMode.ALIGNED, 0)
    subject.told(m.Trigger(1, checkpoint, "aligned", 0))
    effects = subject.step(FramesReceived(1, 1, (EventFrame(INCOMING, position, barrier),)))
    assert effects[-1].endswith("PrecommitWork")
    work = int(effects[-1].split()[2])
    transaction = ("out", Transaction(f"t{checkpoint}", {"rows": 3}))
    return subject.done(SINK, WorkDone(work, transactions=(transaction,)))


def test_a_checkpoint_is_acknowledged_when_it_is_durable() -> None:
    subject = running()
    assert cut(subject) == ["commit t1.0", "snapshot t1.0 1", "persist 1"]
    states = {SOURCE: [handle("numbers")], SINK: []}
    nothing: dict[SubtaskId, list[ChannelStateHandle]] = {SOURCE: [], SINK: []}
    event = CheckpointPersisted(1, 1, states, nothing, {SOURCE: 5, SINK: 6}, 100)
    assert subject.step(event) == ["report Acknowledge"]
    (message,) = (r for r in subject.reports if isinstance(r, m.Acknowledge))
    assert (message.epoch, message.checkpoint) == (1, 1)
    assert message.transactions == [TransactionRecord("out", "t1", {"rows": 3})]
    described = [(s.task, s.index, s.states, s.sync_ns, s.async_ns) for s in message.subtasks]
    assert sorted(described) == [(0, 0, [handle("numbers")], 5, 100), (1, 0, [], 6, 100)]


def test_an_acknowledgement_names_operators_and_channels_that_held_the_cut() -> None:
    subject = running()
    barrier = Barrier(1, CheckpointMode.ALIGNED, 0)
    subject.told(m.Trigger(1, 1, "aligned", 0))
    subject.now_ns = 30
    effects = subject.step(FramesReceived(1, 1, (EventFrame(INCOMING, 0, barrier),)))
    subject.now_ns = 50
    subject.done(SINK, WorkDone(int(effects[-1].split()[2])))
    subject.now_ns = 80
    subject.step(persisted(1))
    message = subject.reports[-1]
    assert isinstance(message, m.Acknowledge)
    (held,) = (s for s in message.subtasks if s.task == SINK.task)
    assert held.end_to_end_ns == 80
    assert held.holds == [
        Hold("barrier", "numbers->out/0 1>0", 30),
        Hold("pre-commit", "out", 20),
    ]


def test_a_checkpoint_that_cannot_be_stored_is_declined() -> None:
    subject = running()
    cut(subject)
    assert subject.step(CheckpointPersistFailed(1, 1, "disk full")) == ["report Decline"]
    assert subject.reports[-1] == m.Decline(1, 1, "disk full")


def test_a_cancelled_checkpoint_is_not_acknowledged_any_more() -> None:
    subject = running()
    cut(subject)
    assert subject.told(m.Cancelled(1, 1)) == ["discard 1"]
    late = persisted(1)
    assert subject.step(late) == []


def test_a_checkpoint_whose_barrier_comes_before_its_trigger_is_written_after_that() -> None:
    """Before the trigger comes, the coordinator may have said what is complete, which decides
    what may be named.
    """
    source = replace(PLAN.tasks[0], parallelism=1)
    subject = Driven(1, replace(PLAN, tasks=(source, PLAN.tasks[1])))
    subject.told(deploy(1))
    subject.step(AttemptLoaded(1))
    subject.told(m.Start(1))
    subject.step(PeerConnected(1, 0))
    barrier = EventFrame(ChannelId(0, 0, 1), 0, Barrier(2, CheckpointMode.UNALIGNED, 0))
    assert subject.step(FramesReceived(1, 0, (barrier,))) == ["run t1.1 1 PrecommitWork"]
    assert subject.done(SubtaskId(1, 1), WorkDone(1)) == ["commit t1.1", "snapshot t1.1 2"]
    assert subject.told(m.Trigger(1, 1, "unaligned", 0)) == []
    assert subject.told(m.Cancelled(1, 1)) == ["discard 1"]
    assert subject.told(m.Trigger(1, 2, "unaligned", 0)) == ["persist 2"]


def test_completion_reaches_the_sinks() -> None:
    subject = running()
    cut(subject)
    assert subject.told(m.Completed(1, 1)) == ["confirm 1"]
    record = Buffer(0, 1, 8, (pa.record_batch({"x": [1]}, SCHEMA),))
    (run,) = subject.step(FramesReceived(1, 1, (BufferFrame(INCOMING, record),)))
    subject.done(SINK, WorkDone(int(run.split()[2])))
    cut(subject, 2, position=1)
    subject.step(persisted(2))
    message = subject.reports[-1]
    assert isinstance(message, m.Acknowledge)
    assert [t.id for t in message.transactions] == ["t2"]


# --- fencing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        AttemptLoaded(1),
        AttemptLoadFailed(1, "late"),
        PeerConnected(1, 1),
        PeerLost(1, 1, "late"),
        FramesReceived(1, 1, (EventFrame(INCOMING, 99, EndOfInput()),)),
        WorkEnded(1, SOURCE, WorkDone(99)),
        WorkFailed(1, SOURCE, "late", "", fatal=True),
        CheckpointPersisted(1, 1, {}, {}, {}, 0),
        CheckpointPersistFailed(1, 1, "late"),
        ControlReceived(m.Start(1)),
        ControlReceived(m.Trigger(1, 1, "aligned", 0)),
        ControlReceived(m.Completed(1, 1)),
        ControlReceived(m.Cancelled(1, 1)),
        ControlReceived(m.Abandon(1)),
        ControlReceived(deploy(1)),
        ControlReceived(deploy(2)),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_belongs_to_an_older_attempt_is_dropped_and_counted(event: WorkerEvent) -> None:
    subject = loaded(epoch=2)
    before = subject.worker.describe()
    assert subject.step(event) == []
    assert subject.worker.fenced == 1
    assert subject.worker.describe() == before.replace("fenced=0", "fenced=1")


def test_what_belongs_to_a_newer_attempt_is_dropped_too() -> None:
    subject = running()
    assert subject.step(PeerConnected(2, 1)) == []
    assert subject.told(m.Trigger(2, 1, "aligned", 0)) == []
    assert subject.worker.fenced == 2


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "report"),
    [
        (
            PeerLost(1, 1, "reset"),
            m.AttemptFailed(1, "connection to worker 1 lost: reset", "", fatal=False),
        ),
        (
            WorkFailed(1, SOURCE, "ValueError: no", "Traceback", fatal=False),
            m.AttemptFailed(1, "ValueError: no", "Traceback", fatal=False),
        ),
        (
            WorkFailed(1, SOURCE, "wrong type", "", fatal=True),
            m.AttemptFailed(1, "wrong type", "", fatal=True),
        ),
    ],
)
def test_a_failure_ends_the_attempt_and_is_reported_once(
    event: WorkerEvent, report: m.AttemptFailed
) -> None:
    subject = running()
    assert subject.step(event) == ["drop 1", "report AttemptFailed"]
    assert subject.reports[-1] == report
    assert subject.step(event) == []
    assert subject.told(m.Abandon(1)) == []
    assert subject.told(deploy(2)) == ["load 2 from 0: t0.0 t1.0"]


def test_an_attempt_that_cannot_be_loaded_is_reported() -> None:
    subject = Driven()
    subject.told(deploy(1))
    effects = subject.step(AttemptLoadFailed(1, "damaged"))
    assert effects == ["drop 1", "report DeployFailed"]
    assert subject.reports == [m.DeployFailed(1, "damaged")]
    assert subject.told(deploy(2)) == ["load 2 from 0: t0.0 t1.0"]


def test_damaged_in_flight_data_ask_for_another_checkpoint() -> None:
    subject = running()
    assert subject.step(ReadCorrupt(1, "checksum")) == ["drop 1", "report DeployFailed"]
    assert subject.reports[-1] == m.DeployFailed(1, "checksum")


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (EventFrame(INCOMING, 5, EndOfInput()), "EndOfInput at 5"),
        (EventFrame(ChannelId(7, 0, 0), 0, EndOfInput()), "unknown channel e7:0>0"),
        (EventFrame(ChannelId(0, 0, 1), 0, EndOfInput()), "does not hold subtask t1.1"),
    ],
)
def test_a_broken_invariant_ends_the_attempt_and_not_the_worker(
    frame: EventFrame, reason: str
) -> None:
    subject = running()
    assert subject.step(FramesReceived(1, 1, (frame,))) == ["drop 1", "report AttemptFailed"]
    report = subject.reports[-1]
    assert isinstance(report, m.AttemptFailed)
    assert report.reason.startswith("broken invariant: ")
    assert reason in report.reason
    assert report.details.startswith("worker 0 epoch=1"), "the state tells the story"
    assert subject.told(deploy(2)) == ["load 2 from 0: t0.0 t1.0"]


# --- the end of loops -----------------------------------------------------------------------------

#: A source feeds a head, whose output goes back to it.
LOOP = ExecutionPlan(
    "job",
    (
        TaskPlan(0, "numbers", (OperatorPlan("numbers", source=never_source),), 2, (), (0,)),
        TaskPlan(1, "head", (OperatorPlan("head"),), 2, (0, 1), (1,)),
    ),
    (
        EdgePlan(0, "numbers->head/0", 0, 1, 0, Rebalance(), SCHEMA),
        EdgePlan(1, "head (again)->head/1", 1, 1, 1, Rebalance(), SCHEMA, feedback=True),
    ),
    128,
)


def looping(slots: list[list[int]]) -> Driven:
    """Worker 0, which runs a loop."""
    subject = Driven(0, LOOP)
    peers = [m.PeerAddress(w, "host", 1000 + w, held) for w, held in enumerate(slots)]
    subject.told(m.Deploy(1, peers, 0, "job", "", []))
    subject.step(AttemptLoaded(1))
    return subject


def test_a_worker_answers_for_all_its_subtasks_on_the_cycle() -> None:
    subject = looping([[0, 1]])
    subject.told(m.Start(1))
    first, second = SubtaskId(0, 0), SubtaskId(0, 1)
    batch = pa.record_batch({"x": [1]})
    subject.done(first, WorkDone(1, (((0, batch, 8),),), 1, rows_polled=1, status=SourceStatus.END))
    subject.done(first, WorkDone(2))
    subject.done(second, WorkDone(1, status=SourceStatus.END))
    subject.done(second, WorkDone(2))
    subject.told(m.ProbeLoop(1, 7, [1]))
    assert subject.reports[-1] == m.LoopProbed(1, 7, at_rest=False, sent=0, consumed=0)
    subject.done(SINK, WorkDone(1, (((1, batch, 8),),), 1))
    subject.done(SubtaskId(1, 1), WorkDone(1))
    subject.told(m.ProbeLoop(1, 8, [1]))
    assert subject.reports[-1] == m.LoopProbed(1, 8, at_rest=True, sent=1, consumed=1)
    assert subject.told(m.EndLoop(1, 1)) == ["run t1.0 2 FinishWork", "run t1.1 2 FinishWork"]


def test_a_question_waits_until_the_worker_runs_and_one_of_another_epoch_is_dropped() -> None:
    subject = looping([[0], [1]])
    subject.told(m.ProbeLoop(1, 1, [1]))
    subject.told(m.Start(1))
    assert not [r for r in subject.reports if isinstance(r, m.LoopProbed)]
    subject.step(PeerConnected(1, 1))
    assert subject.reports[-1] == m.LoopProbed(1, 1, at_rest=False, sent=0, consumed=0)
    fenced = subject.worker.fenced
    subject.told(m.ProbeLoop(2, 1, [1]))
    subject.told(m.EndLoop(2, 1))
    assert subject.worker.fenced == fenced + 2
