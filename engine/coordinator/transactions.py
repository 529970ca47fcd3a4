"""Pre-committed transactions of a job's sinks, from the checkpoint that names them to their commit.

`Transactions` owns the uncommitted transactions, commits under way, late confirmations, and the
back-off after a failure. The metadata of each checkpoint names every transaction without a
confirmed commit, so that a restore from any checkpoint commits all.

Each transaction is stamped once, with the first complete checkpoint that names it, and the stamp
stays. Only checkpoints that commit stamp, and these complete in the order of their numbers, so a
sink may take "stamp <= highest stamp applied" for "applied".

A commit or recovery that fails is repeated in place, after a wait that doubles: the outside system
may be away for a moment, and the attempt has nothing to do with that. A commit of a newer
checkpoint takes the place of the repetition, since that checkpoint names the same transactions.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from headrace.recovery.history import EpochStart
from headrace.recovery.metadata import CheckpointMetadata, TransactionRecord

from .coordinator_events import CommitTransactions, CoordinatorEffect, RecoverSinks
from .restarts import Restarts
from .rules import RestartRules

#: A subtask repeats a transaction until it hears that the checkpoint is complete; confirmed
#: transactions are remembered for so many checkpoints.
_CHECKPOINTS_REMEMBERED = 8


class Transactions:
    """Transactions of the complete checkpoints of one job.

    Args:
        restore: the checkpoint to start the job from.
        rules: of the back-off after a failure, and of the number of tries in a row.

    Attributes:
        again_at_ns: when a failed commit or recovery is repeated; None: none has failed.
    """

    def __init__(self, restore: CheckpointMetadata | None, rules: RestartRules) -> None:
        self.again_at_ns: int | None = None
        self._rules = rules
        self._tries = Restarts(rules)
        self._recovering = False
        #: Epoch and start of the last recovery.
        self._recovery: tuple[int, EpochStart | None] = (0, None)
        #: Number of the newest complete checkpoint; 0: none.
        self._newest = 0
        #: Number of the last checkpoint by which this coordinator has committed; 0: by none.
        self._stamped = 0
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

    def carry_over(
        self, checkpoint: int, transactions: Iterable[TransactionRecord]
    ) -> list[TransactionRecord]:
        """Transactions for the metadata of this checkpoint: first unconfirmed, as they were
        stamped, then new.
        """
        new = [t for t in self.unconfirmed(transactions) if t.id not in self._uncommitted]
        return [*self._uncommitted.values(), *_stamped(new, checkpoint)]

    def restored(self, metadata: CheckpointMetadata | None) -> None:
        """Go on from this checkpoint, whatever came after."""
        self._newest = 0 if metadata is None else metadata.checkpoint
        named = [] if metadata is None else metadata.transactions
        unconfirmed = self.unconfirmed(named)
        early = [t for t in unconfirmed if not t.checkpoint]
        stamped = {t.id: t for t in _stamped(early, self._newest)}
        self._uncommitted = {t.id: stamped.get(t.id, t) for t in unconfirmed}

    # --- orders -----------------------------------------------------------------------------------

    def commit(self, metadata: CheckpointMetadata) -> list[CoordinatorEffect]:
        """Commit all transactions of a newly complete checkpoint."""
        assert metadata.checkpoint > self._stamped, (
            f"chk-{metadata.checkpoint} commits after chk-{self._stamped}"
        )
        self._stamped = metadata.checkpoint
        # Some may have been confirmed while this metadata, which names them, was being written.
        self.restored(metadata)
        self._committing[metadata.checkpoint] = tuple(t.id for t in metadata.transactions)
        self.again_at_ns = None
        return [CommitTransactions(metadata.checkpoint, tuple(metadata.transactions))]

    def recover(self, start: EpochStart) -> list[CoordinatorEffect]:
        """Note the start of an epoch, commit all unconfirmed transactions, and abort every other in
        the sinks.
        """
        return self._recover(start.epoch, start)

    def sweep(self, epoch: int) -> list[CoordinatorEffect]:
        """Abort every transaction in the sinks: all that the job needed are committed."""
        assert not self._uncommitted, "transactions of the job are open"
        return self._recover(epoch, None)

    def _recover(self, epoch: int, start: EpochStart | None) -> list[CoordinatorEffect]:
        self.again_at_ns = None
        self._recovery = (epoch, start)
        return [RecoverSinks(epoch, self.uncommitted, start, self._newest)]

    def again(self, now_ns: int) -> list[CoordinatorEffect]:
        """Repeat what failed, if its back-off is over: the recovery, or the unconfirmed part of
        the newest checkpoint's commit.
        """
        if self.again_at_ns is None or self.again_at_ns > now_ns:
            return []
        self.again_at_ns = None
        if self._recovering:
            return self._recover(*self._recovery)
        assert self._newest > 0, "nothing was ever committed"
        self._committing[self._newest] = tuple(self._uncommitted)
        return [CommitTransactions(self._newest, self.uncommitted)]

    def forget_again(self) -> None:
        """Repeat nothing: a recovery will. The next failure is the first in a row."""
        self.again_at_ns = None
        self._tries.progress()

    # --- answers ----------------------------------------------------------------------------------

    def committed(self, checkpoint: int) -> None:
        """All transactions of the checkpoint are committed."""
        self._confirm(self._committing.pop(checkpoint, ()))
        if checkpoint == self._newest:
            self.recovered()

    def recovered(self) -> None:
        """All transactions of the newest checkpoint are committed."""
        self._tries.progress()
        self._confirm(tuple(self._uncommitted))

    def failed(self, checkpoint: int | None, now_ns: int) -> int | None:
        """The outcome of a commit, or of a recovery (None), is unknown.

        Returns the wait until it is repeated; None: it has failed too often in a row. A newer
        commit under way repeats it at once.
        """
        self._recovering = checkpoint is None
        if checkpoint is not None:
            self._committing.pop(checkpoint, None)
        if self._committing:
            return 0
        wait_ns = self._tries.next_wait_ns()
        # A commit is repeated for as long as the job runs, whatever the caller makes of the answer.
        self.again_at_ns = now_ns + (self._rules.backoff_max_ns if wait_ns is None else wait_ns)
        return wait_ns

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


def _stamped(transactions: Iterable[TransactionRecord], checkpoint: int) -> list[TransactionRecord]:
    return [replace(transaction, checkpoint=checkpoint) for transaction in transactions]
