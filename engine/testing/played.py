"""One run of a job with one sink: its coordinator and its writers, played by hand.

The order of calls is the engine's: `own` once, then for each attempt `recover` before its writers
open; at a checkpoint every writer's `precommit`; commits when the checkpoint is complete, each with
all transactions whose commit is not confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from headrace.channels.events import MIN_WATERMARK

from ..contract.connectors import Sink
from ..contract.operators import (
    GoesBack,
    OperatorContext,
    OwnsOutput,
    RestoredState,
    SinkCommitter,
    SinkWriter,
    TakesEventTime,
    Transaction,
    run_of,
)
from .elsewhere import copied
from .states import MAX_PARALLELISM, dealt, frozen
from .verdict import Broken, step

OPERATOR = "out"


class PlayedRun:
    """A run of a job in one checkpoint directory.

    Args:
        operator: name of the sink in the job.

    Attributes:
        owner: token of the directory.
        epoch: of the latest attempt.
        restored: the newest complete checkpoint; 0: none.
        named: transactions of complete checkpoints without a confirmed commit.
        precommitted: transactions of no complete checkpoint.
        writers: of the latest attempt.
    """

    def __init__(self, sink: Sink, job: str, owner: str, operator: str = OPERATOR) -> None:
        self.epoch = 0
        self.restored = 0
        self.named: list[Transaction] = []
        self.precommitted: list[Transaction] = []
        self.writers: list[SinkWriter] = []
        self._sink = sink
        self._job = job
        self._operator = operator
        self._run = run_of(job, operator, owner)
        self.owner = owner
        self._taken = 0
        self._seen: set[str] = set()
        #: At the latest pre-commit, and in the newest complete checkpoint.
        self._frozen: list[list[RestoredState]] = []
        self._states: list[list[RestoredState]] = []
        self._committer: SinkCommitter | None = None

    def committer(self) -> SinkCommitter | None:
        """Make another committer of this run, as a restarted driver does."""
        with step("committer()"):
            made = self._sink.committer(self._job, self._operator)
        if isinstance(made, OwnsOutput):
            with step("own"):
                made.own(self.owner, anew=self.epoch == 0)
        return made

    def start(self, parallelism: int) -> None:
        """Begin an attempt from the newest complete checkpoint."""
        self._committer = self.committer()
        self.epoch += 1
        self.recover(self._committer)
        self.writers = []
        for index in range(parallelism):
            context = context_of(
                self._job, self.owner, self.epoch, index, parallelism, self._operator
            )
            writer = open_writer(self._sink, context)
            self.writers.append(writer)
            states = dealt(self._states, parallelism, index)
            if self.restored:
                with step("restore"):
                    writer.restore(states)

    def recover(self, committer: SinkCommitter | None) -> None:
        """Recover from the newest complete checkpoint."""
        if committer is None:
            return
        with step(f"recover at checkpoint {self.restored}"):
            committer.recover(self.restored, self.named, epoch=self.epoch)
            if isinstance(committer, GoesBack):
                committer.go_on(self.restored)

    def write(self, batch: pa.RecordBatch) -> None:
        """Deal the rows out to the writers."""
        for index, writer in enumerate(self.writers):
            rows = batch.take(pa.array(range(index, batch.num_rows, len(self.writers))))
            if rows.num_rows:
                with step("write"):
                    writer.write(rows)
                    writer.commit()

    def precommit(self) -> None:
        """Take a checkpoint at every writer."""
        self._taken += 1
        for writer in self.writers:
            found = precommitted_by(writer, self._taken, self._run)
            for transaction in found:
                self._check(transaction)
            self.precommitted += found
        with step("snapshot"):
            self._frozen = frozen(self.writers)

    def complete(self) -> None:
        """The checkpoint taken last is complete: it names all that was pre-committed."""
        self.restored = self._taken
        self.named += [replace(t, checkpoint=self.restored) for t in self.precommitted]
        self.precommitted = []
        self._states = self._frozen

    def complete_with(self, batch: pa.RecordBatch) -> None:
        """Write rows, and bring a checkpoint up to where only the commit is missing."""
        self.write(batch)
        self.precommit()
        self.complete()

    def commit(self, *, confirmed: bool = True) -> None:
        """Commit the newest complete checkpoint. Not `confirmed`: the answer is lost."""
        if self.named:
            self.commit_once_more(self._committer, self.restored, self.named)
        if confirmed:
            self.named = []

    def commit_once_more(
        self,
        committer: SinkCommitter | None,
        checkpoint: int,
        transactions: Sequence[Transaction],
    ) -> None:
        """Commit, whoever has before."""
        if committer is not None:
            with step(f"commit of checkpoint {checkpoint}"):
                committer.commit(checkpoint, transactions)

    def checkpoint(self) -> None:
        """Take, complete and commit a checkpoint."""
        self.precommit()
        self.complete()
        self.commit()

    def crash(self) -> None:
        """End the attempt: writers are closed, and transactions of no checkpoint forgotten."""
        for writer in self.writers:
            with step("close"):
                writer.close()
        self.writers = []
        self.precommitted = []

    def go_on_from(self, other: PlayedRun) -> None:
        """Start from the newest complete checkpoint of another run, as `restore=` does."""
        self.restored = self._taken = other.restored
        self.named = list(other.named)
        self._states = other._states

    def adopt(self, transactions: Sequence[Transaction]) -> None:
        """Take transactions that another process has pre-committed for the next checkpoint."""
        self._taken += 1
        self.precommitted += transactions

    def _check(self, transaction: Transaction) -> None:
        if transaction.id in self._seen:
            raise Broken(f"two transactions have the id {transaction.id!r}")
        self._seen.add(transaction.id)
        for key, value in transaction.payload.items():
            if not isinstance(key, str) or not isinstance(value, str | int):
                raise Broken(
                    f"transaction {transaction.id!r} holds {key!r}: {value!r}; a payload holds"
                    " strings and integers by names"
                )


def context_of(
    job: str, owner: str, epoch: int, index: int, parallelism: int, operator: str = OPERATOR
) -> OperatorContext:
    """Return where a writer runs."""
    return OperatorContext(job, operator, index, parallelism, MAX_PARALLELISM, epoch, owner=owner)


def open_writer(sink: Sink, context: OperatorContext) -> SinkWriter:
    """Make and open the writer of one subtask, from a copy of the sink as workers get it."""
    shipped = copied(sink)
    with step("writer()"):
        writer = shipped.writer()
    with step("open"):
        writer.open(context)
    return writer


def precommitted_by(writer: SinkWriter, checkpoint: int, run: str) -> list[Transaction]:
    """Pre-commit one writer."""
    with step(f"pre-commit of checkpoint {checkpoint}"):
        if isinstance(writer, TakesEventTime):
            writer.tell_event_time(MIN_WATERMARK)
        found = [replace(t, run=run) for t in writer.precommit(checkpoint)]
        writer.commit()
    return found
