"""The status of a running job, as its driver shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.recovery.metadata import CheckpointMetadata

from ..contract.messages import SubtaskNumbers
from ..coordinator.coordinator_events import Notice
from ..coordinator.rules import Phase


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
    """

    phase: Phase
    epoch: int
    restarts: int
    numbers: Mapping[tuple[int, int], SubtaskNumbers]
    notices: tuple[tuple[int, Notice], ...] = field(repr=False)
    checkpoints: tuple[CheckpointMetadata, ...] = field(repr=False)
    completed: int
    workers: Mapping[int, int] = field(default_factory=dict)
