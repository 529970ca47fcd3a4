"""Pre-committed transactions of a job's sinks, from the checkpoint that names them to their commit.

`Transactions` owns the uncommitted transactions, commits under way, and late confirmations. The
metadata of each checkpoint names every transaction without a confirmed commit, so that a restore
from any checkpoint commits all.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.recovery.history import EpochStart
from headrace.recovery.metadata import CheckpointMetadata, TransactionRecord

from .coordinator_events import CommitTransactions, CoordinatorEffect, RecoverSinks

#: A subtask repeats a transaction until it hears that the checkpoint is complete; confirmed
#: transactions are remembered for so many checkpoints.
_CHECKPOINTS_REMEMBERED = 8


class Transactions:
    """Transactions of the complete checkpoints of one job.

    Args:
        restore: the checkpoint to start the job from.
    """

    def __init__(self, restore: CheckpointMetadata | None) -> None:
        #: Number of the newest complete checkpoint; 0: none.
        self._newest = 0
        #: {transaction id: record}: in a complete checkpoint, commit not confirmed.
        self._uncommitted: dict[str, TransactionRecord] = {}
        #: {transaction id: checkpoint}: confirmed lately, so that no late repeat is committed.
        self._committed: dict[str, int] = {}
        #: {checkpoint whose commit was ordered and is not answered: transaction ids}.
        self._committing: dict[int, tuple[str, ...]] = {}
        self.restored(restore)

    @property
    def uncommitted(self) -> tuple[TransactionRecord, ...]:
        """Transactions to commit when sinks are recovered, as they were pre-committed."""
        return tuple(self._uncommitted.values())

    @property
    def committing(self) -> bool:
        """Some commit is under way."""
        return bool(self._committing)

    def unconfirmed(self, transactions: Iterable[TransactionRecord]) -> list[TransactionRecord]:
        """The transactions without a confirmed commit."""
        return [t for t in transactions if t.id not in self._committed]

    def carry_over(self, transactions: Iterable[TransactionRecord]) -> list[TransactionRecord]:
        """Transactions for the next metadata: first unconfirmed, then new."""
        fresh = {t.id: t for t in self.unconfirmed(transactions)}
        return list((self._uncommitted | fresh).values())

    def restored(self, metadata: CheckpointMetadata | None) -> None:
        """Go on from this checkpoint, whatever came after."""
        self._newest = 0 if metadata is None else metadata.checkpoint
        named = [] if metadata is None else metadata.transactions
        self._uncommitted = {t.id: t for t in self.unconfirmed(named)}

    # --- orders -----------------------------------------------------------------------------------

    def commit(self, metadata: CheckpointMetadata) -> list[CoordinatorEffect]:
        """Commit all transactions of a newly complete checkpoint."""
        # Some may have been confirmed while this metadata, which names them, was being written.
        self.restored(metadata)
        self._committing[metadata.checkpoint] = tuple(t.id for t in metadata.transactions)
        return [CommitTransactions(metadata.checkpoint, tuple(metadata.transactions))]

    def commit_again(self) -> list[CoordinatorEffect]:
        """Repeat the unconfirmed part of the newest checkpoint's commit."""
        assert self._newest > 0, "nothing was ever committed"
        self._committing[self._newest] = tuple(self._uncommitted)
        return [CommitTransactions(self._newest, self.uncommitted)]

    def recover(self, start: EpochStart) -> list[CoordinatorEffect]:
        """Note the start of an epoch, commit all unconfirmed transactions, and abort every other in
        the sinks.
        """
        return [RecoverSinks(start.epoch, self.uncommitted, start)]

    # --- answers ----------------------------------------------------------------------------------

    def committed(self, checkpoint: int) -> None:
        """All transactions of the checkpoint are committed."""
        self._confirm(self._committing.pop(checkpoint, ()))
        if checkpoint == self._newest:
            self.recovered()

    def recovered(self) -> None:
        """All transactions of the newest checkpoint are committed."""
        self._confirm(tuple(self._uncommitted))

    def commit_failed(self, checkpoint: int) -> None:
        """The outcome is unknown; a recovery of the sinks, or another commit, repeats it."""
        self._committing.pop(checkpoint, None)

    def _confirm(self, ids: Iterable[str]) -> None:
        for id in ids:
            self._committed[id] = self._newest
            self._uncommitted.pop(id, None)
        oldest = self._newest - _CHECKPOINTS_REMEMBERED
        self._committed = {id: c for id, c in self._committed.items() if c >= oldest}

    def check(self) -> None:
        """Assert every invariant."""
        assert not self._committed.keys() & self._uncommitted.keys(), "both committed and not"

    def describe(self) -> str:
        """The whole state as stable text."""
        return f"uncommitted={len(self._uncommitted)}"
