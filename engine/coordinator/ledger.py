"""What a job has to its name in storage and sinks: complete checkpoints, leftovers, transactions that await their commit."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from headrace.recovery.elsewhere import Elsewhere
from headrace.recovery.metadata import (
    CheckpointMetadata,
    EdgeInfo,
    TaskInfo,
    TransactionRecord,
)
from headrace.recovery.registry import Deletable, SharedStateRegistry, references

from ..contract.execution import EdgePlan, ExecutionPlan
from .leftovers import NOTHING_LEFT, Leftovers
from .pending import PendingCheckpoint, SavepointOrder

#: A subtask repeats a transaction only until it hears that its checkpoint is complete; so long are confirmed ones remembered.
_CHECKPOINTS_REMEMBERED = 8


class Ledger:
    """Complete checkpoints and open transactions of one job; the registry counts the files.

    Savepoints, and checkpoints in other directories, belong to somebody else: a job may start from one, and never deletes it, unless
    it has claimed it. What is claimed takes a place in the job's sequence and is retained like a checkpoint. When it is subsumed it is still read while
    an attempt that started from it replays what was in flight there.

    Args:
        foreign: `restore` lies in another directory.
        claim: its place, if it is claimed.
        left: what earlier runs of the job left in its folder.

    Attributes:
        newest: the newest complete checkpoint: where an attempt starts; None: from nothing.
    """

    def __init__(
        self,
        restore: CheckpointMetadata | None,
        retain: int,
        *,
        foreign: bool = False,
        claim: Elsewhere | None = None,
        left: Leftovers = NOTHING_LEFT,
    ) -> None:
        self.newest = restore
        self._retain = retain
        #: Numbers of another directory mean nothing here.
        self._foreign = restore if foreign else None
        self._claim = claim
        #: {place: what is claimed and not released}.
        self._claims = {place.number: place for place in left.claims}
        if claim is not None:
            self._claims[claim.number] = claim
        #: The attempt that runs may still read what it started from, which is claimed.
        self._is_replaying = False
        #: Places of those that retention has let go while they were read.
        self._still_read: list[int] = []
        #: To be released.
        self._subsumed: list[Elsewhere] = []
        self._registry = SharedStateRegistry()
        #: Complete ones that retention keeps, oldest first.
        self._retained: list[int] = []
        #: {savepoint under way or given up: URL of its directory}.
        self._savepoints: dict[int, str] = {}
        #: {transaction id: record}: in a complete checkpoint, commit not confirmed.
        self._uncommitted: dict[str, TransactionRecord] = {}
        #: {transaction id: checkpoint}: confirmed lately, so that a late repeat is not committed twice.
        self._committed: dict[str, int] = {}
        #: {checkpoint whose commit was ordered and is not answered: transaction ids}.
        self._committing: dict[int, tuple[str, ...]] = {}
        self._adopt(left)
        self.restored(restore)
        self._retire()

    def _adopt(self, left: Leftovers) -> None:
        """What is older than the checkpoint that this run goes on from is retained and goes like its own."""
        for number in left.abandoned:
            self._registry.adopt_abandoned(number)
        for metadata in (*left.older, *left.others):
            self._registry.adopt(metadata.checkpoint, references(metadata))
        for number in self._claims:
            self._registry.adopt(number, frozenset())
        older = [metadata.checkpoint for metadata in left.older]
        self._retained = sorted(older + list(self._claims))

    def restored(self, metadata: CheckpointMetadata | None) -> None:
        """Go on from this checkpoint, whatever came after it. Files of those that came after stay: they are damaged."""
        self.newest = metadata
        number = self._place_of(metadata)
        for newer in [n for n in self._retained if n > number]:
            self._registry.forget(newer)
        self._retained = [n for n in self._retained if n < number]
        if number in self._claims:
            self._retained.append(number)
        if metadata is not None and not metadata.savepoint and metadata is not self._foreign:
            self._retained.append(number)
            self._registry.adopt(number, references(metadata))
        transactions = [] if metadata is None else metadata.transactions
        self._uncommitted = {t.id: t for t in transactions if t.id not in self._committed}

    def _place_of(self, metadata: CheckpointMetadata | None) -> int:
        if metadata is None:
            return 0
        if metadata is self._foreign and self._claim is not None:
            return self._claim.number
        return metadata.checkpoint

    def started(self, metadata: CheckpointMetadata | None) -> None:
        """An attempt starts from there."""
        self._is_replaying = metadata is not None and metadata is self._foreign

    def attempt_begins(self, following: int) -> None:
        """An attempt runs, and its first checkpoint will be `following`."""
        self._registry.attempt_begins(following)

    def triggered(self, checkpoint: int, savepoint: SavepointOrder | None = None) -> None:
        """A checkpoint is begun: from now on it may name files, and files may be written for it."""
        self._registry.begin(checkpoint)
        if savepoint is not None:
            self._savepoints[checkpoint] = savepoint.target

    def saved(self, savepoint: int) -> None:
        """The savepoint is durable, and the user's from now on."""
        self._registry.save(savepoint)
        del self._savepoints[savepoint]

    def ended_with(self, metadata: CheckpointMetadata) -> None:
        """The savepoint with which the job ends is durable: sinks commit by it."""
        self.newest = metadata
        self._commit_by(metadata)

    def given_up(self, checkpoint: int) -> None:
        """It will not be complete."""
        self._registry.give_up(checkpoint)

    def completed(self, metadata: CheckpointMetadata) -> None:
        """The checkpoint is durable."""
        self.newest = metadata
        self._registry.complete(metadata.checkpoint, references(metadata))
        self._retained.append(metadata.checkpoint)
        self._commit_by(metadata)
        if not _replays(metadata):
            self._is_replaying = False
        self._retire()

    def _commit_by(self, metadata: CheckpointMetadata) -> None:
        # Some may have been confirmed while this metadata, which still names them, was being written.
        self._uncommitted = {t.id: t for t in metadata.transactions if t.id not in self._committed}
        self._committing[metadata.checkpoint] = tuple(t.id for t in metadata.transactions)

    def _retire(self) -> None:
        gone = self._still_read + self._retained[: -self._retain]
        self._retained = self._retained[-self._retain :]
        read = self._claim.number if self._claim is not None and self._is_replaying else None
        self._still_read = [number for number in gone if number == read]
        for number in gone:
            if number != read:
                self._registry.let_go(number)

    def end(self) -> None:
        """There will be no other checkpoint, and no attempt that reads anything."""
        self._is_replaying = False
        self._retire()
        self._registry.end()

    def sweep(self) -> tuple[int, ...]:
        """Whose metadata may be withdrawn now; each is named once, until `withdrawn` says otherwise."""
        collected = self._registry.collect()
        claims = [number for number in collected if number in self._claims]
        self._registry.withdrawn(claims, ())
        for number in claims:
            self._registry.forget(number)
            self._subsumed.append(self._claims.pop(number))
        return tuple(number for number in collected if number not in claims)

    def withdrawn(self, asked: Collection[int], gone: Collection[int]) -> None:
        """Of those asked for, these are certainly incomplete now."""
        self._registry.withdrawn(asked, gone)

    def deletable(self) -> Deletable:
        """What may be deleted now; each thing is named once, until `deleted` says that it is left."""
        deletable = self._registry.deletable()
        partial = [n for n in deletable.checkpoints if n in self._savepoints]
        return replace(deletable, savepoints=tuple((n, self._savepoints[n]) for n in partial))

    def deleted(self, left: Deletable) -> None:
        """What was handed out last is deleted but for this."""
        self._registry.deleted(left)
        self._savepoints = {
            number: target
            for number, target in self._savepoints.items()
            if self._registry.knows(number)
        }

    def subsumed_claims(self) -> list[Elsewhere]:
        """What was claimed and may be deleted now; each is named once, until `not_released`."""
        subsumed, self._subsumed = self._subsumed, []
        return subsumed

    def not_released(self, place: Elsewhere) -> None:
        """It could not be deleted: the next sweep names it again."""
        self._subsumed.append(place)

    def committed(self, checkpoint: int) -> None:
        """All transactions that the checkpoint names are committed."""
        self._confirm(self._committing.pop(checkpoint, ()))
        if self.newest is not None and self.newest.checkpoint == checkpoint:
            self.all_committed()

    def all_committed(self) -> None:
        """Everything that the newest checkpoint names is committed."""
        self._confirm(tuple(self._uncommitted))

    def _confirm(self, ids: Iterable[str]) -> None:
        newest = 0 if self.newest is None else self.newest.checkpoint
        for id in ids:
            self._committed[id] = newest
            self._uncommitted.pop(id, None)
        oldest = newest - _CHECKPOINTS_REMEMBERED
        self._committed = {id: c for id, c in self._committed.items() if c >= oldest}

    def commit_failed(self, checkpoint: int | None) -> None:
        """The outcome is unknown; its transactions stay uncommitted until a recovery of the sinks has repeated them."""
        if checkpoint is not None:
            self._committing.pop(checkpoint, None)

    def commit_again(self) -> tuple[int, tuple[TransactionRecord, ...]]:
        """Begin the commit of the newest checkpoint anew: its number and what is not confirmed."""
        assert self.newest is not None, "nothing was ever committed"
        self._committing[self.newest.checkpoint] = tuple(self._uncommitted)
        return self.newest.checkpoint, self.uncommitted

    @property
    def committing(self) -> bool:
        """Some commit is under way."""
        return bool(self._committing)

    @property
    def uncommitted(self) -> tuple[TransactionRecord, ...]:
        """To be committed (again) when sinks are recovered, in the order in which they were pre-committed."""
        return tuple(self._uncommitted.values())

    def unconfirmed(self, transactions: Iterable[TransactionRecord]) -> list[TransactionRecord]:
        """Those whose commit is not confirmed."""
        return [t for t in transactions if t.id not in self._committed]

    def carry_over(self, transactions: Iterable[TransactionRecord]) -> list[TransactionRecord]:
        """What the next metadata must name: those whose commit is not confirmed yet, then the new ones, each subtask's in order."""
        fresh = {t.id: t for t in self.unconfirmed(transactions)}
        return list((self._uncommitted | fresh).values())

    def check(self) -> None:
        """Assert every invariant."""
        assert self._retained == sorted(self._retained), self._retained
        assert len(self._retained) <= self._retain, self._retained
        assert not self._committed.keys() & self._uncommitted.keys(), "both committed and not"

    def describe(self) -> str:
        """The whole state as stable text."""
        return f"complete={self._retained} uncommitted={len(self._uncommitted)}"


