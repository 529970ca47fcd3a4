"""The checkpoints of a job, from trigger to durable metadata and to their end.

trigger -> every worker's acknowledgement -> tile check -> metadata written -> *only then* complete: workers told, transactions committed,
what is superfluous deleted. Given up at any point before that, a checkpoint leaves nothing but files to delete.

The coordinator decides when an attempt runs; this half of it is told (`begin`, `leave`) and tells when the attempt must fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.channels.buffer import ChannelId
from headrace.channels.events import CheckpointMode
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.tiles import check_tiles

from ..contract import messages as m
from ..contract.execution import ExecutionPlan
from ..worker.wiring import channels_from
from . import coordinator_events as d
from .deletion import Deletion
from .ledger import Ledger, metadata_of
from .pending import CheckpointRules, PendingCheckpoint, SavepointOrder, Schedule, Wish
from .roster import Roster


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a step of a checkpoint means for the attempt: `failure` ends it; `final` says that the last checkpoint is complete.

    `whole`: its cut came after the end of all input. Since then is too late: what ended behind the cut is not in it.
    `saved`: it is the savepoint with which the job was to end; `unsaved`: why that failed.
    """

    failure: str = ""
    final: int | None = None
    whole: bool = False
    saved: bool = False
    unsaved: str = ""


#: Nothing follows for the attempt.
FINE = Verdict()


