"""Sources that the driver prepares as a run starts: staging of DataFrames, planning of partitions.

A run that goes on from a checkpoint with the source's state prepares nothing anew: the state names
everything that is left to read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from headrace.recovery.layout import staged_folder
from headrace.recovery.metadata import CheckpointMetadata

from ..contract.connectors import PreparedSource, SourceRun
from ..contract.execution import ExecutionPlan, OperatorPlan


class Inputs:
    """The prepared sources of one run."""

    def __init__(self, job: str, directory: str, *, fresh: bool) -> None:
        """Prepare nothing yet.

        Args:
            directory: the checkpoint directory; empty: there is none.
            fresh: the user wants the job to begin anew.
        """
        self._job = job
        self._directory = directory
        self._fresh = fresh
        self._prepared: list[PreparedSource] = []
        self._begun = False
        self._watch: threading.Thread | None = None

    def prepare(self, plan: ExecutionPlan, holds_state: Callable[[str], bool]) -> ExecutionPlan:
        """Prepare the sources, and return the plan for the workers. A second call changes nothing.

        Args:
            holds_state: the checkpoint of this run's start holds the state of that source.

        Raises: HeadraceError.
        """
        if all(o.prepare is None for task in plan.tasks for o in task.operators):
            return plan
        tasks = [
            replace(task, operators=tuple(self._one(o, holds_state) for o in task.operators))
            for task in plan.tasks
        ]
        return replace(plan, tasks=tuple(tasks))

    def begin(self) -> None:
        """The run starts. Raises: HeadraceError."""
        self._begun = True
        for source in self._prepared:
            source.begin()

    def watch(self, ended: threading.Event, finished: Callable[[], bool]) -> None:
        """End the sources when the run has ended, whoever waits for it."""
        if not self._prepared:
            return

        def wait() -> None:
            ended.wait()
            self.end(finished())

        self._watch = threading.Thread(target=wait, name=f"inputs-{self._job}", daemon=True)
        self._watch.start()

    def await_end(self) -> None:
        """Wait until the sources of a run that has ended are ended, too."""
        if self._watch is not None:
            self._watch.join()

    def end(self, finished: bool) -> None:
        """End the sources, if they have begun."""
        if not self._begun:
            return
        self._begun = False
        for source in self._prepared:
            source.end(finished)

    def _one(self, operator: OperatorPlan, holds_state: Callable[[str], bool]) -> OperatorPlan:
        if operator.prepare is None:
            return operator
        folder = staged_folder(self._job, operator.name)
        run = SourceRun(
            job=self._job,
            operator=operator.name,
            folder=f"{self._directory.rstrip('/')}/{folder}" if self._directory else "",
            restored=holds_state(operator.name),
            fresh=self._fresh,
        )
        prepared = operator.prepare(run)
        self._prepared.append(prepared)
        return replace(operator, source=prepared.reader, prepare=None)


def state_holder(metadata: CheckpointMetadata | None) -> Callable[[str], bool]:
    """Return a function that tells of which operators a checkpoint holds state."""
    subtasks = metadata.subtasks if metadata is not None else []
    holders = {handle.operator for subtask in subtasks for handle in subtask.states}
    return holders.__contains__
