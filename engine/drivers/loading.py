"""First steps of a subtask's thread: make the chain, and read its restored state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headrace.recovery.layout import epoch_path
from headrace.recovery.metadata import SubtaskSnapshot
from headrace.recovery.store import NotFound, Store

from ..contract.errors import UserError
from ..contract.execution import ExecutionPlan, SubtaskId
from ..contract.operators import ChildProcess, OperatorContext, Restored, StateBackend
from ..operators.chain import Chain
from ..state.backend import KeyedBackend
from ..storage.ahead import FilesAhead
from ..storage.checkpoint_storage import open_store
from ..storage.snapshots import CorruptState, Origin, restored_states
from ..worker.worker_events import LoadAttempt

States = Mapping[str, Sequence[Restored]]


def open_database(
    stated: StateBackend, context: OperatorContext, *, folder: Callable[[], str]
) -> KeyedBackend:
    """Make an operator's backend over a database in the folder that `folder` names."""
    # Not at the top: jobs on the heap need not wait for rocksdict.
    from ..state.rocks.backend import open_backend

    return open_backend(stated, context, folder=folder)


def make_chain(
    plan: ExecutionPlan,
    id: SubtaskId,
    epoch: int,
    buffer_bytes: int,
    backend: StateBackend,
    *,
    owner: str = "",
    processes: Callable[[], ChildProcess] | None = None,
    tell_call: Callable[[int | None], None] = lambda operator: None,
) -> Chain:
    """Make the chain of one subtask, not opened, with the splitters of its output edges.

    `tell_call`: told of every call of an operator, by the operator's place; None: of its end.
    """
    task = plan.tasks[id.task]
    return Chain(
        task,
        job=plan.job,
        index=id.subtask,
        max_parallelism=plan.max_parallelism,
        epoch=epoch,
        backend=backend,
        processes=processes,
        tell_call=tell_call,
        splitters=[
            edge.partitioner.open(
                id.subtask,
                task.parallelism,
                plan.tasks[edge.consumer].parallelism,
                seed=epoch << 32 | edge.index << 16 | id.subtask,
            )
            for edge in (plan.edges[e] for e in task.outputs)
        ],
        buffer_bytes=buffer_bytes,
        owner=owner,
    )


def origin_of(load: LoadAttempt, own: Store | None) -> Origin | None:
    """Return the directory that the attempt is restored from. None: there is no checkpoint storage.

    Raises: UserError, StorageUnreachable.
    """
    if load.origin:
        return Origin(open_store(load.origin), load.job, ours=False)
    return None if own is None else Origin(own, load.job, ours=True)


def check_directory(own: Store | None, job: str, epoch: int, worker: int) -> None:
    """Check that the worker sees the directory in which the driver has claimed the attempt's epoch.

    Else its parts of checkpoints go where no other process finds them: into its own memory, or onto
    the disk of its machine.

    Raises: UserError, StoreError.
    """
    if own is None:
        return
    try:
        own.get(epoch_path(job, epoch), 0, 1)
    except NotFound as error:
        raise UserError(
            f"worker {worker} does not see the driver's checkpoint directory: {error.path}, which"
            " the driver has written, is not there; use a directory that all processes and machines"
            " of the job share"
        ) from error


def read_restored(
    plan: ExecutionPlan,
    id: SubtaskId,
    snapshot: SubtaskSnapshot | None,
    origin: Origin | None,
    ahead: FilesAhead | None = None,
    *,
    check: Callable[[], None] = lambda: None,
) -> States | None:
    """Read the state that the subtask starts from, by operator; None: it starts afresh.

    Args:
        ahead: files of the job's own that are here already.
        check: called first, may raise.

    Raises: CorruptState, StoreError.
    """
    check()
    if snapshot is None:
        return None
    if origin is None:
        raise CorruptState("there is no checkpoint storage to restore from")
    return restored_states(
        origin,
        snapshot,
        max_parallelism=plan.max_parallelism,
        parallelism=plan.tasks[id.task].parallelism,
        ahead=ahead if origin.ours else None,
    )
