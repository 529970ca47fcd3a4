"""The status of a running job, as its driver shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.recovery.metadata import CheckpointMetadata

from ..contract.messages import SubtaskNumbers
from ..coordinator.coordinator import CoordinatorStatistics
from ..coordinator.coordinator_events import Notice
from ..coordinator.rules import Phase
from .totals import Totals


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """The newest incarnation of a worker that has registered, on the host where it runs."""

    pid: int
    host: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The newest checkpoint by which a sink has committed; `at_ms` since 1970."""

    checkpoint: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Status:
    """A look at a running job.

    Attributes:
        numbers: {(task, subtask): its latest numbers}, in the attempt that runs.
        notices: (running number, notice), the latest ones, oldest first; of an older checkpoint
            without its metadata.
        checkpoints: the latest complete ones, oldest first: as many as `remembered.py` keeps.
        completed: how many completed in all.
        workers: {worker: process id of its newest incarnation}, on the machine where that runs.
        seen: {worker: its newest incarnation}.
        places: {(task, subtask): worker that holds it}, of those with numbers.
        commits: {sink: its newest commit}, of sinks that commit.
        coordinator: facts of the coordinator alone.
        past: {(task, subtask): its counts in earlier attempts}.
        failed: checkpoints that were given up.
    """

    phase: Phase
    epoch: int
    restarts: int
    numbers: Mapping[tuple[int, int], SubtaskNumbers]
    notices: tuple[tuple[int, Notice], ...] = field(repr=False)
    checkpoints: tuple[CheckpointMetadata, ...] = field(repr=False)
    completed: int
    workers: Mapping[int, int] = field(default_factory=dict)
    seen: Mapping[int, WorkerSeen] = field(default_factory=dict)
    places: Mapping[tuple[int, int], int] = field(default_factory=dict)
    commits: Mapping[str, Committed] = field(default_factory=dict)
    coordinator: CoordinatorStatistics = field(default_factory=CoordinatorStatistics)
    past: Mapping[tuple[int, int], Totals] = field(default_factory=dict)
    failed: int = 0
