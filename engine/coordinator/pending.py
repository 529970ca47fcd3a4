"""A checkpoint between its trigger and its end: what is known of it, and what others may see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.channels.events import CheckpointMode
from headrace.recovery.metadata import SubtaskSnapshot, TransactionRecord

from ..contract.messages import Acknowledge
from .coordinator_events import (
    CoordinatorEffect,
    FailedCheckpoint,
    RequestAnswered,
    SavepointOrder,
)


@dataclass(frozen=True, slots=True)
class CheckpointUnderWay:
    """A checkpoint that is not complete yet.

    Attributes:
        created_ms: when it was triggered, since 1970.
        missing: workers whose part is not durable; empty: its metadata is written, or it is held
            until its transactions are committed.
    """

    checkpoint: int
    mode: str
    created_ms: int
    savepoint: bool
    missing: tuple[int, ...] = ()


@dataclass(slots=True)
class PendingCheckpoint:
    """A triggered checkpoint, not complete yet.

    Attributes:
        final: the job ends with this checkpoint, and sinks commit by it even if a savepoint.
        request: number of the user's request, or None.
        mode: how barriers travel.
        savepoint: properties of a savepoint; None: an ordinary checkpoint.
        full: shares no file with older checkpoints.
        drained: a user has ended the input before.
        awaits: transactions to be committed before the savepoint, which every worker has
            acknowledged, is complete.
        covered_by: the checkpoint that will commit `awaits`.
    """

    number: int
    created_ns: int
    final: bool
    request: int | None
    mode: CheckpointMode
    savepoint: SavepointOrder | None = None
    full: bool = False
    drained: bool = False
    awaits: tuple[TransactionRecord, ...] = ()
    covered_by: int | None = None
    acknowledged: dict[int, Acknowledge] = field(default_factory=dict)

    def acknowledge(self, worker: int, message: Acknowledge) -> None:
        """Note a worker's part; a repeat must be equal."""
        known = self.acknowledged.setdefault(worker, message)
        assert known == message, f"worker {worker} acknowledged {self.number} twice, differently"

    def complete(self, workers: Iterable[int]) -> bool:
        """Every worker has acknowledged."""
        return self.acknowledged.keys() >= set(workers)

    @property
    def name(self) -> str:
        """The checkpoint in messages for people."""
        return f"chk-{self.number}" if self.savepoint is None else f"savepoint {self.number}"

    @property
    def commits(self) -> bool:
        """Sinks commit by this checkpoint."""
        return self.savepoint is None or self.final

    @property
    def subtasks(self) -> list[SubtaskSnapshot]:
        """All snapshots, sorted by task and subtask."""
        snapshots = [s for a in self.acknowledged.values() for s in a.subtasks]
        return sorted(snapshots, key=lambda s: (s.task, s.index))

    @property
    def transactions(self) -> list[TransactionRecord]:
        """All pre-committed transactions, by worker."""
        return [t for _, a in sorted(self.acknowledged.items()) for t in a.transactions]

    def answer(self, checkpoint: int | None, failure: str = "") -> list[CoordinatorEffect]:
        """Answer the request, if there is one."""
        if self.request is None:
            return []
        return [RequestAnswered(self.request, checkpoint, failure)]

    def failed(self, reason: str) -> FailedCheckpoint:
        """The checkpoint as one that was given up."""
        return FailedCheckpoint(
            self.number, self.mode.value, self._created_ms, self.savepoint is not None, reason
        )

    def seen(self, workers: Iterable[int]) -> CheckpointUnderWay:
        """The checkpoint as one that waits for some of these workers."""
        return CheckpointUnderWay(
            self.number,
            self.mode.value,
            self._created_ms,
            self.savepoint is not None,
            tuple(worker for worker in workers if worker not in self.acknowledged),
        )

    @property
    def _created_ms(self) -> int:
        return self.created_ns // 1_000_000
