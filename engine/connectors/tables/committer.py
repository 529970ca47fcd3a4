"""Adds data files to a table's log, in the coordinator, each once: what both kinds of tables share.

A run's token is the newest checkpoint of the run whose files the log names. It is stored by the
same step of the log that names the files, under the run alone: job and sink may have other names by
the time of a repetition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from ...contract.errors import CommitLost, UserError
from ...contract.operators import Transaction
from ..filesystem import Location
from ..tokens import by_run
from .data_files import Notes

#: The table, as its library has loaded it.
T = TypeVar("T")


class TableCommitter(ABC, Generic[T]):
    """Commits the data files of one sink.

    Args:
        where: names the table in messages.
        location: of the data files.
    """

    def __init__(self, where: str, location: Location, *, job: str, operator: str) -> None:
        self._where = where
        self._job = job
        self._operator = operator
        self._notes = Notes(location, job=job, operator=operator)
        self._owner = ""

    def own(self, owner: str, *, anew: bool) -> None:
        """See `OwnsOutput`."""
        self._owner = owner

    def output(self) -> str:
        """See `OwnsOutput`. A table is appended to by many runs, so its rows are nobody's."""
        return ""

    def remove_output(self) -> None:
        """See `OwnsOutput`. Raises: UserError."""
        raise UserError(
            f"fresh=replace cannot take rows out of {self._where}: delete them there, and start"
            " with fresh=append"
        )

    def commit(self, checkpoint: int, transactions: Sequence[Transaction]) -> None:
        """Add the files of each run's new transactions, with the token.

        Raises: CommitLost, when a file or the table is gone; errors of the table's library, and may
            be repeated.
        """
        for run, group in by_run(transactions).items():
            self._commit_run(run, group)
        self._notes.remove(transactions)

    def recover(
        self, checkpoint: int, committed: Sequence[Transaction], *, epoch: int | None = None
    ) -> None:
        """Commit again, then delete other files of this owner's epochs up to `epoch`."""
        self.commit(checkpoint, committed)
        left = self._notes.left_over(self._owner, epoch)
        if left:
            self._notes.delete(left, self._files(self._loaded()))

    def _commit_run(self, run: str, transactions: Sequence[Transaction]) -> None:
        table = self._loaded()
        token = self._token(table, run)
        new = [t for t in transactions if t.checkpoint > token]
        if new:
            self._notes.refuse_lost(new)
            self._append(table, run, new)

    def _facts(self, transactions: Sequence[Transaction]) -> Mapping[str, str]:
        """What the log's entry tells people of a commit."""
        return {
            "headrace.job": self._job,
            "headrace.sink": self._operator,
            "headrace.checkpoint": str(transactions[-1].checkpoint),
        }

    def _loaded(self) -> T:
        table = self._load()
        if table is None:
            raise CommitLost(f"{self._where} is gone; begin anew with --fresh")
        return table

    @abstractmethod
    def _load(self) -> T | None:
        """Load the table's newest version; None: there is no table. Raises: StorageUnreachable."""

    @abstractmethod
    def _token(self, table: T, run: str) -> int:
        """Return the run's token; -1: there is none."""

    @abstractmethod
    def _append(self, table: T, run: str, transactions: Sequence[Transaction]) -> None:
        """Add files, in the order of checkpoints, and the last checkpoint as the run's token; in
        one step, which fails if another commit of the run was faster.
        """

    @abstractmethod
    def _files(self, table: T) -> set[str]:
        """Paths of the table's files below its location."""
