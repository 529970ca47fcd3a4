"""What a sink has pre-committed and nobody is known to have committed, and which cut covers how much of it.

A cut names everything that is open. When its checkpoint is complete, what it named is committed, and what was pre-committed after the cut is
not, whatever the checkpoints' numbers say: cuts of different modes may come in another order than their numbers.
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
        """The checkpoint's cut is here; what it names."""
        self._covered[checkpoint] = self._count
        return tuple((sink, transaction) for _, sink, transaction in self._open)

    def completed(self, checkpoint: int) -> None:
        """What the checkpoint's cut named is committed."""
        covered = self._covered.get(checkpoint, 0)
        self._covered = {n: count for n, count in self._covered.items() if n > checkpoint}
        self._open = [entry for entry in self._open if entry[0] > covered]
