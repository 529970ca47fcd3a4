"""Workers that start before their coordinator begins, while the job to be rescaled still runs.

Early workers register, and fetch state that they will restore. All events are kept, in order, for
the coordinator, which also handles lost workers. Only a worker that ends before it registers is
started again here.

Pure: a driver waits and sends, in threads as in virtual time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.recovery.metadata import SharedFile, SubtaskSnapshot

from ..contract import messages as m
from ..contract.launcher import slots_of_worker
from ..coordinator import coordinator_events as d

#: So many workers may end before they register, and are started again.
_STILLBORN_MAX = 3


@dataclass(frozen=True, slots=True)
class StateFetched:
    """A worker has fetched state ahead, so many bytes."""

    connection: int
    fetched_bytes: int


def files_by_worker(
    subtasks: Sequence[SubtaskSnapshot], *, workers: int, slots: int
) -> dict[int, list[SharedFile]]:
    """Files of databases that each worker will restore, each once."""
    found = {}
    for worker in range(workers):
        held = slots_of_worker(worker, workers=workers, slots=slots)
        databases = [
            db for subtask in subtasks if subtask.index in held for db in subtask.databases
        ]
        files = {file.path: file for database in databases for file in database.shared}
        found[worker] = list(files.values())
    return found


class EarlyWorkers:
    """The workers of a coordinator that has yet to begin.

    Attributes:
        events: kept for the coordinator, oldest first.
        failure: why the workers will not come; empty: they may.
        fetched_bytes: of state that workers have fetched.
        fetching: connections of workers that have yet to answer.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.events: list[d.CoordinatorEvent] = []
        self.failure = ""
        self.fetched_bytes = 0
        self.fetching: set[int] = set()
        self._ended = 0
        #: {worker: its newest connection}
        self._connections: dict[int, int] = {}

    @property
    def missing(self) -> list[int]:
        """Workers that have yet to register."""
        return sorted(set(range(self._workers)) - self._connections.keys())

    def take(self, event: d.CoordinatorEvent | StateFetched) -> list[d.CoordinatorEffect]:
        """Take an event that the coordinator cannot take yet."""
        match event:
            case StateFetched(connection, fetched_bytes):
                if connection in self.fetching:
                    self.fetching.discard(connection)
                    self.fetched_bytes += fetched_bytes
                return []
            case d.WorkerExited(worker, _, reason) if worker not in self._connections:
                return self._stillborn(worker, reason)
            case d.MessageReceived(connection, m.Register() as register):
                self._connections[register.worker] = connection
            case d.ConnectionLost(connection):
                self.fetching.discard(connection)
            case d.LauncherFailed(reason):
                self.failure = reason
        self.events.append(event)
        return []

    def fetch(self, files: Mapping[int, Sequence[SharedFile]]) -> list[tuple[int, m.FetchAhead]]:
        """Ask workers for files, by worker. Returns the orders to send: (connection, message)."""
        orders = [
            (self._connections[worker], m.FetchAhead(list(wanted)))
            for worker, wanted in files.items()
            if wanted
        ]
        self.fetching.update(connection for connection, _ in orders)
        return orders

    def _stillborn(self, worker: int, reason: str) -> list[d.CoordinatorEffect]:
        self._ended += 1
        if self._ended > _STILLBORN_MAX:
            self.failure = f"worker {worker} ended before it registered: {reason}"
            return []
        return [d.ReplaceWorker(worker)]
