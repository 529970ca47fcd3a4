"""Sources that the driver prepares as a run starts: staging of DataFrames, planning of partitions.

A run that goes on from a checkpoint with the source's state prepares nothing anew: the state names
everything that is left to read.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from headrace.recovery import catalog
from headrace.recovery.layout import staged_folder
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.store import NotFound, Store

from ..contract.connectors import PreparedSource, SourceRun
from ..contract.execution import ExecutionPlan, OperatorPlan
from ..contract.operators import RestoredState
from ..storage.checkpoint_storage import open_store
from ..storage.snapshots import CorruptState, states_of

_log = logging.getLogger(__name__)

#: How often sources hear which states are kept.
LOOK_EVERY_S = 2.0


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
        #: {operator: its source}.
        self._prepared: dict[str, PreparedSource] = {}
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
        for source in self._prepared.values():
            source.begin()

    def watch(self, ended: threading.Event, finished: Callable[[], bool]) -> None:
        """End the sources when the run has ended, whoever waits for it."""
        if not self._prepared:
            return

        def wait() -> None:
            kept = self._kept_states()
            while not ended.wait(LOOK_EVERY_S if kept else None):
                for states in kept:
                    states.tell()
            self.end(finished())

        self._watch = threading.Thread(target=wait, name=f"inputs-{self._job}", daemon=True)
        self._watch.start()

    def _kept_states(self) -> list[KeptStates]:
        """Sources that want to hear what is kept."""
        wanted = {n: s.kept for n, s in self._prepared.items() if s.kept is not None}
        if not wanted or not self._directory:
            return []
        store = open_store(self._directory)
        return [KeptStates(store, self._job, name, kept) for name, kept in wanted.items()]

    def await_end(self) -> None:
        """Wait until the sources of a run that has ended are ended, too."""
        if self._watch is not None:
            self._watch.join()

    def end(self, finished: bool) -> None:
        """End the sources, if they have begun."""
        if not self._begun:
            return
        self._begun = False
        for source in self._prepared.values():
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
        self._prepared[operator.name] = prepared
        return replace(operator, source=prepared.reader, prepare=None)


class KeptStates:
    """The states of one source in all complete checkpoints and savepoints, each read once."""

    def __init__(
        self,
        store: Store,
        job: str,
        operator: str,
        hear: Callable[[Sequence[Sequence[RestoredState]]], None],
    ) -> None:
        self._store = store
        self._job = job
        self._operator = operator
        self._hear = hear
        #: {checkpoint: states}.
        self._known: dict[int, list[RestoredState]] = {}

    def tell(self) -> None:
        """Tell the source what is kept now; what fails is tried again at the next look."""
        try:
            self._hear(self._states())
        except Exception as error:
            _log.warning("what source %r may let go is not known: %s", self._operator, error)

    def _states(self) -> list[list[RestoredState]]:
        numbers = catalog.complete_checkpoints(self._store, self._job)
        known = {number: self._known[number] for number in numbers if number in self._known}
        for number in numbers:
            if number not in known:
                try:
                    metadata = catalog.load(self._store, self._job, number)
                    known[number] = states_of(self._store, metadata, self._operator)
                except (NotFound, CorruptState):
                    if number in catalog.complete_checkpoints(self._store, self._job):
                        raise
                    continue  # deleted meanwhile
        self._known = known
        return list(known.values())


def state_holder(metadata: CheckpointMetadata | None) -> Callable[[str], bool]:
    """Return a function that tells of which operators a checkpoint holds state."""
    subtasks = metadata.subtasks if metadata is not None else []
    holders = {handle.operator for subtask in subtasks for handle in subtask.states}
    return holders.__contains__
