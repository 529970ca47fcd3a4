"""The coordinator machine: attempts, checkpoints, commits and the end of a job.

An attempt begins when an epoch is claimed, the sinks are recovered and every worker is there; it ends when anything in it fails. Then all
workers drop it, the restart strategy waits, and the next attempt starts from the newest complete checkpoint. Workers that
live stay up and roll back in place.

A checkpoint: trigger -> every worker's acknowledgement -> tile check -> metadata written -> *only then* complete -> workers told, transactions
committed, older checkpoints deleted. What was begun with storage is waited for before a new attempt chooses where to restart: a
checkpoint that becomes visible after the choice would be a second history.

When every subtask has finished, one last checkpoint is taken and committed, and the job ends.

Source: ABS (Carbone et al. 2015), section 4.2 for the protocol; Flink's two-phase commit for the order of durability and commit. Deviation:
commits are made here, not in the tasks, so that they form one history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from headrace.channels.buffer import ChannelId
from headrace.channels.events import CheckpointMode
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot
from headrace.recovery.tiles import check_tiles

from ..plan.execution import ExecutionPlan
from ..runtime.wiring import channels_from
from . import decisions as d
from . import messages as m
from .ledger import Ledger, metadata_of
from .pending import CheckpointRules, PendingCheckpoint, Schedule
from .restarts import RestartRules, Restarts
from .roster import Member, Roster


class Phase(Enum):
    """Where the job stands."""

    #: An epoch is claimed, sinks recovered, workers waited for.
    PREPARING = "preparing"
    DEPLOYING = "deploying"
    RUNNING = "running"
    #: The attempt has failed; storage is being waited for, then the back-off.
    RESTARTING = "restarting"
    #: The last commits are under way.
    CLOSING = "closing"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class CoordinatorRules:
    """All that can be set. Times in nanoseconds.

    Attributes:
        mode: how barriers travel.
        heartbeat_timeout_ns: a worker that is silent for longer is lost.
        register_timeout_ns: how long to wait for all workers before giving up the job.
    """

    mode: CheckpointMode
    checkpoints: CheckpointRules
    restarts: RestartRules
    heartbeat_timeout_ns: int
    register_timeout_ns: int


#: Translates a checkpoint's subtasks into snapshots in terms of the plan that runs now.
Assign = Callable[[CheckpointMetadata], Sequence[SubtaskSnapshot]]


class Coordinator:
    """Machine of one job.

    Args:
        slots: which slots each worker holds.
        restore: the checkpoint to start from, or None.
        origin: URL of the checkpoint directory that `restore` lies in; empty: the job's own.
        checkpoint_next: number of the next checkpoint; above every number ever used in this job's folder.
        assign: maps a checkpoint onto `plan`.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        slots: list[list[int]],
        rules: CoordinatorRules,
        *,
        restore: CheckpointMetadata | None,
        origin: str = "",
        checkpoint_next: int,
        assign: Assign,
    ) -> None:
        self._plan = plan
        #: Every channel of the plan: what a checkpoint must tile.
        self._channels = {
            channel
            for edge in plan.edges
            for producer in range(plan.tasks[edge.producer].parallelism)
            for channel in channels_from(plan, edge, producer)
        }
        self._rules = rules
        self._assign = assign
        self._roster = Roster(slots)
        self._schedule = Schedule(rules.checkpoints)
        self._restarts = Restarts(rules.restarts)
        self.phase = Phase.PREPARING
        self.epoch = 0
        #: Messages dropped because of their epoch or sender.
        self.fenced = 0
        self._restored, self._origin = restore, origin
        self._ledger = Ledger(restore, rules.checkpoints.retain)
        self._next = checkpoint_next
        self._claimed = False
        self._recovered = False
        #: Workers that have answered the Deploy.
        self._deployed: set[int] = set()
        self._finished: set[tuple[int, int]] = set()
        self._pending: dict[int, PendingCheckpoint] = {}
        #: The checkpoint whose metadata is being written, if any; waited for before everything else.
        self._writing: tuple[PendingCheckpoint, CheckpointMetadata] | None = None
        #: Workers that ended before they registered, since one last did.
        self._stillborn = 0
        self._requests: list[int] = []
        self._stop: d.StopKind | None = None
        self._restart_at_ns: int | None = None
        self._register_by_ns: int | None = None
        self._ending: d.JobEnded | None = None
        self._finding = False
        self._now_ns = 0

    # --- the verbs ----------------------------------------------------------------------------------------------

    def start(self, now_ns: int) -> list[d.CoordinatorEffect]:
        """Begin: claim an epoch while the workers start."""
        self._now_ns = now_ns
        self._register_by_ns = now_ns + self._rules.register_timeout_ns
        return [d.ClaimEpoch(self.epoch)]

    def step(self, event: d.CoordinatorEvent, now_ns: int) -> list[d.CoordinatorEffect]:
        """Take one event; effects are to be performed in order."""
        self._now_ns = max(now_ns, self._now_ns)
        if self.phase is Phase.ENDED:
            return _turned_away(event)
        effects: list[d.CoordinatorEffect] = []
        self._take(event, effects)
        self._advance(effects)
        return effects

    def next_deadline_ns(self) -> int | None:
        """When it wants TimePassed."""
        # A restart that is due but waits for storage is resumed by storage's answer, not by time.
        restart_at_ns = None if self._awaits_storage() else self._restart_at_ns
        deadlines = [restart_at_ns, self._register_by_ns]
        if self.phase is Phase.RUNNING:
            timeout_ns = self._rules.checkpoints.timeout_ns
            deadlines += [p.created_ns + timeout_ns for p in self._pending.values()]
            if self._may_trigger():
                deadlines.append(self._schedule.due_ns)
        sign_ns = self._roster.oldest_sign_ns
        if sign_ns is not None:
            deadlines.append(sign_ns + self._rules.heartbeat_timeout_ns + 1)
        return min((t for t in deadlines if t is not None), default=None)

    def check(self) -> None:
        """Assert every invariant."""
        self._ledger.check()
        assert self._next > max(self._pending, default=0), self.describe()
        if self.phase is not Phase.RUNNING:
            assert not self._pending, self.describe()
        if self.phase is Phase.DEPLOYING:
            assert self._writing is None, "restarted while a checkpoint's fate was open"

    def describe(self) -> str:
        """The whole state as stable text."""
        return (
            f"coordinator {self.phase.value} epoch={self.epoch} pending={sorted(self._pending)}"
            f" finished={len(self._finished)} next={self._next}"
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
                self._exited(event, effects)
            case d.LauncherFailed():
                self._end(d.Outcome.FAILED, event.reason, "", effects)
            case d.EpochClaimed():
                self.epoch, self._claimed = event.epoch, True
                effects.append(d.RecoverSinks(self.epoch, self._ledger.uncommitted))
            case d.EpochClaimFailed():
                self._claim_failed(event.reason, effects)
            case d.Superseded():
                # From now on what is open in the sinks is another's.
                self._claimed = False
                self._end(d.Outcome.FAILED, event.reason, "", effects)
            case d.SinksRecovered():
                if event.epoch == self.epoch:
                    self._recovered = True
                    self._ledger.all_committed()
            case d.SinkFailed():
                self._sink_failed(event, effects)
            case d.MetadataWritten():
                self._metadata_written(event.checkpoint, effects)
            case d.MetadataDiscarded():
                self._metadata_discarded(event, effects)
            case d.TransactionsCommitted():
                self._ledger.committed(event.checkpoint)
            case d.CheckpointFound():
                self._found(event.metadata, effects)
            case d.CheckpointRequested():
                self._requests.append(event.request)
            case d.StopRequested():
                self._stop_requested(event.kind, effects)
            case d.TimePassed():
                self._time_passed(effects)
            case _:
                assert_never(event)

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
                self._acknowledged(member.worker, message, effects)
            case m.Decline():
                self._give_up(message.checkpoint, message.reason, effects)
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
        older = self._roster.member(message.worker)
        if older is not None and message.incarnation > older.incarnation:
            effects.append(d.SendMessage(older.connection, m.Shutdown("replaced")))
            effects.append(d.CloseConnection(older.connection))
            # Its successor is here: asking for another would set off a chain of successors without end.
            reason = f"incarnation {message.incarnation} took its place"
            self._lost(older, reason, effects, replace=False)
        if not self._roster.register(connection, message, self._now_ns):
            self.fenced += 1
            effects.append(d.SendMessage(connection, m.Shutdown("an older incarnation")))
            effects.append(d.CloseConnection(connection))
            return
        self._stillborn = 0

    def _exited(self, event: d.WorkerExited, effects: list[d.CoordinatorEffect]) -> None:
        member = self._roster.member(event.worker)
        if member is not None and member.incarnation == event.incarnation:
            self._lost(member, event.reason, effects)
        elif self._roster.never_seen(event.worker, event.incarnation):
            text = f"worker {event.worker} ended before it registered: {event.reason}"
            effects.append(d.Notice(d.NoticeKind.WORKER_LOST, text))
            self._stillborn += 1
            if self._stillborn > self._rules.restarts.attempts_max:
                self._end(d.Outcome.FAILED, text, "", effects)
            else:
                effects.append(d.ReplaceWorker(event.worker))

    def _lost(
        self,
        member: Member,
        reason: str,
        effects: list[d.CoordinatorEffect],
        *,
        replace: bool = True,
    ) -> None:
        self._roster.remove(member.worker)
        effects.append(d.Notice(d.NoticeKind.WORKER_LOST, f"worker {member.worker}: {reason}"))
        if replace:
            effects.append(d.ReplaceWorker(member.worker))
        self._register_by_ns = self._now_ns + self._rules.register_timeout_ns
        self._attempt_failed(f"worker {member.worker} was lost: {reason}", "", effects)

    def _time_passed(self, effects: list[d.CoordinatorEffect]) -> None:
        now_ns = self._now_ns
        for member in self._roster.silent(now_ns - self._rules.heartbeat_timeout_ns):
            effects.append(d.CloseConnection(member.connection))
            self._lost(member, "no heartbeat", effects)
        if self._register_by_ns is not None and self._register_by_ns <= now_ns:
            self._register_by_ns = None
            if not self._roster.complete:
                missing = ", ".join(map(str, self._roster.missing))
                reason = f"workers {missing} did not start in time"
                self._end(d.Outcome.FAILED, reason, "", effects)
        for pending in list(self._pending.values()):
            if pending.created_ns + self._rules.checkpoints.timeout_ns <= now_ns:
                self._give_up(pending.number, "it took longer than the timeout", effects)

    def _stop_requested(self, kind: d.StopKind, effects: list[d.CoordinatorEffect]) -> None:
        if kind is d.StopKind.NOW:
            self._end(d.Outcome.STOPPED, "stopped at once", "", effects)
        self._stop = kind

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
            self._write_ready(effects)
        if self.phase is Phase.RUNNING:
            self._trigger_due(effects)
        if self.phase is Phase.CLOSING and not self._ledger.committing:
            self._conclude(effects)

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
        return self._writing is not None or self._finding or self._ledger.committing

    def _deploy(self, effects: list[d.CoordinatorEffect]) -> None:
        if not (self._claimed and self._recovered):
            return
        restore = self._ledger.newest
        snapshots = [] if restore is None else list(self._assign(restore))
        self._finished = {(s.task, s.index) for s in snapshots if s.finished}
        if self._all_finished():
            self._end(d.Outcome.FINISHED, "restored after the end of input", "", effects)
            return
        if not self._roster.complete:
            return
        self._register_by_ns = None
        self.phase = Phase.DEPLOYING
        self._deployed = set()
        addresses = [member.address for member in self._roster.members]
        checkpoint = 0 if restore is None else restore.checkpoint
        for member in self._roster.members:
            held = [s for s in snapshots if s.index in member.address.slots]
            deploy = m.Deploy(
                epoch=self.epoch,
                workers=addresses,
                checkpoint=checkpoint,
                job=self._plan.job if restore is None else restore.job,
                origin=self._origin if restore is self._restored else "",
                restore=held,
            )
            effects.append(d.SendMessage(member.connection, deploy))

    def _start_attempt(self, effects: list[d.CoordinatorEffect]) -> None:
        self.phase = Phase.RUNNING
        self._schedule.attempt_started(self._now_ns)
        self._to_all(m.Start(self.epoch), effects)
        restore = self._ledger.newest
        origin = "the beginning" if restore is None else f"chk-{restore.checkpoint}"
        effects.append(d.Notice(d.NoticeKind.RUNNING, f"attempt {self.epoch} runs from {origin}"))

    def _attempt_failed(
        self, reason: str, details: str, effects: list[d.CoordinatorEffect]
    ) -> None:
        """End the attempt and plan the next; a failure of no attempt, or of one that has failed already, changes nothing."""
        if self.phase not in (Phase.DEPLOYING, Phase.RUNNING):
            return
        effects.append(d.Notice(d.NoticeKind.ATTEMPT_FAILED, reason))
        wait_ns = self._restarts.next_wait_ns()
        if wait_ns is None:
            reason = f"gave up after {self._restarts.in_a_row} restarts without progress: {reason}"
            self._end(d.Outcome.FAILED, reason, details, effects)
            return
        self._leave_attempt(reason, effects)
        self.phase = Phase.RESTARTING
        self._restart_at_ns = self._now_ns + wait_ns

    def _leave_attempt(self, reason: str, effects: list[d.CoordinatorEffect]) -> None:
        self._schedule.attempt_ended()
        for pending in list(self._pending.values()):
            del self._pending[pending.number]
            self._ledger.given_up(pending.number, self._next)
            self._answer(pending, None, reason, effects)
        self._to_all(m.Abandon(self.epoch), effects)

    def _deploy_failed(self, message: m.DeployFailed, effects: list[d.CoordinatorEffect]) -> None:
        if not message.corrupt:
            self._end(d.Outcome.FAILED, message.reason, "", effects)
            return
        restore = self._ledger.newest
        assert restore is not None, "nothing was restored, so nothing can be corrupt"
        damaged = restore.checkpoint
        text = (
            f"chk-{damaged} cannot be restored ({message.reason}); the one before it is used, so what"
            f" chk-{damaged} had committed to sinks will be written once more"
        )
        effects.append(d.Notice(d.NoticeKind.WARNING, text))
        self._attempt_failed(message.reason, "", effects)
        self._finding = True
        effects.append(d.FindCheckpoint(damaged))

    def _found(
        self, metadata: CheckpointMetadata | None, effects: list[d.CoordinatorEffect]
    ) -> None:
        """Go on from an older checkpoint. Without one the job fails: to start afresh would write everything once more."""
        self._finding = False
        if metadata is not None:
            self._ledger.restored(metadata)
            return
        damaged = self._ledger.newest
        assert damaged is not None, "nothing was damaged"
        reason = (
            f"chk-{damaged.checkpoint} cannot be restored, and there is no older one;"
            " start the job without restore to read everything again"
        )
        self._end(d.Outcome.FAILED, reason, "", effects)

    def _claim_failed(self, reason: str, effects: list[d.CoordinatorEffect]) -> None:
        wait_ns = self._restarts.next_wait_ns()
        if wait_ns is None:
            self._end(d.Outcome.FAILED, reason, "", effects)
            return
        self.phase = Phase.RESTARTING
        self._restart_at_ns = self._now_ns + wait_ns

    # --- checkpoints --------------------------------------------------------------------------------------------

    def _may_trigger(self) -> bool:
        under_way = len(self._pending) + (self._writing is not None)
        return under_way < self._rules.checkpoints.concurrent and self._stop is None

    def _trigger_due(self, effects: list[d.CoordinatorEffect]) -> None:
        under_way = bool(self._pending) or self._writing is not None
        if self._all_finished() or self._stop is d.StopKind.WITH_CHECKPOINT:
            # The last one comes alone, so that nothing is pending when the job ends.
            if not under_way:
                self._trigger(final=True, effects=effects)
            return
        due_ns = self._schedule.due_ns
        due = due_ns is not None and due_ns <= self._now_ns
        if self._may_trigger() and (due or self._requests):
            self._trigger(final=False, effects=effects)

    def _trigger(self, *, final: bool, effects: list[d.CoordinatorEffect]) -> None:
        number, self._next = self._next, self._next + 1
        request = self._requests.pop(0) if self._requests else None
        self._pending[number] = PendingCheckpoint(number, self._now_ns, final, request)
        self._schedule.triggered(self._now_ns)
        mode = self._rules.mode.value
        self._to_all(m.Trigger(self.epoch, number, mode, self._now_ns), effects)

    def _acknowledged(
        self, worker: int, message: m.Acknowledge, effects: list[d.CoordinatorEffect]
    ) -> None:
        pending = self._pending.get(message.checkpoint)
        if pending is None:
            self.fenced += 1
            return
        pending.acknowledge(worker, message)

    def _write_ready(self, effects: list[d.CoordinatorEffect]) -> None:
        """One metadata at a time, oldest first: a newer checkpoint that is ready waits for the older one's fate."""
        workers = [w.worker for w in self._roster.members]
        for _, pending in sorted(self._pending.items()):
            if self._writing is None and pending.complete(workers):
                self._write(pending, effects)
                return

    def _write(self, pending: PendingCheckpoint, effects: list[d.CoordinatorEffect]) -> None:
        problems = self._untiled(pending)
        if problems:
            self._attempt_failed(f"chk-{pending.number} does not tile: {problems[0]}", "", effects)
            return
        del self._pending[pending.number]
        metadata = metadata_of(
            self._plan,
            pending,
            self._ledger.carry_over(pending.transactions),
            epoch=self.epoch,
            mode=self._rules.mode.value,
            now_ns=self._now_ns,
        )
        self._writing = (pending, metadata)
        effects.append(d.WriteMetadata(metadata))

    def _untiled(self, pending: PendingCheckpoint) -> list[str]:
        """What is wrong with the cut. At-least-once promises none: receivers may be ahead of senders."""
        if self._rules.mode is CheckpointMode.AT_LEAST_ONCE:
            return []
        reported = {
            ChannelId(c.edge, c.producer, c.consumer) for s in pending.subtasks for c in s.sent
        }
        silent = [f"channel {c}: no end reported" for c in self._channels - reported]
        handles = [h for s in pending.subtasks for h in s.inflight if h.side != "replay"]
        runs = [((h.edge, h.producer, h.consumer), h.first, h.end) for h in handles if h.buffers]
        ends = [(h.edge, h.producer, h.consumer) for h in handles if h.ended]
        return sorted(silent) + check_tiles(pending.subtasks, runs, ends)

    def _metadata_written(self, checkpoint: int, effects: list[d.CoordinatorEffect]) -> None:
        assert self._writing is not None, f"nobody wrote chk-{checkpoint}"
        (pending, metadata), self._writing = self._writing, None
        assert pending.number == checkpoint, f"wrote chk-{pending.number}, got chk-{checkpoint}"
        self._ledger.completed(metadata, self._next)
        self._restarts.progress()
        self._schedule.ended(self._now_ns, complete=True)
        if self.phase is Phase.RUNNING:
            self._to_all(m.Completed(self.epoch, checkpoint), effects)
        effects.append(d.CommitTransactions(checkpoint, tuple(metadata.transactions)))
        notice = d.Notice(d.NoticeKind.CHECKPOINT, f"chk-{checkpoint} is complete", metadata)
        effects.append(notice)
        self._answer(pending, checkpoint, "", effects)
        for number in sorted(n for n in self._pending if n < checkpoint):
            self._give_up(number, f"chk-{checkpoint} is newer and complete", effects)
        deletable = self._ledger.sweep(self._pending)
        if deletable.checkpoints or deletable.files:
            effects.append(d.DeleteCheckpoints(deletable))
        if pending.final and self.phase is Phase.RUNNING:
            outcome = d.Outcome.FINISHED if self._all_finished() else d.Outcome.STOPPED
            self._end(outcome, f"chk-{checkpoint} covers everything", "", effects)

    def _metadata_discarded(
        self, event: d.MetadataDiscarded, effects: list[d.CoordinatorEffect]
    ) -> None:
        assert self._writing is not None, f"nobody wrote chk-{event.checkpoint}"
        pending = self._writing[0]
        self._writing = None
        self._pending[pending.number] = pending
        self._give_up(pending.number, event.reason, effects)

    def _give_up(self, checkpoint: int, reason: str, effects: list[d.CoordinatorEffect]) -> None:
        """Cancel a pending checkpoint; an unknown one was cancelled or completed before."""
        pending = self._pending.pop(checkpoint, None)
        if pending is None:
            return
        self._ledger.given_up(checkpoint, self._next)
        self._to_all(m.Cancelled(self.epoch, checkpoint), effects)
        text = f"chk-{checkpoint} was given up: {reason}"
        effects.append(d.Notice(d.NoticeKind.CHECKPOINT_FAILED, text))
        self._answer(pending, None, reason, effects)
        if self._schedule.ended(self._now_ns, complete=False):
            self._attempt_failed(f"too many checkpoints failed; {text}", "", effects)

    # --- sinks --------------------------------------------------------------------------------------------------

    def _sink_failed(self, event: d.SinkFailed, effects: list[d.CoordinatorEffect]) -> None:
        """Commit or recovery failed; the next attempt's recovery repeats it."""
        self._ledger.commit_failed(event.checkpoint)
        if self.phase is Phase.CLOSING:
            self._ending = d.JobEnded(d.Outcome.FAILED, event.reason, "")
        elif self.phase is Phase.PREPARING:
            self._claim_failed(event.reason, effects)
        else:
            self._attempt_failed(event.reason, "", effects)

    # --- the end ------------------------------------------------------------------------------------------------

    def _all_finished(self) -> bool:
        return len(self._finished) == sum(task.parallelism for task in self._plan.tasks)

    def _end(
        self, outcome: d.Outcome, reason: str, details: str, effects: list[d.CoordinatorEffect]
    ) -> None:
        """Close the attempt; commits under way are waited for."""
        if self.phase in (Phase.CLOSING, Phase.ENDED):
            return
        self._leave_attempt(reason, effects)
        for request in self._requests:
            effects.append(d.RequestAnswered(request, None, reason))
        self._ending = d.JobEnded(outcome, reason, details)
        self._restart_at_ns = self._register_by_ns = None
        self.phase = Phase.CLOSING

    def _conclude(self, effects: list[d.CoordinatorEffect]) -> None:
        if self._writing is not None:
            return
        assert self._ending is not None, "closing without a reason"
        if self._claimed and not self._ledger.uncommitted:
            effects.append(d.RecoverSinks(self.epoch, ()))
        self._to_all(m.Shutdown(self._ending.reason), effects)
        effects.append(self._ending)
        self.phase = Phase.ENDED

    # --- helpers ------------------------------------------------------------------------------------------------

    def _to_all(self, message: m.ToWorker, effects: list[d.CoordinatorEffect]) -> None:
        effects += [d.SendMessage(w.connection, message) for w in self._roster.members]

    def _answer(
        self,
        pending: PendingCheckpoint,
        checkpoint: int | None,
        failure: str,
        effects: list[d.CoordinatorEffect],
    ) -> None:
        if pending.request is not None:
            effects.append(d.RequestAnswered(pending.request, checkpoint, failure))


def _turned_away(event: d.CoordinatorEvent) -> list[d.CoordinatorEffect]:
    """A worker that comes when all is over must not wait for something to do."""
    match event:
        case d.MessageReceived(connection, m.Register()):
            return [d.SendMessage(connection, m.Shutdown("the job has ended"))]
        case _:
            return []
