"""The coordinator machine: attempts and restarts of a job.

An attempt begins when an epoch is claimed, the sinks are recovered and every worker is there; it
ends when anything in it fails. Then all workers drop it, the restart strategy waits, and the next
attempt starts from the newest complete checkpoint. Workers that live stay up and roll back in
place. Metadata, commits and searches under way are waited for before a new attempt chooses its
checkpoint: a checkpoint that becomes visible after the choice would be a second history.

When every subtask has finished, one last checkpoint is taken and committed, and the job ends.

`Coordinator` owns the phase, the epoch and the progress of the attempt. Its parts own the rest:
`Workers`, `Checkpoints`, `Transactions`, `Retention`, `Restarts`, `LoopEnds`, `Standstill`, `Stop`
and `Closing`. Each returns effects; the coordinator acts on findings among them (`_heed`).

Source: ABS (Carbone et al. 2015), section 4.2 for the protocol; Flink's two-phase commit for the
order of durability and commit. Deviation: commits are made here, not in the tasks, so that they
form one history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from headrace.recovery.history import EpochStart
from headrace.recovery.links import CheckpointLink
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot
from headrace.recovery.waves import first_wave

from ..contract import messages
from ..contract.execution import ExecutionPlan
from ..contract.places import redacted
from . import coordinator_events as events
from .checkpoints import Checkpoints
from .closing import Closing
from .coordinator_events import (
    AttemptBroken,
    ClaimEpoch,
    CloseConnection,
    CoordinatorEffect,
    CoordinatorEvent,
    FindCheckpoint,
    JobBroken,
    JobEnded,
    LastCheckpointCompleted,
    LastSavepointFailed,
    Notice,
    NoticeKind,
    Outcome,
    PartEffect,
    RequestAnswered,
    SendMessage,
    StopKind,
)
from .earlier_runs import NO_EARLIER_RUNS, EarlierRuns
from .loop_end import LoopEnds
from .pending import CheckpointUnderWay
from .restarts import Restarts
from .retention import Retention
from .rules import CoordinatorRules, Phase
from .standstill import Standstill
from .stop import Stop
from .transactions import Transactions
from .unanswered import unanswered
from .workers import Workers

#: Translates a checkpoint's subtasks into snapshots in terms of the plan that runs now.
Assign = Callable[[CheckpointMetadata], Sequence[SubtaskSnapshot]]
#: Puts an older checkpoint in terms of the plan's names.
Adapt = Callable[[CheckpointMetadata], CheckpointMetadata]


@dataclass(frozen=True, slots=True)
class CoordinatorStatistics:
    """Frozen facts for people.

    Attributes:
        under_way: checkpoints, oldest first.
        open_transactions: {sink: transactions that a complete checkpoint names, and whose commit
            is not confirmed}.
    """

    under_way: tuple[CheckpointUnderWay, ...] = ()
    open_transactions: Mapping[str, int] = field(default_factory=dict)


def as_it_is(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Adapt no name. A named function, so that machines can be copied."""
    return metadata


