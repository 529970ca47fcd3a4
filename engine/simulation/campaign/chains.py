"""The operators of a simulated subtask: opened, restored and run as a subtask's thread would, in no time of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from headrace.recovery.metadata import SubtaskSnapshot

from ...contract.operators import Restored
from ...operators.chain import Chain
from ...storage.ahead import FilesAhead
from ...storage.snapshots import restored_states
from ...worker.subtask_events import (
    AdvanceWork,
    FinishWork,
    PollWork,
    PrecommitWork,
    ProcessWork,
    SubtaskId,
    Work,
    WorkDone,
)
from ...worker.worker_events import LoadAttempt
from .environment import Environment
from .storage import FaultyReads


def open_chain(env: Environment, id: SubtaskId, epoch: int) -> Chain:
    """The chain of a subtask, with the splitters of its output edges."""
    plan = env.plan
    task = plan.tasks[id.task]
    splitters = [
        plan.edges[e].partitioner.open(
            id.subtask,
            task.parallelism,
            plan.tasks[plan.edges[e].consumer].parallelism,
            seed=epoch * 1009 + e,
        )
        for e in task.outputs
    ]
    return Chain(
        task,
        job=plan.job,
        index=id.subtask,
        max_parallelism=plan.max_parallelism,
        epoch=epoch,
        splitters=splitters,
        buffer_bytes=env.settings.limits.buffer_bytes,
        backend=env.disk.backend(database=id.task in env.settings.databases),
    )


def states_of(
    env: Environment,
    id: SubtaskId,
    snapshot: SubtaskSnapshot | None,
    load: LoadAttempt,
    store: FaultyReads,
    ahead: FilesAhead | None = None,
) -> Mapping[str, Sequence[Restored]] | None:
    """What the subtask starts from, by operator; None: from nothing. `ahead`: files of the job's own that are here already."""
    if snapshot is None:
        return None
    return restored_states(
        store,  # type: ignore[arg-type]  # only `get` is asked for
        load.job,
        snapshot,
        max_parallelism=env.plan.max_parallelism,
        parallelism=env.plan.tasks[id.task].parallelism,
        foreign=bool(load.origin),
        ahead=None if load.origin else ahead,
    )


def run_work(chain: Chain, number: int, work: Work, duration_ns: int) -> WorkDone:
    """Run one piece of work that takes `duration_ns`."""
    match work:
        case ProcessWork(port, parts, _, now_ns):
            outputs = chain.process(parts, port, now_ns)
        case PollWork(rows_max, now_ns):
            outputs, status, wait_ns = chain.poll(rows_max, now_ns)
            rows, time = _rows(outputs), chain.time()
            return WorkDone(number, outputs, rows, duration_ns, status, wait_ns, time=time)
        case AdvanceWork(watermark_ns, rows_max, now_ns):
            outputs = chain.advance(watermark_ns, rows_max, now_ns)
        case FinishWork():
            outputs = chain.finish()
        case PrecommitWork(checkpoint):
            return WorkDone(number, transactions=tuple(chain.precommit(checkpoint)))
        case _:
            assert_never(work)
    return WorkDone(number, outputs, _rows(outputs), duration_ns, time=chain.time())


def _rows(outputs: Any) -> int:
    return sum(batch.num_rows for edge in outputs[:1] for _, batch, *_ in edge)
