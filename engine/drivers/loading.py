"""What the thread of a subtask does first: make the chain and read the state that it starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.recovery.metadata import SubtaskSnapshot
from headrace.recovery.store import Store

from ..contract.execution import ExecutionPlan
from ..contract.operators import Restored, StateBackend
from ..operators.chain import Chain
from ..storage.ahead import FilesAhead
from ..storage.checkpoint_storage import open_store
from ..storage.snapshots import CorruptState, restored_states
from ..worker.subtask_events import SubtaskId
from ..worker.worker_events import LoadAttempt

States = Mapping[str, Sequence[Restored]]


def chain_maker(
    plan: ExecutionPlan, id: SubtaskId, epoch: int, buffer_bytes: int, backend: StateBackend
) -> Callable[[], Chain]:
    """Make the chain of one subtask, not opened, with the splitters of its output edges."""
    task = plan.tasks[id.task]

    def make() -> Chain:
        edges = [plan.edges[e] for e in task.outputs]
        return Chain(
            task,
            job=plan.job,
            index=id.subtask,
            max_parallelism=plan.max_parallelism,
            epoch=epoch,
            backend=backend,
            splitters=[
                edge.partitioner.open(
                    id.subtask,
                    task.parallelism,
                    plan.tasks[edge.consumer].parallelism,
                    seed=epoch << 32 | edge.index << 16 | id.subtask,
                )
                for edge in edges
            ],
            buffer_bytes=buffer_bytes,
        )

    return make


def state_reader(
    plan: ExecutionPlan,
    id: SubtaskId,
    snapshot: SubtaskSnapshot | None,
    load: LoadAttempt,
    store: Store | None,
    ahead: FilesAhead | None = None,
) -> Callable[[], States | None]:
    """Read what the subtask is restored from, by operator; None: from nothing. `ahead`: files of the job's own that are here already.

    The reader raises CorruptState, StoreError.
    """

    def read() -> States | None:
        if snapshot is None:
            return None
        source = open_store(load.origin) if load.origin else store
        if source is None:
            raise CorruptState("there is no checkpoint storage to restore from")
        return restored_states(
            source,
            load.job,
            snapshot,
            max_parallelism=plan.max_parallelism,
            parallelism=plan.tasks[id.task].parallelism,
            foreign=bool(load.origin),
            ahead=None if load.origin else ahead,
        )

    return read
