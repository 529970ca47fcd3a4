"""The coordinator machine: attempts, checkpoints, commits and the end of a job.

An attempt begins when an epoch is claimed, the sinks are recovered and every worker is there; it ends when anything in it fails. Then all
workers drop it, the restart strategy waits, and the next attempt starts from the newest complete checkpoint. Workers that
live stay up and roll back in place.

Checkpoints are the other half (`checkpointing.py`). What was begun with storage is waited for before a new attempt chooses where to restart: a
checkpoint that becomes visible after the choice would be a second history.

When every subtask has finished, one last checkpoint is taken and committed, and the job ends.

Source: ABS (Carbone et al. 2015), section 4.2 for the protocol; Flink's two-phase commit for the order of durability and commit. Deviation:
commits are made here, not in the tasks, so that they form one history.
"""

from __future__ import annotations

from typing import assert_never

from headrace.recovery.elsewhere import Elsewhere
from headrace.recovery.metadata import CheckpointMetadata

from ..contract import messages as m
from ..contract.execution import ExecutionPlan
from . import coordinator_events as d
from .checkpointing import Checkpointing, Verdict, to_all
from .ending import Ending
from .ledger import Ledger
from .leftovers import NOTHING_LEFT, Leftovers
from .membership import Loss, Membership
from .pending import Wish
from .restarts import Restarts
from .restore_point import Adapt, Assign, RestorePoint, as_it_is
from .roster import Member, Roster
from .rules import CoordinatorRules, Phase


