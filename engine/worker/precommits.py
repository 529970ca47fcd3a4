"""Open transactions of a sink: pre-committed, and not known to be committed.

A cut names every open transaction. When its checkpoint is complete, these are committed, and
transactions pre-committed after the cut are not, whatever the checkpoints' numbers say: cuts of
different modes may come in another order than their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..contract.operators import Transaction


class Precommits:
    """Open transactions of one subtask, in order."""

    def __init__(self) -> None:
        self._count = 0
        #: (running number of the pre-commit, sink, transaction)
        self._open: list[tuple[int, str, Transaction]] = []
        #: {checkpoint: pre-commits before its cut}
        self._covered: dict[int, int] = {}

    def add(self, transactions: Iterable[tuple[str, Transaction]]) -> None:
        """A pre-commit brought these."""
        self._count += 1
        self._open += [(self._count, sink, transaction) for sink, transaction in transactions]

    def cut(self, checkpoint: int) -> tuple[tuple[str, Transaction], ...]:
        """The checkpoint's cut is here; return the transactions that it names."""
        self._covered[checkpoint] = self._count
        return tuple((sink, transaction) for _, sink, transaction in self._open)

    def completed(self, checkpoint: int) -> None:
        """The transactions named by the checkpoint's cut are committed."""
        covered = self._covered.get(checkpoint, 0)
        self._covered = {n: count for n, count in self._covered.items() if n > checkpoint}
        self._open = [entry for entry in self._open if entry[0] > covered]
