"""What a job has to its name in storage and sinks: complete checkpoints, leftovers, transactions that await their commit."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from headrace.channels.partitioners import Hash
from headrace.recovery.metadata import (
    CheckpointMetadata,
    EdgeInfo,
    TaskInfo,
    TransactionRecord,
)

from ..plan.execution import EdgePlan, ExecutionPlan
from .pending import PendingCheckpoint

#: A subtask repeats a transaction only until it hears that its checkpoint is complete; so long are confirmed ones remembered.
_CHECKPOINTS_REMEMBERED = 8


@dataclass(frozen=True, slots=True)
class Deletable:
    """What may be deleted now: checkpoints, each without the files in `keep`, and single files that were kept earlier."""

    checkpoints: tuple[int, ...]
    keep: frozenset[str]
    files: tuple[str, ...]


class Ledger:
    """Complete checkpoints, the files they refer to, and open transactions of one job.

    A checkpoint may refer to in-flight data in older checkpoints' files. So a file goes only when no retained checkpoint refers to it, and
    nothing goes while a checkpoint is under way that was triggered before: it may be about to refer to it.

    Attributes:
        newest: the newest complete checkpoint: where an attempt starts; None: from nothing.
    """

    def __init__(self, restore: CheckpointMetadata | None, retain: int) -> None:
        self.newest = restore
        self._retain = retain
        #: {complete checkpoint: files it refers to}, oldest first; what retention has not deleted.
        self._complete: dict[int, frozenset[str]] = {}
        #: {checkpoint to delete: it must wait for checkpoints below this number}.
        self._doomed: dict[int, int] = {}
        #: Files of deleted checkpoints that others refer (or referred) to.
        self._kept: set[str] = set()
        #: {transaction id: record}: in a complete checkpoint, commit not confirmed.
        self._uncommitted: dict[str, TransactionRecord] = {}
        #: {transaction id: checkpoint}: confirmed lately, so that a late repeat is not committed twice.
        self._committed: dict[str, int] = {}
        #: Checkpoints whose commit was ordered and is not answered.
        self._committing: set[int] = set()
        self.restored(restore)

    def restored(self, metadata: CheckpointMetadata | None) -> None:
        """Go on from this checkpoint, whatever came after it."""
        self.newest = metadata
        self._complete = {} if metadata is None else {metadata.checkpoint: _references(metadata)}
        if metadata is not None:
            folder = f"chk-{metadata.checkpoint}/"
            self._kept |= {p for p in _references(metadata) if not p.startswith(folder)}
        transactions = [] if metadata is None else metadata.transactions
        self._uncommitted = {t.id: t for t in transactions if t.id not in self._committed}

    def given_up(self, checkpoint: int, following: int) -> None:
        """Its files are garbage, once late writers are done: when a checkpoint from `following` on completes."""
        self._doomed[checkpoint] = following

    def completed(self, metadata: CheckpointMetadata, following: int) -> None:
        """The checkpoint is durable; `following` is the number of the next one to be triggered."""
        assert metadata.checkpoint > max(self._complete, default=0), "an older one came later"
        self.newest = metadata
        self._complete[metadata.checkpoint] = _references(metadata)
        # Some may have been confirmed while this metadata, which still names them, was being written.
        self._uncommitted = {t.id: t for t in metadata.transactions if t.id not in self._committed}
        self._committing.add(metadata.checkpoint)
        for number in sorted(self._complete)[: -self._retain]:
            del self._complete[number]
            self._doomed[number] = following

    def sweep(self, pending: Collection[int]) -> Deletable:
        """What may be deleted now, given the checkpoints under way; each thing is named once."""
        oldest = min(pending, default=max(self._complete, default=0) + 1)
        go = tuple(sorted(n for n, limit in self._doomed.items() if limit <= oldest))
        referred = frozenset[str]().union(*self._complete.values())
        for number in go:
            del self._doomed[number]
        files: tuple[str, ...] = ()
        if not pending:
            files = tuple(sorted(self._kept - referred))
            self._kept -= set(files)
        folders = tuple(f"chk-{number}/" for number in go)
        keep = frozenset(path for path in referred if path.startswith(folders))
        self._kept |= keep
        return Deletable(go, keep, files)

    def committed(self, checkpoint: int) -> None:
        """All transactions that the checkpoint names are committed."""
        self._committing.discard(checkpoint)
        if self.newest is not None and self.newest.checkpoint == checkpoint:
            self.all_committed()

    def all_committed(self) -> None:
        """Everything that the newest checkpoint names is committed."""
        newest = 0 if self.newest is None else self.newest.checkpoint
        for id in self._uncommitted:
            self._committed[id] = newest
        self._uncommitted = {}
        oldest = newest - _CHECKPOINTS_REMEMBERED
        self._committed = {id: c for id, c in self._committed.items() if c >= oldest}

    def commit_failed(self, checkpoint: int | None) -> None:
        """The outcome is unknown; its transactions stay uncommitted until a recovery of the sinks has repeated them."""
        if checkpoint is not None:
            self._committing.discard(checkpoint)

    def commit_again(self) -> tuple[int, tuple[TransactionRecord, ...]]:
        """Begin the commit of the newest checkpoint anew: its number and what is not confirmed."""
        assert self.newest is not None, "nothing was ever committed"
        self._committing.add(self.newest.checkpoint)
        return self.newest.checkpoint, self.uncommitted

    @property
    def committing(self) -> bool:
        """Some commit is under way."""
        return bool(self._committing)

    @property
    def uncommitted(self) -> tuple[TransactionRecord, ...]:
        """To be committed (again) when sinks are recovered, in the order in which they were pre-committed."""
        return tuple(self._uncommitted.values())

    def carry_over(self, transactions: Iterable[TransactionRecord]) -> list[TransactionRecord]:
        """What the next metadata must name: those whose commit is not confirmed yet, then the new ones, each subtask's in order."""
        fresh = {t.id: t for t in transactions if t.id not in self._committed}
        return list((self._uncommitted | fresh).values())

    def check(self) -> None:
        """Assert every invariant."""
        assert list(self._complete) == sorted(self._complete), self._complete
        assert len(self._complete) <= self._retain, self._complete
        assert not self._committed.keys() & self._uncommitted.keys(), "both committed and not"

    def describe(self) -> str:
        """The whole state as stable text."""
        return f"complete={list(self._complete)} uncommitted={len(self._uncommitted)}"


def _references(metadata: CheckpointMetadata) -> frozenset[str]:
    """The files that hold the checkpoint's in-flight data."""
    return frozenset(
        buffer.path for s in metadata.subtasks for handle in s.inflight for buffer in handle.buffers
    )


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
        savepoint=False,
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
    columns = list(partitioner.columns) if isinstance(partitioner, Hash) else []
    return EdgeInfo(edge.key, edge.producer, edge.consumer, partitioner.name, columns)
