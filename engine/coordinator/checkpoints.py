"""The checkpoints of a job, from trigger to durable metadata and to their end.

trigger -> every worker's acknowledgement -> tile check -> metadata written -> *only then* complete:
workers hear of it, transactions are committed, superfluous checkpoints are deleted. A checkpoint
that is given up at any point before that leaves nothing but files to delete.

`Checkpoints` owns requests, the schedule, pending checkpoints, the metadata that is being written,
and the newest complete checkpoint, from which attempts start. `Transactions` and `Retention` hear
of each beginning and end. The coordinator says when an attempt runs (`begin`, `leave`); findings
among the effects say when an attempt must fail or the job may end.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.channels.buffer import ChannelId
from headrace.channels.events import CheckpointMode
from headrace.recovery.metadata import (
    CheckpointMetadata,
    SubtaskSnapshot,
    TransactionRecord,
)
from headrace.recovery.redistribution import NewEdge
from headrace.recovery.replays import ReplayEdge, RestoredReplay
from headrace.recovery.tiles import check_tiles
from headrace.recovery.waves import first_wave

from ..contract.execution import EdgePlan, ExecutionPlan
from ..contract.messages import Acknowledge, BeginWave, Cancelled, Completed, Trigger
from ..worker.wiring import channels_from
from .checkpoint_metadata import metadata_of
from .coordinator_events import (
    AttemptBroken,
    CheckpointRequested,
    CoordinatorEffect,
    Finding,
    LastCheckpointCompleted,
    LastSavepointFailed,
    Notice,
    NoticeKind,
    PartEffect,
    RequestAnswered,
    SavepointOrder,
    StopKind,
    StopRequested,
    WriteMetadata,
)
from .full_checkpoints import FullCheckpoints
from .pending import CheckpointUnderWay, PendingCheckpoint
from .retention import Retention
from .rules import CheckpointRules
from .schedule import Schedule
from .transactions import Transactions
from .workers import Workers


class Checkpoints:
    """Checkpoints of one job.

    Args:
        restore: the checkpoint to start the job from, or None.
        checkpoint_next: above every number ever used in this job's folder.

    Attributes:
        newest: the newest complete checkpoint, start of the next attempt; None: from the beginning.
        wave: the wave that the attempt replays; 0: new records are worked on, too.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        mode: CheckpointMode,
        rules: CheckpointRules,
        restore: CheckpointMetadata | None,
        checkpoint_next: int,
        *,
        workers: Workers,
        transactions: Transactions,
        retention: Retention,
    ) -> None:
        self._plan = plan
        self._mode = mode
        self._rules = rules
        self._workers = workers
        self._transactions = transactions
        self._retention = retention
        self.newest = restore
        self._checkpoint_next = checkpoint_next
        self._schedule = Schedule(rules)
        self._full = FullCheckpoints(rules.full_every, restore)
        self._epoch = 0
        self.wave = 0
        #: When to look next whether the wave is over.
        self._look_ns = 0
        self._pending: dict[int, PendingCheckpoint] = {}
        #: The checkpoint whose metadata is being written; everything else waits for its fate.
        self._writing: tuple[PendingCheckpoint, CheckpointMetadata] | None = None
        #: What the attempt has to replay.
        self._replay: RestoredReplay | None = None
        #: Requests for which no checkpoint has been triggered.
        self._requests: list[CheckpointRequested] = []
        #: Every channel of the plan: a checkpoint must tile each.
        self._channels = {
            channel
            for edge in plan.edges
            for producer in range(plan.tasks[edge.producer].parallelism)
            for channel in channels_from(plan, edge, producer)
        }

    @property
    def writing(self) -> bool:
        """Some metadata is being written, and the fate of the checkpoint is open."""
        return self._writing is not None

    @property
    def under_way(self) -> int:
        """Number of checkpoints pending or being written, without held savepoints."""
        return len(self._pending) - len(self._held()) + self.writing

    def next_deadline_ns(self, *, stopping: bool) -> int | None:
        """When a checkpoint is due or the oldest pending one expires."""
        deadlines = [p.created_ns + self._rules.timeout_ns for p in self._pending.values()]
        due_ns = self._schedule.due_ns
        if self.wave:
            deadlines += [self._look_ns] * (not self.under_way)
        elif not stopping and self.under_way < self._rules.concurrent and due_ns:
            deadlines.append(due_ns)
        return min(deadlines, default=None)

    # --- attempts ---------------------------------------------------------------------------------

    def restored(self, metadata: CheckpointMetadata) -> None:
        """Let attempts start from this older checkpoint: the newest is damaged."""
        self.newest = metadata
        self._transactions.restored(metadata)
        self._retention.restored(metadata)

    def dealt(
        self, metadata: CheckpointMetadata | None, snapshots: Sequence[SubtaskSnapshot]
    ) -> None:
        """The next attempt starts from these snapshots of a checkpoint; None: from nothing."""
        self._replay = None
        if metadata is not None:
            edges = {edge.index: _replay_edge(self._plan, edge) for edge in self._plan.edges}
            self._replay = RestoredReplay(metadata, edges, snapshots)

    def begin(self, epoch: int, now_ns: int, wave: int = 0) -> None:
        """An attempt runs, and begins with this wave of the replay."""
        self._epoch = epoch
        self.wave, self._look_ns = wave, now_ns
        self._retention.attempt_begins(self._checkpoint_next)
        self._full.began(self.newest)
        self._schedule.attempt_started(now_ns)

    def leave(self, reason: str, *, complete: bool = False) -> list[CoordinatorEffect]:
        """End the attempt and all pending checkpoints; metadata may still be written.

        Args:
            complete: the last commit follows; savepoints held for that commit stay.
        """
        self._schedule.attempt_ended()
        held = self._held() if complete else []
        effects: list[CoordinatorEffect] = []
        for pending in [p for p in self._pending.values() if p not in held]:
            del self._pending[pending.number]
            self._retention.given_up(pending.number)
            effects += pending.answer(None, reason)
        return effects

    # --- requests ---------------------------------------------------------------------------------

    def requested(self, event: CheckpointRequested) -> None:
        """Keep a request until there is room for the checkpoint."""
        self._requests.append(event)

    def refuse_requests(self, reason: str) -> list[CoordinatorEffect]:
        """Answer all requests: no checkpoint will be triggered any more."""
        requests, self._requests = self._requests, []
        return [RequestAnswered(each.request, None, reason) for each in requests]

    def _taken_request(self) -> int | None:
        """Take the oldest request for an ordinary checkpoint."""
        for each in self._requests:
            if each.savepoint is None:
                self._requests.remove(each)
                return each.request
        return None

    # --- trigger ----------------------------------------------------------------------------------

    def trigger_due(
        self, now_ns: int, *, last: bool, stop: StopRequested | None = None
    ) -> list[CoordinatorEffect]:
        """Trigger a checkpoint if there is a reason and room.

        Args:
            last: the checkpoint ends the job, and waits until no other is under way.
            stop: names the mode of the last checkpoint, and a savepoint in its place.
        """
        if last and not (self.wave and self._last_mode(stop) is not CheckpointMode.UNALIGNED):
            return self._trigger_last(now_ns, stop)
        if self.wave:
            return self._look(now_ns)
        request = self._requests[0] if self._requests else None
        savepoint = None if request is None else request.savepoint
        covering = self._uncovered_mode()
        if not self._has_room(covering or (None if savepoint is None else savepoint.mode)):
            return []
        if covering is not None:
            return self._trigger_checkpoint(now_ns, covering)
        if request is not None and savepoint is not None:
            self._requests.remove(request)
            return self._trigger(now_ns, savepoint.mode, request.request, savepoint)
        due_ns = self._schedule.due_ns
        if request is not None or (due_ns is not None and due_ns <= now_ns):
            return self._trigger_checkpoint(now_ns, self._mode)
        return []

    def _look(self, now_ns: int) -> list[CoordinatorEffect]:
        """Look by a checkpoint whether the wave is over. Only one is under way: all records in its
        channels are of one wave. Barriers of other modes would stand behind later waves.
        """
        if self.under_way or now_ns < self._look_ns:
            return []
        return self._trigger_checkpoint(now_ns, CheckpointMode.UNALIGNED)

    def _last_mode(self, stop: StopRequested | None) -> CheckpointMode | None:
        savepoint = None if stop is None else stop.savepoint
        return savepoint.mode if savepoint is not None else stop.mode if stop is not None else None

    def _trigger_last(self, now_ns: int, stop: StopRequested | None) -> list[CoordinatorEffect]:
        """Given a mode, give up others under way: backpressure may hold them up."""
        savepoint = None if stop is None else stop.savepoint
        mode = self._last_mode(stop)
        effects = [] if mode is None else self.make_way("the job stops")
        if self.under_way:
            return effects
        if savepoint is None:
            effects += self._trigger_checkpoint(now_ns, mode, final=True)
        else:
            effects += self._trigger(now_ns, mode, None, savepoint, final=True)
        self._pending[self._checkpoint_next - 1].drained = (
            stop is not None and stop.kind is StopKind.DRAIN
        )
        return effects

    def _has_room(self, mode: CheckpointMode | None) -> bool:
        """Room for another checkpoint; unaligned ones need not wait for a queueing one."""
        more = mode is CheckpointMode.UNALIGNED
        return self.under_way < self._rules.concurrent + more

    def make_way(self, reason: str, *, final: bool = False) -> list[CoordinatorEffect]:
        """Give up checkpoints under way, except held savepoints, for the last checkpoint. With
        `final` the last one itself is given up, for another that overtakes.

        Nothing has failed, so no notice says so.
        """
        held = self._held()
        effects: list[CoordinatorEffect] = []
        for number, pending in sorted(self._pending.items()):
            if (final or not pending.final) and pending not in held:
                effects += self._withdraw(number, reason)
        return effects

    def _trigger_checkpoint(
        self, now_ns: int, mode: CheckpointMode | None, *, final: bool = False
    ) -> list[CoordinatorEffect]:
        request = self._taken_request()
        self._schedule.triggered(now_ns)
        return self._trigger(now_ns, mode, request, final=final)

    def _trigger(
        self,
        now_ns: int,
        mode: CheckpointMode | None,
        request: int | None,
        savepoint: SavepointOrder | None = None,
        *,
        final: bool = False,
    ) -> list[CoordinatorEffect]:
        mode = mode or self._mode
        number = max(self._checkpoint_next, savepoint.number_min if savepoint else 0)
        if number > self._checkpoint_next:
            self._retention.skipped(self._checkpoint_next)
        self._checkpoint_next = number + 1
        target = None if savepoint is None else savepoint.target
        self._retention.triggered(number, target)
        full = savepoint is None and self._full.is_due
        pending = PendingCheckpoint(number, now_ns, final, request, mode, savepoint, full)
        self._pending[number] = pending
        for held in self._uncovered() if pending.commits else ():
            held.covered_by = number
        trigger = Trigger(self._epoch, number, mode.value, now_ns, target, full)
        return self._workers.send_all(trigger)

    # --- savepoints -------------------------------------------------------------------------------

    def _held(self) -> list[PendingCheckpoint]:
        """Savepoints acknowledged by every worker, with an uncommitted transaction.

        A savepoint commits no transaction. If a failure aborted some after the savepoint is
        complete, a job started from the savepoint would lose records. So the savepoint waits until
        a later checkpoint has committed all. The savepoint with which the job ends commits by
        itself, and does not wait.
        """
        return [
            pending
            for pending in self._pending.values()
            if not pending.commits
            and self._acknowledged(pending)
            and self._transactions.unconfirmed(pending.awaits)
        ]

    def _uncovered(self) -> list[PendingCheckpoint]:
        """Held savepoints whose transactions no checkpoint commits, complete or under way."""
        committing = {transaction.id for transaction in self._transactions.uncommitted}
        newest = 0 if self.newest is None else self.newest.checkpoint
        under_way = set(self._pending)
        if self._writing is not None:
            under_way.add(self._writing[0].number)
        return [
            held
            for held in self._held()
            if any(t.id not in committing for t in self._transactions.unconfirmed(held.awaits))
            and (
                held.covered_by is None
                or (held.covered_by not in under_way and held.covered_by > newest)
            )
        ]

    def _uncovered_mode(self) -> CheckpointMode | None:
        """Mode of a checkpoint for the oldest uncovered savepoint; None: there is none."""
        return next((held.mode for held in self._uncovered()), None)

    # --- acknowledgement and metadata -------------------------------------------------------------

    def is_pending(self, checkpoint: int) -> bool:
        """The checkpoint waits for acknowledgements, or for its turn to be written."""
        return checkpoint in self._pending

    def acknowledged(self, worker: int, message: Acknowledge) -> None:
        """A worker's part of a pending checkpoint is durable."""
        pending = self._pending[message.checkpoint]
        pending.acknowledge(worker, message)
        if pending.savepoint is not None and self._acknowledged(pending):
            # A worker that knows a checkpoint to be complete names its transactions no more,
            # though their commit may be under way.
            pending.awaits = (*pending.transactions, *self._transactions.uncommitted)

    def _acknowledged(self, pending: PendingCheckpoint) -> bool:
        return pending.complete(self._workers.numbers)

    def write_ready(self, now_ns: int) -> list[PartEffect]:
        """Write the metadata of the oldest ready checkpoint; newer ones wait for the answer."""
        held = self._held()
        ready = [
            p for _, p in sorted(self._pending.items()) if self._acknowledged(p) and p not in held
        ]
        if self._writing is not None or not ready:
            return []
        pending = ready[0]
        problems = self._untiled(pending)
        if problems:
            return [AttemptBroken(f"chk-{pending.number} does not tile: {problems[0]}")]
        problems = self._unreplayed(pending)
        if problems:
            text = f"chk-{pending.number} does not account for its replay: {problems[0]}"
            return [AttemptBroken(text)]
        del self._pending[pending.number]
        named: list[TransactionRecord] = []
        if pending.commits:
            named = self._transactions.carry_over(pending.number, pending.transactions)
        metadata = metadata_of(
            self._plan, pending, named, epoch=self._epoch, now_ns=now_ns, wave=self.wave
        )
        self._writing = (pending, metadata)
        target = "" if pending.savepoint is None else pending.savepoint.target
        last = pending.final and pending.savepoint is not None
        return [WriteMetadata(metadata, target, last)]

    def _untiled(self, pending: PendingCheckpoint) -> list[str]:
        """Gaps and overlaps of the cut; at-least-once allows both: receivers may be ahead."""
        if pending.mode is CheckpointMode.AT_LEAST_ONCE:
            return []
        reported = {
            ChannelId(c.edge, c.producer, c.consumer) for s in pending.subtasks for c in s.sent
        }
        silent = [f"channel {c}: no end reported" for c in self._channels - reported]
        handles = [h for s in pending.subtasks for h in s.inflight if h.side != "replay"]
        runs = [((h.edge, h.producer, h.consumer), h.first, h.end) for h in handles if h.buffers]
        ends = [(h.edge, h.producer, h.consumer) for h in handles if h.ended]
        return sorted(silent) + check_tiles(pending.subtasks, runs, ends)

    def _unreplayed(self, pending: PendingCheckpoint) -> list[str]:
        """Restored records that are neither worked on nor left to replay, in any mode."""
        if self._replay is None:
            return []
        accounts = [r for a in pending.acknowledged.values() for r in a.replayed]
        return self._replay.problems(pending.subtasks, accounts)

    def written(self, checkpoint: int, now_ns: int, *, running: bool) -> list[PartEffect]:
        """The metadata is durable: the checkpoint is complete.

        Args:
            running: the attempt goes on; only then is anything deleted.
        """
        pending, metadata = self._end_writing(checkpoint)
        effects: list[PartEffect] = []
        if pending.savepoint is None:
            self._schedule.ended(now_ns, complete=True)
            effects += self._completed(pending, metadata, running=running)
        else:
            effects += self._saved(pending, metadata)
        if running:
            effects += self._looked(pending, metadata, now_ns)
        if running and not (pending.final and metadata.savepoint):
            effects += self._retention.sweep()
        # With a savepoint the job ends even if the attempt has failed meanwhile.
        if pending.final and (running or metadata.savepoint):
            whole = all(s.finished for s in metadata.subtasks)
            effects.append(LastCheckpointCompleted(checkpoint, metadata.savepoint, whole))
        return effects

    def _completed(
        self, pending: PendingCheckpoint, metadata: CheckpointMetadata, *, running: bool
    ) -> list[CoordinatorEffect]:
        number = pending.number
        self.newest = metadata
        self._retention.completed(metadata)
        self._full.completed(metadata, full=pending.full)
        effects: list[CoordinatorEffect] = []
        if running:
            effects += self._workers.send_all(Completed(self._epoch, number))
        effects += self._transactions.commit(metadata)
        effects.append(Notice(NoticeKind.CHECKPOINT, f"{pending.name} is complete", metadata))
        effects += pending.answer(number)
        for older, other in sorted(self._pending.items()):
            if older < number and other.savepoint is None:
                effects += self._cancel(older, f"{pending.name} is newer and complete")
        return effects

    def _looked(
        self, pending: PendingCheckpoint, metadata: CheckpointMetadata, now_ns: int
    ) -> list[CoordinatorEffect]:
        """Begin the next wave with records, if the checkpoint has none of the present wave."""
        if not self.wave:
            return []
        self._look_again(pending, now_ns)
        left = first_wave(metadata.subtasks)
        if left == self.wave:
            return []
        self.wave, self._look_ns = left, now_ns
        return self._workers.send_all(BeginWave(self._epoch, left))

    def _look_again(self, pending: PendingCheckpoint, now_ns: int) -> None:
        """Leave storage alone for as long as the last look took."""
        took_ns = now_ns - pending.created_ns
        self._look_ns = now_ns + max(took_ns, self._rules.min_pause_ns)

    def _saved(
        self, pending: PendingCheckpoint, metadata: CheckpointMetadata
    ) -> list[CoordinatorEffect]:
        self._retention.saved(pending.number)
        notice = Notice(NoticeKind.SAVEPOINT, f"{pending.name} is complete")
        effects: list[CoordinatorEffect] = [notice, *pending.answer(pending.number)]
        if pending.final:
            self.newest = metadata
            effects += self._transactions.commit(metadata)
        return effects

    def discarded(self, checkpoint: int, reason: str, now_ns: int) -> list[PartEffect]:
        """The metadata could not be written, and never will be."""
        pending, _ = self._end_writing(checkpoint)
        self._pending[checkpoint] = pending
        return self.give_up(checkpoint, reason, now_ns)

    def _end_writing(self, checkpoint: int) -> tuple[PendingCheckpoint, CheckpointMetadata]:
        assert self._writing is not None, f"nobody wrote chk-{checkpoint}"
        (pending, metadata), self._writing = self._writing, None
        assert pending.number == checkpoint, f"wrote chk-{pending.number}, got chk-{checkpoint}"
        return pending, metadata

    # --- giving up --------------------------------------------------------------------------------

    def give_up(self, checkpoint: int, reason: str, now_ns: int) -> list[PartEffect]:
        """Fail a pending checkpoint; any other was cancelled or completed before."""
        if checkpoint not in self._pending:
            return []
        pending = self._pending[checkpoint]
        effects: list[PartEffect] = [*self._cancel(checkpoint, reason)]
        self._look_again(pending, now_ns)
        if pending.savepoint is not None:
            return [*effects, LastSavepointFailed(reason)] if pending.final else effects
        self._schedule.ended(now_ns, complete=False)
        if self._schedule.is_broken:
            text = f"too many checkpoints failed; {pending.name} was given up: {reason}"
            effects.append(AttemptBroken(text))
        return effects

    def expire(self, now_ns: int) -> list[PartEffect]:
        """Give up late checkpoints; findings come last."""
        latest_ns = now_ns - self._rules.timeout_ns
        late = [p.number for p in self._pending.values() if p.created_ns <= latest_ns]
        reason = "it took longer than the timeout"
        effects = [effect for number in late for effect in self.give_up(number, reason, now_ns)]
        return sorted(effects, key=lambda effect: isinstance(effect, Finding))

    def _cancel(self, checkpoint: int, reason: str) -> list[CoordinatorEffect]:
        pending = self._pending[checkpoint]
        text = f"{pending.name} was given up: {reason}"
        effects = self._withdraw(checkpoint, reason)
        failed = pending.failed(reason)
        return [*effects, Notice(NoticeKind.CHECKPOINT_FAILED, text, failed=failed)]

    def _withdraw(self, checkpoint: int, reason: str) -> list[CoordinatorEffect]:
        """Give up a pending checkpoint without a word to people, except to one who asked for it."""
        pending = self._pending.pop(checkpoint)
        self._retention.given_up(checkpoint)
        cancelled = Cancelled(self._epoch, checkpoint)
        return [*self._workers.send_all(cancelled), *pending.answer(None, reason)]

    # --- the rest ---------------------------------------------------------------------------------

    def check(self, *, running: bool) -> None:
        """Assert every invariant."""
        assert self._checkpoint_next > max(self._pending, default=0), self.describe()
        assert running or not self._pending, self.describe()

    def statistics(self) -> tuple[CheckpointUnderWay, ...]:
        """Return the checkpoints under way, oldest first, and what each waits for."""
        workers = self._workers.numbers
        awaited = [p.seen(workers) for _, p in sorted(self._pending.items())]
        written = [] if self._writing is None else [self._writing[0].seen(())]
        return (*written, *awaited)

    def describe(self) -> str:
        """The whole state as stable text."""
        return f"pending={sorted(self._pending)} next={self._checkpoint_next}"


def _replay_edge(plan: ExecutionPlan, edge: EdgePlan) -> ReplayEdge:
    new = NewEdge(edge.key, edge.producer, edge.partitioner)
    parallelism = plan.tasks[edge.consumer].parallelism
    return ReplayEdge(new, edge.consumer, parallelism, edge.port, edge.feedback)
