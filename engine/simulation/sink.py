"""A transactional sink for simulations: an outside system, its writer and its committer.

The system outlives all processes. Each transaction is open, prepared, committed or aborted;
committed rows are visible in the order of the commits. An impossible commit is an error, never
silence.

A system with tokens recognises repeated commits as a table format does: by the highest checkpoint
applied for a run. A wrong stamp is a loss there, or doubles rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa

from ..contract.errors import CommitLost
from ..contract.operators import (
    OperatorContext,
    RestoredState,
    StateSnapshot,
    Transaction,
)

#: One record as the sink shows it: the values of its columns.
Row = tuple[Any, ...]


class TransactionStatus(Enum):
    """Where a transaction of the outside system stands."""

    OPEN = "open"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(slots=True)
class SinkTransaction:
    """A transaction of the outside system. `stamp`: run and checkpoint under which it was applied,
    in a system with tokens.
    """

    sink: str
    subtask: int
    status: TransactionStatus
    rows: list[Row] = field(default_factory=list)
    stamp: tuple[str, int] = ("", 0)


class SinkSystem:
    """The outside system of all sinks of a run.

    Attributes:
        has_tokens: commits are told apart by tokens, not by ids.
        transactions: by id, in order of their beginning.
        visible: ids in the order of their commits.
        cuts: {(epoch, checkpoint): ids of transactions prepared, or already committed, at the cut
            of the sinks' subtasks}.
    """

    def __init__(self, *, has_tokens: bool = False) -> None:
        self.has_tokens = has_tokens
        self.transactions: dict[str, SinkTransaction] = {}
        self.visible: list[str] = []
        self.cuts: dict[tuple[int, int], set[str]] = {}

    def begin(self, id: str, sink: str, subtask: int) -> None:
        """Begin a transaction; ids are used once."""
        assert id not in self.transactions, f"transaction {id} began twice"
        self.transactions[id] = SinkTransaction(sink, subtask, TransactionStatus.OPEN)

    def write(self, id: str, rows: Sequence[Row]) -> None:
        """Add rows to an open transaction."""
        transaction = self.transactions[id]
        if transaction.status is not TransactionStatus.OPEN:
            raise RuntimeError(f"transaction {id} is {transaction.status.value}")
        transaction.rows.extend(rows)

    def prepare(self, id: str) -> None:
        """Make an open transaction ready to commit."""
        transaction = self.transactions[id]
        if transaction.status is not TransactionStatus.OPEN:
            raise RuntimeError(f"transaction {id} is {transaction.status.value}")
        transaction.status = TransactionStatus.PREPARED

    def commit(self, id: str) -> None:
        """Show the rows; a second commit has no effect.

        Raises CommitLost when the outcome is lost.
        """
        transaction = self._settled(id)
        if transaction.status is TransactionStatus.PREPARED:
            transaction.status = TransactionStatus.COMMITTED
            self.visible.append(id)

    def apply(self, run: str, transactions: Sequence[Transaction]) -> None:
        """Show the rows of the run's transactions above its token, which rises with them.

        Raises CommitLost when the outcome of one is lost; none is shown then.
        """
        token = self._token(run)
        new = [(t, self._settled(t.id)) for t in transactions if t.checkpoint > token]
        for transaction, shown in new:
            shown.status = TransactionStatus.COMMITTED
            shown.stamp = (run, transaction.checkpoint)
            self.visible.append(transaction.id)

    def _token(self, run: str) -> int:
        stamps = (t.stamp for t in self.transactions.values())
        return max((checkpoint for of, checkpoint in stamps if of == run), default=0)

    def _settled(self, id: str) -> SinkTransaction:
        transaction = self.transactions.get(id)
        if transaction is None or transaction.status in (
            TransactionStatus.OPEN,
            TransactionStatus.ABORTED,
        ):
            status = "unknown" if transaction is None else transaction.status.value
            raise CommitLost(f"transaction {id} cannot be committed: it is {status}")
        return transaction

    def abort(self, id: str) -> None:
        """Forget the rows."""
        transaction = self.transactions[id]
        if transaction.status is not TransactionStatus.COMMITTED:
            transaction.status = TransactionStatus.ABORTED

    def cut(self, epoch: int, checkpoint: int, sink: str, subtask: int) -> None:
        """The sink's subtask cuts now.

        Uncommitted transactions of older epochs are never committed.
        """
        settled = (TransactionStatus.COMMITTED, TransactionStatus.PREPARED)
        cut = self.cuts.setdefault((epoch, checkpoint), set())
        for id, transaction in self.transactions.items():
            if transaction.sink != sink:
                continue
            if _epoch(id) < epoch:
                own = transaction.status is TransactionStatus.COMMITTED
            else:
                own = transaction.subtask == subtask and transaction.status in settled
            if own:
                cut.add(id)

    def open(self, sink: str) -> list[str]:
        """Return the ids of the sink's transactions that are neither committed nor aborted."""
        unsettled = (TransactionStatus.OPEN, TransactionStatus.PREPARED)
        return [
            id for id, t in self.transactions.items() if t.sink == sink and t.status in unsettled
        ]

    def rows(self, sink: str) -> list[tuple[int, Row]]:
        """Return (subtask, row) of all visible rows, in commit order."""
        return [
            (transaction.subtask, row)
            for id in self.visible
            if (transaction := self.transactions[id]).sink == sink
            for row in transaction.rows
        ]


def _epoch(id: str) -> int:
    return int(id.rsplit("-", 2)[1])


class SystemWriter:
    """Writes into the outside system, a transaction from pre-commit to pre-commit."""

    def __init__(self, system: SinkSystem) -> None:
        self._system = system
        self._context: OperatorContext | None = None
        self._count = 0
        self._open: str | None = None

    def open(self, context: OperatorContext) -> None:
        """Note where this is; transactions begin lazily."""
        self._context = context

    def restore(self, states: Sequence[RestoredState]) -> None:
        """A writer keeps no state."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the batch to the open transaction."""
        context = self._context
        assert context is not None, "opened"
        if self._open is None:
            self._count += 1
            where = f"{context.operator}-{context.index}"
            self._open = f"{where}-{context.epoch}-{self._count}"
            self._system.begin(self._open, context.operator, context.index)
        columns = [column.to_pylist() for column in batch.columns]
        self._system.write(self._open, list(zip(*columns, strict=True)))

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        """Prepare the open transaction, if any."""
        if self._open is None:
            return ()
        id, self._open = self._open, None
        self._system.prepare(id)
        return (Transaction(id, {"rows": len(self._system.transactions[id].rows)}),)

    def commit(self) -> None:
        """A writer keeps no state."""

    def snapshot(self) -> Sequence[StateSnapshot]:
        """A writer keeps no state."""
        return ()

    def close(self) -> None:
        """Leave an open transaction open until a recovery aborts it."""


class SystemCommitter:
    """Commits and recovers in the outside system.

    Every call can fail, and a crash can come between any two.

    Args:
        call: makes a call to the system: method name, arguments.
        has_tokens: see `SinkSystem`.
    """

    def __init__(self, sink: str, call: Callable[..., Any], *, has_tokens: bool = False) -> None:
        self._sink = sink
        self._call = call
        self._has_tokens = has_tokens

    def commit(self, checkpoint: int, transactions: Sequence[Transaction]) -> None:
        """Commit in sequence; raises when the system does not answer."""
        for transaction in transactions:
            if self._has_tokens:
                # As many calls as without tokens, so that a seed keeps its schedule.
                together = [t for t in transactions if t.run == transaction.run]
                self._call("apply", transaction.run, together)
            else:
                self._call("commit", transaction.id)

    def recover(
        self, checkpoint: int, committed: Sequence[Transaction], *, epoch: int | None = None
    ) -> None:
        """Commit again, then abort all others up to `epoch`."""
        self.commit(checkpoint, committed)
        keep = {transaction.id for transaction in committed}
        for id in self._call("open", self._sink):
            if id not in keep and (epoch is None or _epoch(id) <= epoch):
                self._call("abort", id)
