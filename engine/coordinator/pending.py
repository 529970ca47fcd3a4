"""Checkpoints between trigger and durable metadata: who has acknowledged, when it expires, when the next one is due.

Pure bookkeeping, driven by the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.channels.events import CheckpointMode
from headrace.recovery.metadata import SubtaskSnapshot, TransactionRecord

from ..contract.messages import Acknowledge


@dataclass(frozen=True, slots=True)
class CheckpointRules:
    """When checkpoints are taken and given up. Times in nanoseconds.

    Attributes:
        interval_ns: from trigger to trigger; None: only on request and at the end.
        min_pause_ns: from the end of one to the trigger of the next.
        timeout_ns: a checkpoint that takes longer is given up.
        tolerable_failures: so many may fail in a row; one more fails the attempt.
        retain: so many complete checkpoints are kept.
        concurrent: so many may be under way at once.
    """

    interval_ns: int | None
    min_pause_ns: int
    timeout_ns: int
    tolerable_failures: int
    retain: int
    concurrent: int


@dataclass(frozen=True, slots=True)
class SavepointOrder:
    """What a savepoint is to be.

    Attributes:
        target: URL of the directory that it goes to; empty: the job's own.
        mode: None is the job's.
        number_min: its number must be at least this: those below may be taken in the directory.
    """

    target: str = ""
    mode: CheckpointMode | None = None
    number_min: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """Somebody, known by the number `request`, wants a checkpoint, or a savepoint."""

    request: int
    savepoint: SavepointOrder | None = None


@dataclass(slots=True)
class PendingCheckpoint:
    """One checkpoint that was triggered and is not complete.

    Attributes:
        final: its completion ends the job, and sinks commit by it, also if it is a savepoint.
        request: whoever asked for it, or None.
        mode: how its barriers travel.
        savepoint: it is one, if not None.
        awaits: of a savepoint that every worker has acknowledged: transactions that must be committed before it is complete.
        covered_by: of a savepoint that every worker has acknowledged: the checkpoint that will commit its transactions.
    """

    number: int
    created_ns: int
    final: bool
    request: int | None
    mode: CheckpointMode
    savepoint: SavepointOrder | None = None
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
    def commits(self) -> bool:
        """Sinks commit by it."""
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


class Schedule:
    """When to trigger next. Knows the rules and the past, not the checkpoints themselves."""

    def __init__(self, rules: CheckpointRules) -> None:
        self._rules = rules
        self._due_ns: int | None = None
        self._failures = 0

    def attempt_started(self, now_ns: int) -> None:
        """The first periodic checkpoint is one interval away."""
        self._failures = 0
        self._due_ns = None if self._rules.interval_ns is None else now_ns + self._rules.interval_ns

    def attempt_ended(self) -> None:
        """Nothing is due until the next attempt starts."""
        self._due_ns = None

    def triggered(self, now_ns: int) -> None:
        """A checkpoint began; the next is due an interval later, without drifting when this one was late by little."""
        if self._due_ns is None or self._rules.interval_ns is None:
            return
        planned_ns = self._due_ns + self._rules.interval_ns
        self._due_ns = planned_ns if planned_ns > now_ns else now_ns + self._rules.interval_ns

    def ended(self, now_ns: int, *, complete: bool) -> bool:
        """A checkpoint completed or failed. Returns whether so many failed in a row that the attempt must."""
        self._failures = 0 if complete else self._failures + 1
        if self._due_ns is not None:
            self._due_ns = max(self._due_ns, now_ns + self._rules.min_pause_ns)
        return self._failures > self._rules.tolerable_failures

    @property
    def due_ns(self) -> int | None:
        """When the next periodic checkpoint is due."""
        return self._due_ns