def _replays(metadata: CheckpointMetadata) -> bool:
    """Some of what was in flight where the attempt started was still to be read at the cut."""
    return any(h.side == "replay" for subtask in metadata.subtasks for h in subtask.inflight)


def metadata_of(
    plan: ExecutionPlan,
    pending: PendingCheckpoint,
    transactions: list[TransactionRecord],
    *,
    epoch: int,
    mode: str,
    now_ns: int,
) -> CheckpointMetadata:
    """The metadata of a checkpoint that every worker has acknowledged."""
    return CheckpointMetadata(
        job=plan.job,
        checkpoint=pending.number,
        epoch=epoch,
        mode=mode,
        savepoint=pending.savepoint is not None,
        created_ms=pending.created_ns // 1_000_000,
        duration_ns=max(0, now_ns - pending.created_ns),
        max_parallelism=plan.max_parallelism,
        tasks=[
            TaskInfo(
                task.name,
                [o.name for o in task.operators],
                [o.name for o in task.operators if o.stateful],
                task.parallelism,
            )
            for task in plan.tasks
        ],
        edges=[_edge_info(edge) for edge in plan.edges],
        subtasks=pending.subtasks,
        transactions=transactions,
    )


def _edge_info(edge: EdgePlan) -> EdgeInfo:
    partitioner = edge.partitioner
    return EdgeInfo(
        key=edge.key,
        producer=edge.producer,
        consumer=edge.consumer,
        partitioning=partitioner.name,
        columns=list(partitioner.key_columns),
        parameters=list(partitioner.parameters),
    )