class Checkpointing:
    """Pending checkpoints of the attempt that runs, and the ledger of the complete ones.

    Args:
        following: number of the next checkpoint; above every number ever used in this job's folder.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        mode: CheckpointMode,
        rules: CheckpointRules,
        roster: Roster,
        ledger: Ledger,
        following: int,
    ) -> None:
        self._plan = plan
        self._mode = mode
        self._rules = rules
        self._roster = roster
        self._ledger = ledger
        self._following = following
        self._schedule = Schedule(rules)
        #: Not begun between two attempts: an older checkpoint may be looked for, and must not go when it is found.
        self.deletion = Deletion(ledger)
        self._epoch = 0
        self._pending: dict[int, PendingCheckpoint] = {}
        #: The checkpoint whose metadata is being written, if any; waited for before everything else.
        self._writing: tuple[PendingCheckpoint, CheckpointMetadata] | None = None
        #: Who asked for a checkpoint that has not been triggered.
        self._wishes: list[Wish] = []
        #: Every channel of the plan: what a checkpoint must tile.
        self._channels = {
            channel
            for edge in plan.edges
            for producer in range(plan.tasks[edge.producer].parallelism)
            for channel in channels_from(plan, edge, producer)
        }

    @property
    def writing(self) -> bool:
        """The fate of a checkpoint is open: its metadata is being written."""
        return self._writing is not None

    @property
    def under_way(self) -> int:
        """How many checkpoints are pending or being written; savepoints that wait for a commit take nobody's place."""
        return len(self._pending) - len(self._held()) + self.writing

    def begin(self, epoch: int, now_ns: int) -> None:
        """An attempt runs."""
        self._epoch = epoch
        self._ledger.attempt_begins(self._following)
        self._schedule.attempt_started(now_ns)

    def leave(
        self, reason: str, effects: list[d.CoordinatorEffect], *, complete: bool = False
    ) -> None:
        """The attempt has ended: nothing pending can complete any more. What is being written may.

        `complete`: it came to its end, and the last commit follows; savepoints that wait for that go on waiting.
        """
        self._schedule.attempt_ended()
        held = self._held() if complete else []
        for pending in [p for p in self._pending.values() if p not in held]:
            del self._pending[pending.number]
            self._ledger.given_up(pending.number)
            _answer(pending, None, reason, effects)

    def requested(self, wish: Wish) -> None:
        """Somebody wants a checkpoint now, or a savepoint."""
        self._wishes.append(wish)

    def refuse_requests(self, reason: str, effects: list[d.CoordinatorEffect]) -> None:
        """There will be no more checkpoints."""
        effects += [d.RequestAnswered(wish.request, None, reason) for wish in self._wishes]
        self._wishes = []

    def next_deadline_ns(self, *, stopping: bool) -> int | None:
        """When the next one is due or the oldest one expires."""
        deadlines = [p.created_ns + self._rules.timeout_ns for p in self._pending.values()]
        if not stopping and self.under_way < self._rules.concurrent and self._schedule.due_ns:
            deadlines.append(self._schedule.due_ns)
        return min(deadlines, default=None)

    # --- trigger ------------------------------------------------------------------------------------------------

    def trigger_due(
        self,
        now_ns: int,
        *,
        last: bool,
        effects: list[d.CoordinatorEffect],
        stop: d.StopRequested | None = None,
    ) -> None:
        """Trigger what is due. `last`: one more, which ends the job; it comes alone, so that nothing is pending then.

        With a mode of its own the last one does not wait for those under way, which backpressure may hold up: they are given up. It is a
        savepoint if whoever has stopped the job wants one.
        """
        if last:
            self._trigger_last(now_ns, effects, stop)
            return
        due_ns = self._schedule.due_ns
        due = due_ns is not None and due_ns <= now_ns
        wish = self._wishes[0] if self._wishes else None
        covering = self._uncovered_mode()
        if not self._has_room(
            covering or (wish.savepoint.mode if wish and wish.savepoint else None)
        ):
            return
        if covering is not None:
            self._trigger(now_ns, final=False, effects=effects, mode=covering)
        elif wish is not None and wish.savepoint is not None:
            self._wishes.remove(wish)
            self._trigger_savepoint(now_ns, wish.savepoint, wish.request, effects)
        elif due or wish is not None:
            self._trigger(now_ns, final=False, effects=effects, mode=self._mode)

    def _trigger_last(
        self, now_ns: int, effects: list[d.CoordinatorEffect], stop: d.StopRequested | None
    ) -> None:
        order = None if stop is None else stop.savepoint
        mode = None if stop is None else stop.mode
        if order is not None:
            mode = order.mode
        if mode is not None:
            self.make_way("the job stops", effects)
        if self.under_way:
            return
        if order is None:
            self._trigger(now_ns, final=True, effects=effects, mode=mode or self._mode)
        else:
            self._trigger_savepoint(now_ns, order, None, effects, final=True)

    def _has_room(self, mode: CheckpointMode | None) -> bool:
        """Whether one more may be under way. A savepoint that overtakes everything need not wait for one that stands in a queue."""
        more = mode is CheckpointMode.UNALIGNED
        return self.under_way < self._rules.concurrent + more

    def make_way(self, reason: str, effects: list[d.CoordinatorEffect]) -> None:
        """Give up what is under way, so that the last one need not wait for it; savepoints that wait for its commit go on waiting."""
        held = self._held()
        for number, pending in sorted(self._pending.items()):
            if not pending.final and pending not in held:
                self._cancel(number, reason, effects)

    def _trigger(
        self, now_ns: int, *, final: bool, effects: list[d.CoordinatorEffect], mode: CheckpointMode
    ) -> None:
        number, self._following = self._following, self._following + 1
        first = next((wish for wish in self._wishes if wish.savepoint is None), None)
        request = None
        if first is not None:
            self._wishes.remove(first)
            request = first.request
        self._ledger.triggered(number)
        self._pending[number] = PendingCheckpoint(number, now_ns, final, request, mode)
        self._schedule.triggered(now_ns)
        for held in self._uncovered():
            held.covered_by = number
        self._to_all(m.Trigger(self._epoch, number, mode.value, now_ns), effects)

    def _trigger_savepoint(
        self,
        now_ns: int,
        order: SavepointOrder,
        request: int | None,
        effects: list[d.CoordinatorEffect],
        *,
        final: bool = False,
    ) -> None:
        number = max(self._following, order.number_min)
        self._following = number + 1
        mode = order.mode or self._mode
        self._ledger.triggered(number, order)
        pending = PendingCheckpoint(number, now_ns, final, request, mode, order)
        self._pending[number] = pending
        if final:
            for held in self._uncovered():
                held.covered_by = number
        self._to_all(m.Trigger(self._epoch, number, mode.value, now_ns, order.target), effects)

    # --- savepoints ---------------------------------------------------------------------------------------------

    def _held(self) -> list[PendingCheckpoint]:
        """Savepoints that every worker has acknowledged, and whose transactions are not all committed.

        A savepoint commits nothing. Were it complete before its transactions are committed, a failure could abort them, and they would
        be lost to whoever starts from it. So it waits for a checkpoint that was triggered later, and commits them. The one with which
        the job ends waits for nothing: it commits them itself.
        """
        return [
            pending
            for pending in self._pending.values()
            if pending.savepoint is not None
            and not pending.final
            and self._acknowledged(pending)
            and self._ledger.unconfirmed(pending.awaits)
        ]

    def _uncovered(self) -> list[PendingCheckpoint]:
        """Those that name what no complete checkpoint does, and for which none has been triggered since, or it was given up."""
        committing = {transaction.id for transaction in self._ledger.uncommitted}
        newest = 0 if self._ledger.newest is None else self._ledger.newest.checkpoint
        writing = None if self._writing is None else self._writing[0].number
        return [
            held
            for held in self._held()
            if any(t.id not in committing for t in self._ledger.unconfirmed(held.awaits))
            and (
                held.covered_by is None
                or (
                    held.covered_by not in self._pending
                    and held.covered_by != writing
                    and held.covered_by > newest
                )
            )
        ]

    def _uncovered_mode(self) -> CheckpointMode | None:
        """How the checkpoint is to travel that the oldest of them needs; None: none does."""
        return next((held.mode for held in self._uncovered()), None)

    def _acknowledged(self, pending: PendingCheckpoint) -> bool:
        return pending.complete(w.worker for w in self._roster.members)

    # --- acknowledgement and metadata ---------------------------------------------------------------------------

    def acknowledged(self, worker: int, message: m.Acknowledge) -> bool:
        """A worker's part is durable. False: nobody waits for it any more."""
        pending = self._pending.get(message.checkpoint)
        if pending is not None:
            pending.acknowledge(worker, message)
            if pending.savepoint is not None and self._acknowledged(pending):
                # What a worker knows to be complete it does not repeat; the commit of that may be under way.
                pending.awaits = (*pending.transactions, *self._ledger.uncommitted)
        return pending is not None

    def write_ready(self, now_ns: int, effects: list[d.CoordinatorEffect]) -> Verdict:
        """One metadata at a time, oldest first: a newer checkpoint that is ready waits for the older one's fate."""
        held = self._held()
        ready = [
            p for _, p in sorted(self._pending.items()) if self._acknowledged(p) and p not in held
        ]
        if self._writing is not None or not ready:
            return FINE
        pending = ready[0]
        problems = self._untiled(pending)
        if problems:
            return Verdict(f"chk-{pending.number} does not tile: {problems[0]}")
        del self._pending[pending.number]
        metadata = metadata_of(
            self._plan,
            pending,
            self._ledger.carry_over(pending.transactions) if pending.commits else [],
            epoch=self._epoch,
            mode=pending.mode.value,
            now_ns=now_ns,
        )
        self._writing = (pending, metadata)
        target = "" if pending.savepoint is None else pending.savepoint.target
        last = pending.final and pending.savepoint is not None
        effects.append(d.WriteMetadata(metadata, target, last))
        return FINE

    def _untiled(self, pending: PendingCheckpoint) -> list[str]:
        """What is wrong with the cut. At-least-once promises none: receivers may be ahead of senders."""
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

    def written(
        self, checkpoint: int, now_ns: int, *, running: bool, effects: list[d.CoordinatorEffect]
    ) -> Verdict:
        """The metadata is durable: the checkpoint is complete."""
        assert self._writing is not None, f"nobody wrote chk-{checkpoint}"
        (pending, metadata), self._writing = self._writing, None
        assert pending.number == checkpoint, f"wrote chk-{pending.number}, got chk-{checkpoint}"
        if pending.savepoint is not None:
            return self._saved(pending, metadata, running=running, effects=effects)
        self._ledger.completed(metadata)
        self._schedule.ended(now_ns, complete=True)
        if running:
            self._to_all(m.Completed(self._epoch, checkpoint), effects)
        effects.append(d.CommitTransactions(checkpoint, tuple(metadata.transactions)))
        notice = d.Notice(d.NoticeKind.CHECKPOINT, f"chk-{checkpoint} is complete", metadata)
        effects.append(notice)
        _answer(pending, checkpoint, "", effects)
        for older, other in sorted(self._pending.items()):
            if older < checkpoint and other.savepoint is None:
                self._cancel(older, f"chk-{checkpoint} is newer and complete", effects)
        if running:
            self.deletion.sweep(effects)
        if not (pending.final and running):
            return FINE
        return Verdict(final=checkpoint, whole=all(s.finished for s in metadata.subtasks))

    def _saved(
        self,
        pending: PendingCheckpoint,
        metadata: CheckpointMetadata,
        *,
        running: bool,
        effects: list[d.CoordinatorEffect],
    ) -> Verdict:
        self._ledger.saved(pending.number)
        text = f"savepoint {pending.number} is complete"
        effects.append(d.Notice(d.NoticeKind.SAVEPOINT, text))
        _answer(pending, pending.number, "", effects)
        if not pending.final:
            if running:
                self.deletion.sweep(effects)
            return FINE
        # Whatever has become of the attempt meanwhile, the job ends here.
        self._ledger.ended_with(metadata)
        effects.append(d.CommitTransactions(pending.number, tuple(metadata.transactions)))
        whole = all(s.finished for s in metadata.subtasks)
        return Verdict(final=pending.number, whole=whole, saved=True)

    def discarded(
        self, checkpoint: int, reason: str, now_ns: int, effects: list[d.CoordinatorEffect]
    ) -> Verdict:
        """The metadata could not be written, and never will be."""
        assert self._writing is not None, f"nobody wrote chk-{checkpoint}"
        pending, self._writing = self._writing[0], None
        self._pending[pending.number] = pending
        return self.give_up(pending.number, reason, now_ns, effects)

    # --- giving up ----------------------------------------------------------------------------------------------

    def give_up(
        self, checkpoint: int, reason: str, now_ns: int, effects: list[d.CoordinatorEffect]
    ) -> Verdict:
        """A pending checkpoint has failed; an unknown one was cancelled or completed before."""
        if checkpoint not in self._pending:
            return FINE
        pending = self._pending[checkpoint]
        self._cancel(checkpoint, reason, effects)
        if pending.savepoint is not None:
            return Verdict(unsaved=reason) if pending.final else FINE
        if self._schedule.ended(now_ns, complete=False):
            return Verdict(f"too many checkpoints failed; chk-{checkpoint} was given up: {reason}")
        return FINE

    def expire(self, now_ns: int, effects: list[d.CoordinatorEffect]) -> Verdict:
        """Give up what has taken too long."""
        latest_ns = now_ns - self._rules.timeout_ns
        late = [p.number for p in self._pending.values() if p.created_ns <= latest_ns]
        reason = "it took longer than the timeout"
        verdicts = [self.give_up(number, reason, now_ns, effects) for number in late]
        return next((verdict for verdict in verdicts if verdict != FINE), FINE)

    def _cancel(self, checkpoint: int, reason: str, effects: list[d.CoordinatorEffect]) -> None:
        pending = self._pending.pop(checkpoint)
        self._ledger.given_up(checkpoint)
        self._to_all(m.Cancelled(self._epoch, checkpoint), effects)
        what = "chk-" if pending.savepoint is None else "savepoint "
        text = f"{what}{checkpoint} was given up: {reason}"
        effects.append(d.Notice(d.NoticeKind.CHECKPOINT_FAILED, text))
        _answer(pending, None, reason, effects)

    # --- the rest -----------------------------------------------------------------------------------------------

    def check(self, *, running: bool) -> None:
        """Assert every invariant."""
        assert self._following > max(self._pending, default=0), self.describe()
        assert running or not self._pending, self.describe()

    def describe(self) -> str:
        """The whole state as stable text."""
        return f"pending={sorted(self._pending)} next={self._following}"

    def _to_all(self, message: m.ToWorker, effects: list[d.CoordinatorEffect]) -> None:
        effects += to_all(self._roster, message)


def to_all(roster: Roster, message: m.ToWorker) -> Iterable[d.CoordinatorEffect]:
    """The message to every worker that is there."""
    return [d.SendMessage(w.connection, message) for w in roster.members]


def _answer(
    pending: PendingCheckpoint,
    checkpoint: int | None,
    failure: str,
    effects: list[d.CoordinatorEffect],
) -> None:
    if pending.request is not None:
        effects.append(d.RequestAnswered(pending.request, checkpoint, failure))