class Coordinator:
    """Machine of one job.

    Args:
        slots: slots by worker.
        restore: the checkpoint to start from, or None.
        origin: URL of the checkpoint directory of `restore`; empty: the job's own.
        place: number and epoch of `restore` in the job's history, if it has an origin; 0: none.
        claim: the link of `restore` among the job's checkpoints, if the job has claimed it.
        checkpoint_next: number of the next checkpoint; above every number ever used in this job's
            folder.
        assign: maps a checkpoint onto `plan`.
        epoch: claimed already, before `restore` was chosen; 0: none was.
        earlier: checkpoints of earlier runs in the job's folder.
        adapt: puts an older checkpoint, found when `restore` is damaged, in the plan's names.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        slots: list[list[int]],
        rules: CoordinatorRules,
        *,
        restore: CheckpointMetadata | None,
        origin: str = "",
        place: tuple[int, int] = (0, 0),
        claim: CheckpointLink | None = None,
        checkpoint_next: int,
        assign: Assign,
        epoch: int = 0,
        earlier: EarlierRuns = NO_EARLIER_RUNS,
        adapt: Adapt = as_it_is,
    ) -> None:
        self._plan = plan
        self._restore, self._origin, self._place = restore, origin, place
        self._assign, self._adapt = assign, adapt
        self.phase = Phase.PREPARING
        self.epoch = epoch
        #: Messages dropped because of their epoch or sender.
        self.fenced = 0
        self._workers = Workers(slots, rules)
        self._restarts = Restarts(rules.restarts)
        self._tries_max = rules.restarts.attempts_max + 1
        self._transactions = Transactions(restore, rules.restarts)
        self._retention = Retention(
            restore,
            rules.checkpoints.retain,
            elsewhere=bool(origin),
            claim=claim,
            earlier=earlier,
            epoch=epoch,
        )
        self._checkpoints = Checkpoints(
            plan,
            rules.mode,
            rules.checkpoints,
            restore,
            checkpoint_next,
            workers=self._workers,
            transactions=self._transactions,
            retention=self._retention,
        )
        self._loop_ends = LoopEnds(plan, self._workers)
        self._standstill = Standstill(plan)
        self._stop = Stop(rules.checkpoints.last_aligned_ns)
        self._closing = Closing(
            stop=self._stop,
            checkpoints=self._checkpoints,
            transactions=self._transactions,
            retention=self._retention,
            workers=self._workers,
        )
        self._claimed = epoch > 0
        self._recovered = False
        #: The checkpoint that the attempt started from.
        self._started_from = restore
        #: An older checkpoint is being looked for.
        self._searching = False
        #: The first wave of the attempt's replay.
        self._wave = 0
        #: Workers that have answered the Deploy.
        self._deployed: set[int] = set()
        self._finished: set[tuple[int, int]] = set()
        self._restart_at_ns: int | None = None
        #: When the attempt began to run.
        self._runs_since_ns = 0
        self._now_ns = 0

    # --- the verbs --------------------------------------------------------------------------------

    def start(self, now_ns: int) -> list[CoordinatorEffect]:
        """Begin: claim an epoch while the workers start."""
        self._now_ns = now_ns
        self._workers.await_all(now_ns)
        if self._claimed:
            return self._recover()
        return [ClaimEpoch(self.epoch)]

    def step(self, event: CoordinatorEvent, now_ns: int) -> list[CoordinatorEffect]:
        """Take one event; effects are to be performed in order."""
        self._now_ns = max(now_ns, self._now_ns)
        if self.phase is Phase.ENDED:
            return events.turned_away(event)
        return self._take(event) + self._advance()

    def next_deadline_ns(self) -> int | None:
        """When it wants TimePassed."""
        # A restart that is due but waits for storage goes on with storage's answer, not with time.
        restart_at_ns = None if self._awaits_storage() else self._restart_at_ns
        again_at_ns = self._transactions.again_at_ns
        deadlines = [restart_at_ns, again_at_ns, self._workers.next_deadline_ns()]
        if self.phase is Phase.RUNNING:
            stopping = self._stop.asked is not None or self._all_finished()
            deadlines.append(self._checkpoints.next_deadline_ns(stopping=stopping))
            deadlines.append(self._stop.overtake_at_ns)
            deadlines.append(self._loop_ends.next_deadline_ns())
        return min((t for t in deadlines if t is not None), default=None)

    def check(self) -> None:
        """Assert every invariant."""
        self._transactions.check()
        self._retention.check()
        self._checkpoints.check(running=self.phase in (Phase.RUNNING, Phase.CLOSING))
        if self.phase is Phase.DEPLOYING:
            assert not self._checkpoints.writing, "restarted while a checkpoint's fate was open"

    def statistics(self) -> CoordinatorStatistics:
        """What only the coordinator knows of its checkpoints and sinks."""
        open_transactions = Counter(t.sink for t in self._transactions.uncommitted)
        return CoordinatorStatistics(self._checkpoints.statistics(), dict(open_transactions))

    def describe(self) -> str:
        """The whole state as stable text."""
        return (
            f"coordinator {self.phase.value} epoch={self.epoch} {self._checkpoints.describe()}"
            f" finished={len(self._finished)} missing={self._workers.missing}"
            f" {self._retention.describe()} {self._transactions.describe()}"
        )

    # --- events -----------------------------------------------------------------------------------

    def _take(self, event: CoordinatorEvent) -> list[CoordinatorEffect]:
        match event:
            case events.MessageReceived():
                return self._message(event.connection, event.message)
            case events.ConnectionLost():
                return self._heed(self._workers.disconnected(event, self._now_ns))
            case events.WorkerExited():
                return self._heed(self._workers.exited(event, self._now_ns))
            case events.LauncherFailed():
                return self._end(Outcome.FAILED, event.reason)
            case events.EpochClaimed():
                self.epoch, self._claimed = event.epoch, True
                return self._recover()
            case events.EpochClaimFailed():
                self.epoch = max(self.epoch, event.tried)  # our own ghost is no successor
                return self._prepare_again(event.reason)
            case events.Superseded():
                self._claimed = False  # open transactions belong to the successor from now on
                return self._end(Outcome.FAILED, event.reason)
            case events.SinksRecovered():
                self._recovered = event.epoch == self.epoch
                if self._recovered:
                    self._transactions.recovered()
                    self._closing.recovered()
            case events.SinkFailed():
                return self._sink_failed(event)
            case events.MetadataWritten(checkpoint):
                self._restarts.progress()
                running = self.phase is Phase.RUNNING
                written = self._checkpoints.written(checkpoint, self._now_ns, running=running)
                return self._heed(written)
            case events.MetadataDiscarded(checkpoint, reason):
                return self._heed(self._checkpoints.discarded(checkpoint, reason, self._now_ns))
            case events.TransactionsCommitted():
                self._transactions.committed(event.checkpoint)
            case events.CheckpointsWithdrawn():
                return self._retention.withdrawn(event)
            case events.FilesDeleted():
                self._retention.deleted(event)
            case events.CheckpointFound():
                return self._found(event.metadata)
            case events.ClaimReleased():
                return self._retention.released(event)
            case events.CheckpointRequested():
                self._checkpoints.requested(event)
            case events.StopRequested():
                return self._stop_requested(event)
            case events.DriverSlept(slept_ns):
                self._workers.forgive(slept_ns, self._now_ns)
            case events.TimePassed():
                return self._time_passed()
            case _:
                assert_never(event)
        return []

    def _message(self, connection: int, message: messages.ToCoordinator) -> list[CoordinatorEffect]:
        if isinstance(message, messages.Register):
            return self._register(connection, message)
        if isinstance(message, messages.Pulse):
            return self._pulse(message)
        member = self._workers.of(connection)
        if member is None:
            self.fenced += 1
            return []
        member.hear(self._now_ns)
        if message.epoch != self.epoch or self.phase not in (Phase.DEPLOYING, Phase.RUNNING):
            self.fenced += not isinstance(message, messages.Heartbeat)
            return []
        match message:
            case messages.Deployed():
                self._deployed.add(member.worker)
            case messages.DeployFailed():
                return self._deploy_failed(message)
            case messages.Acknowledge():
                if self._checkpoints.is_pending(message.checkpoint):
                    self._checkpoints.acknowledged(member.worker, message)
                else:
                    self.fenced += 1
            case messages.Decline(_, checkpoint, reason):
                return self._heed(self._checkpoints.give_up(checkpoint, reason, self._now_ns))
            case messages.AttemptFailed():
                if message.fatal:
                    return self._end(Outcome.FAILED, message.reason, message.details)
                reason = f"worker {member.worker}: {message.reason}"
                return self._attempt_failed(reason, message.details)
            case messages.TaskFinished():
                self._finished.add((message.task, message.subtask))
            case messages.LoopProbed():
                return self._loop_ends.probed(member.worker, message, self._now_ns)
            case messages.Heartbeat():
                return self._heartbeat(message)
            case _:
                assert_never(message)
        return []

    def _register(self, connection: int, message: messages.Register) -> list[CoordinatorEffect]:
        if not self._workers.admits(message):
            self.fenced += 1
            shutdown = messages.Shutdown("an older incarnation")
            return [SendMessage(connection, shutdown), CloseConnection(connection)]
        # The attempt of the older incarnation fails before the newer one is a member.
        effects = self._heed(self._workers.make_place(message, self._now_ns))
        self._workers.register(connection, message, self._now_ns)
        return effects

    def _pulse(self, message: messages.Pulse) -> list[CoordinatorEffect]:
        silence_ns = self._workers.pulse(message, self._now_ns)
        if silence_ns is None:
            return []
        text = unanswered(self._plan, message, silence_ns)
        return [Notice(NoticeKind.WARNING, text)]

    def _heartbeat(self, message: messages.Heartbeat) -> list[CoordinatorEffect]:
        if self.phase is not Phase.RUNNING:
            return []
        return self._standstill.heard(message.subtasks, self._now_ns)

    def _time_passed(self) -> list[CoordinatorEffect]:
        now_ns = self._now_ns
        effects: list[CoordinatorEffect] = []
        for member in self._workers.silent(now_ns):
            effects.append(CloseConnection(member.connection))
            effects += self._heed(self._workers.lost(member, "no heartbeat", now_ns))
        effects += self._heed(self._workers.overdue(now_ns))
        return effects + self._heed(self._checkpoints.expire(now_ns))

    def _heed(self, results: Iterable[PartEffect]) -> list[CoordinatorEffect]:
        """Act on findings, each in place among the effects."""
        effects: list[CoordinatorEffect] = []
        for result in results:
            match result:
                case AttemptBroken(reason):
                    effects += self._attempt_failed(reason)
                case JobBroken(reason):
                    effects += self._end(Outcome.FAILED, reason)
                case LastCheckpointCompleted():
                    effects += self._last_completed(result)
                case LastSavepointFailed(reason):
                    effects += self._last_savepoint_failed(reason)
                case _:
                    effects.append(result)
        return effects

    # --- attempts ---------------------------------------------------------------------------------

    def _advance(self) -> list[CoordinatorEffect]:
        """Do everything possible now."""
        effects = self._transactions.again(self._now_ns)
        if self.phase is Phase.RESTARTING:
            effects += self._restart()
        if self.phase is Phase.PREPARING:
            effects += self._deploy()
        if self.phase is Phase.DEPLOYING and self._deployed.issuperset(self._workers.numbers):
            effects += self._start_attempt()
        if self.phase is Phase.RUNNING:
            effects += self._heed(self._checkpoints.write_ready(self._now_ns))
        if self.phase is Phase.RUNNING:
            effects += self._trigger_due()
            effects += self._loop_ends.advance(self._finished, self._now_ns)
        if self.phase is Phase.CLOSING and not self._awaits_storage():
            effects += self._close()
        return effects

    def _restart(self) -> list[CoordinatorEffect]:
        """Claim the next epoch, after the back-off, when no checkpoint's fate is open.

        The recovery in that epoch commits what a failed commit has left.
        """
        self._transactions.forget_again()
        due = self._restart_at_ns is not None and self._restart_at_ns <= self._now_ns
        if self._awaits_storage() or not due:
            return []
        self._restart_at_ns = None
        self.phase = Phase.PREPARING
        self._claimed = self._recovered = False
        return [ClaimEpoch(self.epoch)]

    def _awaits_storage(self) -> bool:
        """The fate of some checkpoint or commit is open."""
        return self._checkpoints.writing or self._searching or self._transactions.committing

    def _deploy(self) -> list[CoordinatorEffect]:
        if not (self._claimed and self._recovered):
            return []
        start = self._started_from = self._checkpoints.newest
        self._retention.started(start, self.epoch)
        snapshots = [] if start is None else self._assign(start)
        self._checkpoints.dealt(start, snapshots)
        self._finished = {(s.task, s.index) for s in snapshots if s.finished}
        if self._all_finished():
            return self._end(Outcome.FINISHED, "restored after the end of input")
        if not self._workers.complete:
            return []
        self._workers.await_nobody()
        self.phase = Phase.DEPLOYING
        self._deployed = set()
        number, job, origin = 0, self._plan.job, ""
        if start is not None:
            number, job = start.checkpoint, start.job or job
            origin = self._origin if start is self._restore else ""
        wave = self._wave = first_wave(snapshots)
        return [
            SendMessage(
                connection, messages.Deploy(self.epoch, peers, number, job, origin, share, wave)
            )
            for connection, peers, share in self._workers.shares(snapshots)
        ]

    def _start_attempt(self) -> list[CoordinatorEffect]:
        self.phase = Phase.RUNNING
        self._runs_since_ns = self._now_ns
        self._checkpoints.begin(self.epoch, self._now_ns, self._wave)
        self._loop_ends.begin(self.epoch)
        self._standstill.begin(self._now_ns)
        start = self._started_from
        point = "the beginning" if start is None else f"chk-{start.checkpoint}"
        return [
            *self._workers.send_all(messages.Start(self.epoch)),
            Notice(NoticeKind.RUNNING, f"attempt {self.epoch} runs from {point}"),
            *self._drain(),
        ]

    def _attempt_failed(self, reason: str, details: str = "") -> list[CoordinatorEffect]:
        """End the attempt, if one runs, and plan the next."""
        if self.phase not in (Phase.DEPLOYING, Phase.RUNNING):
            return []
        notice = Notice(NoticeKind.ATTEMPT_FAILED, reason)
        # Not the reason, which names the worker: the same record may fail on another.
        running = self.phase is Phase.RUNNING
        ran_ns = self._now_ns - self._runs_since_ns if running else 0
        wait_ns = self._restarts.next_wait_ns(details, ran_ns=ran_ns)
        if wait_ns is None:
            if self._restarts.given_up:
                reason = f"{reason} ({self._restarts.given_up})"
            return [notice, *self._end(Outcome.FAILED, reason, details)]
        effects = self._leave_attempt(reason)
        self.phase = Phase.RESTARTING
        self._restart_at_ns = self._now_ns + wait_ns
        return [notice, *effects]

    def _leave_attempt(self, reason: str, *, complete: bool = False) -> list[CoordinatorEffect]:
        effects = self._checkpoints.leave(reason, complete=complete)
        return effects + self._workers.send_all(messages.Abandon(self.epoch))

    def _prepare_again(self, reason: str) -> list[CoordinatorEffect]:
        """An epoch could not be claimed: back off, then try anew."""
        wait_ns = self._restarts.next_wait_ns()
        if wait_ns is None:
            return self._end(Outcome.FAILED, reason)
        self.phase = Phase.RESTARTING
        self._restart_at_ns = self._now_ns + wait_ns
        return []

    # --- damaged checkpoints ----------------------------------------------------------------------

    def _deploy_failed(self, message: messages.DeployFailed) -> list[CoordinatorEffect]:
        """A worker could not restore, for the checkpoint is damaged: try an older one."""
        reason, newest = message.reason, self._checkpoints.newest
        assert newest is not None, "nothing was restored, so nothing can be corrupt"
        if newest is not self._started_from:
            # The attempt still replays an older checkpoint; the newest may well be whole.
            return self._attempt_failed(reason)
        damaged = newest.checkpoint
        if self._origin and newest is self._restore:
            text = f"chk-{damaged} in {redacted(self._origin)} cannot be restored: {reason}"
            return self._end(Outcome.FAILED, text)
        self._searching = True
        text = (
            f"chk-{damaged} cannot be restored ({reason}); the one before it is used, so what"
            f" chk-{damaged} had committed to sinks will be written once more"
        )
        notice = Notice(NoticeKind.WARNING, text)
        return [notice, FindCheckpoint(damaged), *self._attempt_failed(reason)]

    def _found(self, older: CheckpointMetadata | None) -> list[CoordinatorEffect]:
        """Go on from an older checkpoint; a fresh start would write everything once more."""
        self._searching = False
        if older is not None:
            self._checkpoints.restored(self._adapt(older))
            return []
        damaged = self._checkpoints.newest
        assert damaged is not None, "nothing was damaged"
        text = (
            f"chk-{damaged.checkpoint} cannot be restored, and there is no older one;"
            " start the job without restore to read everything again"
        )
        return self._end(Outcome.FAILED, text)

    # --- sinks ------------------------------------------------------------------------------------

    def _recover(self) -> list[CoordinatorEffect]:
        """Note where the epoch starts, and recover the sinks from there."""
        newest = self._checkpoints.newest
        if newest is None or (newest is self._restore and self._origin):
            number, completed_by = self._place
        else:
            number, completed_by = newest.checkpoint, newest.epoch
        return self._transactions.recover(EpochStart(self.epoch, number, completed_by))

    def _sink_failed(self, event: events.SinkFailed) -> list[CoordinatorEffect]:
        """A commit or recovery failed: repeat it after a back-off, unless it never can succeed.

        While the attempt runs, a commit is repeated without an end.
        """
        sweeping = self._closing.sweeping
        if event.checkpoint is None and self.phase is not Phase.PREPARING and not sweeping:
            return []  # the recovery of an attempt that is not to begin any more
        wait_ns = self._transactions.failed(event.checkpoint, self._now_ns)
        if sweeping and (event.lost or wait_ns is None):
            return self._closing.leave_unswept(event.reason)
        if event.lost:
            return self._sinks_gave_up(event.reason)
        if wait_ns is None and self.phase in (Phase.PREPARING, Phase.CLOSING):
            times = f"gave up after {self._tries_max} tries; the next run of the job goes on"
            return self._sinks_gave_up(f"{event.reason} ({times})")
        again_at_ns = self._transactions.again_at_ns
        if again_at_ns is None or self.phase is Phase.RESTARTING:
            return []
        wait_s = (again_at_ns - self._now_ns) / 1e9
        return [Notice(NoticeKind.WARNING, f"{event.reason}; trying again in {wait_s:.3g} s")]

    def _sinks_gave_up(self, reason: str) -> list[CoordinatorEffect]:
        """Fail, and leave uncommitted transactions to the next run of the job."""
        self._transactions.forget_again()
        if self.phase is Phase.CLOSING:
            self._closing.outcome = JobEnded(Outcome.FAILED, reason, "")
        return self._end(Outcome.FAILED, reason)

    # --- the end ----------------------------------------------------------------------------------

    def _all_finished(self) -> bool:
        return len(self._finished) == sum(task.parallelism for task in self._plan.tasks)

    def _stop_requested(self, event: events.StopRequested) -> list[CoordinatorEffect]:
        """The first stop counts: neither a half drained job nor a last cut can be undone."""
        if event.kind is StopKind.NOW:
            return self._end(Outcome.STOPPED, "stopped at once")
        if self._stop.asked is None and self._closing.outcome is None:
            self._stop.ask(event, self._now_ns)
            return self._drain()
        if event.request is None:
            return []
        return [RequestAnswered(event.request, None, "the job is ending already")]

    def _drain(self) -> list[CoordinatorEffect]:
        if not self._stop.drains or self.phase is not Phase.RUNNING:
            return []
        # A checkpoint between the ends of two inputs would lose the rest of the ended one.
        effects = self._checkpoints.make_way("the job is drained")
        return effects + self._workers.send_all(messages.Drain(self.epoch))

    def _trigger_due(self) -> list[CoordinatorEffect]:
        last = self._all_finished() or self._stop.cuts
        if self._stop.drains and not last and not self._checkpoints.wave:
            return []
        effects: list[CoordinatorEffect] = []
        if self._stop.overtakes(self._now_ns):
            effects += self._checkpoints.make_way("the job stops", final=True)
        stop = self._stop.asked
        return effects + self._checkpoints.trigger_due(self._now_ns, last=last, stop=stop)

    def _last_completed(self, last: LastCheckpointCompleted) -> list[CoordinatorEffect]:
        answer = self._stop.answer(last.checkpoint) if last.savepoint else []
        kind = "savepoint " if last.savepoint else "chk-"
        outcome = Outcome.FINISHED if last.whole else Outcome.STOPPED
        reason = f"{kind}{last.checkpoint} covers everything"
        return answer + self._end(outcome, reason, complete=True)

    def _last_savepoint_failed(self, reason: str) -> list[CoordinatorEffect]:
        """Let the job go on, and tell the user."""
        drained = self._stop.drains
        effects = self._stop.failed(reason)
        if drained and self.phase is Phase.RUNNING:
            # The input has ended, which only a new attempt undoes. Nothing has been committed since
            # the checkpoint that it starts from.
            effects += self._attempt_failed(f"the last savepoint failed: {reason}")
        return effects

    def _end(
        self, outcome: Outcome, reason: str, details: str = "", *, complete: bool = False
    ) -> list[CoordinatorEffect]:
        """Close the attempt; commits under way are waited for."""
        if self.phase in (Phase.CLOSING, Phase.ENDED):
            return []
        effects = self._leave_attempt(reason, complete=complete)
        effects += self._checkpoints.refuse_requests(reason)
        self._closing.outcome = JobEnded(outcome, reason, details)
        self._restart_at_ns = None
        self._transactions.forget_again()
        self._workers.await_nobody()
        self.phase = Phase.CLOSING
        return effects

    def _close(self) -> list[CoordinatorEffect]:
        epoch = self.epoch if self._claimed else None
        effects = self._heed(self._closing.advance(epoch, self._now_ns))
        if self._closing.over:
            self.phase = Phase.ENDED
        return effects