class Coordinator:
    """Machine of one job.

    Args:
        slots: which slots each worker holds.
        restore: the checkpoint to start from, or None.
        origin: URL of the checkpoint directory that `restore` lies in; empty: the job's own.
        claim: the place of `restore` in the job's sequence, if the job has claimed it.
        checkpoint_next: number of the next checkpoint; above every number ever used in this job's folder.
        assign: maps a checkpoint onto `plan`.
        epoch: one that was claimed already, before `restore` was chosen; 0: none was.
        left: what earlier runs left in the job's folder.
        adapt: puts an older checkpoint, found when `restore` is damaged, in terms of the plan's names.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        slots: list[list[int]],
        rules: CoordinatorRules,
        *,
        restore: CheckpointMetadata | None,
        origin: str = "",
        claim: Elsewhere | None = None,
        checkpoint_next: int,
        assign: Assign,
        epoch: int = 0,
        left: Leftovers = NOTHING_LEFT,
        adapt: Adapt = as_it_is,
    ) -> None:
        self._plan = plan
        self._rules = rules
        self._roster = Roster(slots)
        self._members = Membership(self._roster, rules)
        self._restarts = Restarts(rules.restarts)
        self.phase = Phase.PREPARING
        self.epoch = epoch
        #: Messages dropped because of their epoch or sender.
        self.fenced = 0
        self._ledger = Ledger(
            restore, rules.checkpoints.retain, foreign=bool(origin), claim=claim, left=left
        )
        self._point = RestorePoint(self._ledger, restore, origin, assign, adapt)
        self._checkpoints = Checkpointing(
            plan, rules.mode, rules.checkpoints, self._roster, self._ledger, checkpoint_next
        )
        self._claimed = epoch > 0
        self._recovered = False
        #: Workers that have answered the Deploy.
        self._deployed: set[int] = set()
        self._finished: set[tuple[int, int]] = set()
        self._restart_at_ns: int | None = None
        self._ending = Ending()
        self._now_ns = 0

    # --- the verbs ----------------------------------------------------------------------------------------------

    def start(self, now_ns: int) -> list[d.CoordinatorEffect]:
        """Begin: claim an epoch while the workers start."""
        self._now_ns = now_ns
        self._members.await_all(now_ns)
        if self._claimed:
            return [d.RecoverSinks(self.epoch, self._ledger.uncommitted)]
        return [d.ClaimEpoch(self.epoch)]

    def step(self, event: d.CoordinatorEvent, now_ns: int) -> list[d.CoordinatorEffect]:
        """Take one event; effects are to be performed in order."""
        self._now_ns = max(now_ns, self._now_ns)
        if self.phase is Phase.ENDED:
            return d.turned_away(event)
        effects: list[d.CoordinatorEffect] = []
        self._take(event, effects)
        self._advance(effects)
        return effects

    def next_deadline_ns(self) -> int | None:
        """When it wants TimePassed."""
        # A restart that is due but waits for storage is resumed by storage's answer, not by time.
        restart_at_ns = None if self._awaits_storage() else self._restart_at_ns
        deadlines = [restart_at_ns, self._members.next_deadline_ns()]
        if self.phase is Phase.RUNNING:
            stopping = self._ending.stop is not None or self._all_finished()
            deadlines.append(self._checkpoints.next_deadline_ns(stopping=stopping))
        return min((t for t in deadlines if t is not None), default=None)

    def check(self) -> None:
        """Assert every invariant."""
        self._ledger.check()
        self._checkpoints.check(running=self.phase in (Phase.RUNNING, Phase.CLOSING))
        if self.phase is Phase.DEPLOYING:
            assert not self._checkpoints.writing, "restarted while a checkpoint's fate was open"

    def describe(self) -> str:
        """The whole state as stable text."""
        return (
            f"coordinator {self.phase.value} epoch={self.epoch} {self._checkpoints.describe()}"
            f" finished={len(self._finished)}"
            f" missing={self._roster.missing} {self._ledger.describe()}"
        )

    # --- events -------------------------------------------------------------------------------------------------

    def _take(self, event: d.CoordinatorEvent, effects: list[d.CoordinatorEffect]) -> None:
        match event:
            case d.MessageReceived():
                self._message(event.connection, event.message, effects)
            case d.ConnectionLost():
                member = self._roster.of(event.connection)
                if member is not None:
                    self._lost(member, event.reason, effects)
            case d.WorkerExited():
                self._bear(self._members.exited(event, self._now_ns, effects), effects)
            case d.LauncherFailed():
                self._end(d.Outcome.FAILED, event.reason, "", effects)
            case d.EpochClaimed():
                self.epoch, self._claimed = event.epoch, True
                effects.append(d.RecoverSinks(self.epoch, self._ledger.uncommitted))
            case d.EpochClaimFailed():
                self.epoch = max(self.epoch, event.tried)  # our own ghost is no successor
                self._claim_failed(event.reason, effects)
            case d.Superseded():
                self._claimed = False  # from now on what is open in the sinks is another's
                self._end(d.Outcome.FAILED, event.reason, "", effects)
            case d.SinksRecovered():
                self._recovered = event.epoch == self.epoch
                if self._recovered:
                    self._ledger.all_committed()
            case d.SinkFailed():
                self._sink_failed(event, effects)
            case d.MetadataWritten():
                self._metadata_written(event.checkpoint, effects)
            case d.MetadataDiscarded():
                self._give_up(event, effects)
            case d.TransactionsCommitted():
                self._ledger.committed(event.checkpoint)
            case d.CheckpointsWithdrawn():
                self._checkpoints.deletion.withdrawn(event, effects)
            case d.FilesDeleted():
                self._checkpoints.deletion.deleted(event)
            case d.CheckpointFound():
                failure = self._point.found(event.metadata)
                if failure is not None:
                    self._end(d.Outcome.FAILED, failure, "", effects)
            case d.ClaimReleased():
                self._checkpoints.deletion.released(event, effects)
            case d.CheckpointRequested():
                self._checkpoints.requested(Wish(event.request, event.savepoint))
            case d.StopRequested():
                self._stop_requested(event, effects)
            case d.TimePassed():
                self._time_passed(effects)
            case _:
                assert_never(event)

    def _stop_requested(self, event: d.StopRequested, effects: list[d.CoordinatorEffect]) -> None:
        if event.kind is d.StopKind.NOW:
            self._end(d.Outcome.STOPPED, "stopped at once", "", effects)
        elif self._ending.asked(event, effects):
            self._drain(effects)

    def _drain(self, effects: list[d.CoordinatorEffect]) -> None:
        if self._ending.is_drained and self.phase is Phase.RUNNING:
            # A checkpoint in which some inputs have ended, and others have not, would lose the rest of those that have.
            self._checkpoints.make_way("the job is drained", effects)
            self._to_all(m.Drain(self.epoch), effects)

    def _message(
        self, connection: int, message: m.ToCoordinator, effects: list[d.CoordinatorEffect]
    ) -> None:
        if isinstance(message, m.Register):
            self._register(connection, message, effects)
            return
        member = self._roster.of(connection)
        if member is None:
            self.fenced += 1
            return
        member.seen_ns = self._now_ns
        if message.epoch != self.epoch or self.phase not in (Phase.DEPLOYING, Phase.RUNNING):
            self.fenced += not isinstance(message, m.Heartbeat)
            return
        match message:
            case m.Deployed():
                self._deployed.add(member.worker)
            case m.DeployFailed():
                self._deploy_failed(message, effects)
            case m.Acknowledge():
                self.fenced += not self._checkpoints.acknowledged(member.worker, message)
            case m.Decline():
                self._give_up(message, effects)
            case m.AttemptFailed():
                reason = f"worker {member.worker}: {message.reason}"
                if message.fatal:
                    self._end(d.Outcome.FAILED, message.reason, message.details, effects)
                else:
                    self._attempt_failed(reason, message.details, effects)
            case m.TaskFinished():
                self._finished.add((message.task, message.subtask))
            case m.Heartbeat():
                pass
            case _:
                assert_never(message)

    def _register(
        self, connection: int, message: m.Register, effects: list[d.CoordinatorEffect]
    ) -> None:
        self._bear(self._members.replaced_by(message, self._now_ns, effects), effects)
        self.fenced += not self._members.register(connection, message, self._now_ns, effects)

    def _lost(self, member: Member, reason: str, effects: list[d.CoordinatorEffect]) -> None:
        self._bear(self._members.lost(member, reason, self._now_ns, effects), effects)

    def _bear(self, loss: Loss, effects: list[d.CoordinatorEffect]) -> None:
        if loss.job:
            self._end(d.Outcome.FAILED, loss.job, "", effects)
        elif loss.attempt:
            self._attempt_failed(loss.attempt, "", effects)

    def _time_passed(self, effects: list[d.CoordinatorEffect]) -> None:
        now_ns = self._now_ns
        for member in self._members.silent(now_ns):
            effects.append(d.CloseConnection(member.connection))
            self._lost(member, "no heartbeat", effects)
        overdue = self._members.overdue(now_ns)
        if overdue:
            missing = ", ".join(map(str, overdue))
            self._end(d.Outcome.FAILED, f"workers {missing} did not start in time", "", effects)
        self._heed(self._checkpoints.expire(now_ns, effects), effects)

    # --- attempts -----------------------------------------------------------------------------------------------

    def _advance(self, effects: list[d.CoordinatorEffect]) -> None:
        """Whatever has become possible."""
        if self.phase is Phase.RESTARTING:
            self._restart(effects)
        if self.phase is Phase.PREPARING:
            self._deploy(effects)
        if self.phase is Phase.DEPLOYING and len(self._deployed) == len(self._roster.members):
            self._start_attempt(effects)
        if self.phase is Phase.RUNNING:
            self._heed(self._checkpoints.write_ready(self._now_ns, effects), effects)
        if self.phase is Phase.RUNNING:
            last = self._ending.takes_last(finished=self._all_finished())
            if last or not self._ending.is_drained:
                self._checkpoints.trigger_due(
                    self._now_ns, last=last, effects=effects, stop=self._ending.stop
                )
        if self.phase is Phase.CLOSING and not self._awaits_storage():
            self._close(effects)

    def _restart(self, effects: list[d.CoordinatorEffect]) -> None:
        """The back-off is over and no checkpoint's fate is open: claim the next epoch."""
        if self._awaits_storage():
            return
        if self._restart_at_ns is None or self._restart_at_ns > self._now_ns:
            return
        self._restart_at_ns = None
        self.phase = Phase.PREPARING
        self._claimed = self._recovered = False
        effects.append(d.ClaimEpoch(self.epoch))

    def _awaits_storage(self) -> bool:
        """Some checkpoint's or commit's fate is open."""
        return self._checkpoints.writing or self._point.is_searching or self._ledger.committing

    def _deploy(self, effects: list[d.CoordinatorEffect]) -> None:
        if not (self._claimed and self._recovered):
            return
        start = self._point.start()
        self._finished = {(s.task, s.index) for s in start.snapshots if s.finished}
        if self._all_finished():
            self._end(d.Outcome.FINISHED, "restored after the end of input", "", effects)
            return
        if not self._roster.complete:
            return
        self._members.await_nobody()
        self.phase = Phase.DEPLOYING
        self._deployed = set()
        job = start.job or self._plan.job
        for connection, peers, held in self._roster.shares(start.snapshots):
            deploy = m.Deploy(self.epoch, peers, start.checkpoint, job, start.origin, held)
            effects.append(d.SendMessage(connection, deploy))

    def _start_attempt(self, effects: list[d.CoordinatorEffect]) -> None:
        self.phase = Phase.RUNNING
        self._checkpoints.begin(self.epoch, self._now_ns)
        self._to_all(m.Start(self.epoch), effects)
        text = f"attempt {self.epoch} runs from {self._point.describe()}"
        effects.append(d.Notice(d.NoticeKind.RUNNING, text))
        self._drain(effects)

    def _attempt_failed(
        self, reason: str, details: str, effects: list[d.CoordinatorEffect]
    ) -> None:
        """End the attempt and plan the next; a failure of no attempt, or of one that has failed already, changes nothing."""
        if self.phase not in (Phase.DEPLOYING, Phase.RUNNING):
            return
        effects.append(d.Notice(d.NoticeKind.ATTEMPT_FAILED, reason))
        # Not the reason, which names the worker: the same record may fail on another.
        wait_ns = self._restarts.next_wait_ns(details)
        if wait_ns is None:
            if self._restarts.in_a_row:
                reason = (
                    f"{reason} (gave up after {self._restarts.in_a_row} restarts without progress)"
                )
            self._end(d.Outcome.FAILED, reason, details, effects)
            return
        self._leave_attempt(reason, effects)
        self.phase = Phase.RESTARTING
        self._restart_at_ns = self._now_ns + wait_ns

    def _leave_attempt(
        self, reason: str, effects: list[d.CoordinatorEffect], *, complete: bool = False
    ) -> None:
        self._checkpoints.leave(reason, effects, complete=complete)
        self._to_all(m.Abandon(self.epoch), effects)

    def _deploy_failed(self, message: m.DeployFailed, effects: list[d.CoordinatorEffect]) -> None:
        failure = self._point.cannot_be_loaded(message, effects)
        if failure is None:
            self._attempt_failed(message.reason, "", effects)
        else:
            self._end(d.Outcome.FAILED, failure, "", effects)

    def _claim_failed(self, reason: str, effects: list[d.CoordinatorEffect]) -> None:
        wait_ns = self._restarts.next_wait_ns()
        if wait_ns is None:
            self._end(d.Outcome.FAILED, reason, "", effects)
            return
        self.phase = Phase.RESTARTING
        self._restart_at_ns = self._now_ns + wait_ns

    # --- checkpoints --------------------------------------------------------------------------------------------

    def _metadata_written(self, checkpoint: int, effects: list[d.CoordinatorEffect]) -> None:
        self._restarts.progress()
        written, running = self._checkpoints.written, self.phase is Phase.RUNNING
        self._heed(written(checkpoint, self._now_ns, running=running, effects=effects), effects)

    def _give_up(
        self, what: m.Decline | d.MetadataDiscarded, effects: list[d.CoordinatorEffect]
    ) -> None:
        drop = (
            self._checkpoints.give_up
            if isinstance(what, m.Decline)
            else self._checkpoints.discarded
        )
        self._heed(drop(what.checkpoint, what.reason, self._now_ns, effects), effects)

    def _heed(self, verdict: Verdict, effects: list[d.CoordinatorEffect]) -> None:
        if verdict.failure:
            self._attempt_failed(verdict.failure, "", effects)
        elif verdict.final is not None:
            outcome = d.Outcome.FINISHED if verdict.whole else d.Outcome.STOPPED
            if verdict.saved:
                self._ending.answer(verdict.final, "", effects)
            kind = "savepoint " if verdict.saved else "chk-"
            reason = f"{kind}{verdict.final} covers everything"
            self._end(outcome, reason, "", effects, complete=True)
        elif verdict.unsaved:
            self._go_on(verdict.unsaved, effects)

    def _go_on(self, unsaved: str, effects: list[d.CoordinatorEffect]) -> None:
        """The savepoint with which the job was to end has failed: it does not end, and whoever wanted that is told."""
        drained = self._ending.is_drained
        self._ending.called_off(unsaved, effects)
        if drained and self.phase is Phase.RUNNING:
            # Its input has ended, which only a new attempt undoes. Nothing has been committed since the checkpoint that it starts from.
            self._attempt_failed(f"the last savepoint failed: {unsaved}", "", effects)

    # --- sinks --------------------------------------------------------------------------------------------------

    def _sink_failed(self, event: d.SinkFailed, effects: list[d.CoordinatorEffect]) -> None:
        """Commit or recovery failed; the next attempt's recovery repeats it."""
        self._ledger.commit_failed(event.checkpoint)
        if self.phase is Phase.CLOSING:
            self._commit_again(event, effects)
        elif self.phase is Phase.PREPARING:
            self._claim_failed(event.reason, effects)
        else:
            self._attempt_failed(event.reason, "", effects)

    def _commit_again(self, event: d.SinkFailed, effects: list[d.CoordinatorEffect]) -> None:
        """No attempt will follow that could repeat the last commit, so it is repeated here, like a restart."""
        wait_ns = self._restarts.next_wait_ns()
        if wait_ns is None:
            self._ending.outcome = d.JobEnded(d.Outcome.FAILED, event.reason, "")
            return
        effects.append(d.Notice(d.NoticeKind.WARNING, f"{event.reason}; trying again"))
        self._restart_at_ns = self._now_ns + wait_ns

    # --- the end ------------------------------------------------------------------------------------------------

    def _all_finished(self) -> bool:
        return len(self._finished) == sum(task.parallelism for task in self._plan.tasks)

    def _end(
        self,
        outcome: d.Outcome,
        reason: str,
        details: str,
        effects: list[d.CoordinatorEffect],
        *,
        complete: bool = False,
    ) -> None:
        """Close the attempt; commits under way are waited for."""
        if self.phase in (Phase.CLOSING, Phase.ENDED):
            return
        self._leave_attempt(reason, effects, complete=complete)
        self._checkpoints.refuse_requests(reason, effects)
        self._ending.outcome = d.JobEnded(outcome, reason, details)
        self._restart_at_ns = None
        self._members.await_nobody()
        self.phase = Phase.CLOSING

    def _close(self, effects: list[d.CoordinatorEffect]) -> None:
        if self._restart_at_ns is None:
            self._conclude(effects)
        elif self._restart_at_ns <= self._now_ns:
            self._restart_at_ns = None
            checkpoint, records = self._ledger.commit_again()
            effects.append(d.CommitTransactions(checkpoint, records))

    def _conclude(self, effects: list[d.CoordinatorEffect]) -> None:
        self._checkpoints.write_ready(self._now_ns, effects)  # savepoints, after the last commit
        if self._checkpoints.writing:
            return
        ended = self._ending.outcome
        assert ended is not None, "closing without a reason"
        self._ending.answer(None, f"the job ended without it: {ended.reason}", effects)
        self._checkpoints.leave(ended.reason, effects)
        deletion = self._checkpoints.deletion
        if ended.outcome is d.Outcome.FAILED:
            over = not deletion.awaits
        else:
            over = deletion.finish(effects)
        if not over:
            return
        if self._claimed and not self._ledger.uncommitted:
            effects.append(d.RecoverSinks(self.epoch, ()))
        self._to_all(m.Shutdown(ended.reason), effects)
        effects.append(ended)
        self.phase = Phase.ENDED

    def _to_all(self, message: m.ToWorker, effects: list[d.CoordinatorEffect]) -> None:
        effects += to_all(self._roster, message)
