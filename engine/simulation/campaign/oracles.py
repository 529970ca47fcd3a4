"""Oracles: promises that hold through every fault, checked from outside the engine.

`watch.py` compares the records in channels with the content of checkpoints. Here:

`check_output` compares the visible output of the sinks with the reference: the exact count of every
record, the places of keyed lists without forks, and order per key where the edges promise order.
`check_credit` compares both ends of each channel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from headrace.channels.events import CheckpointMode
from headrace.recovery import catalog
from headrace.recovery.layout import store_path
from headrace.recovery.registry import references

from ...contract.execution import ExecutionPlan, SubtaskId
from ...coordinator.loop_end import cycle_tasks
from ...worker.subtask import Subtask
from ...worker.subtask_spec import Limits
from ..coverage import Coverage
from ..jobs.reference import Record, Reference
from ..jobs.source import ID_SPAN, ROW_BYTES
from ..jobs.windows import LATE_STEP
from ..sink import SinkSystem, TransactionStatus
from ..watch import Violation
from .faults import FaultProfile
from .storage import SimulatedStorage

# --- credit ---------------------------------------------------------------------------------------


def check_credit(
    subtasks: Mapping[SubtaskId, Subtask], plan: ExecutionPlan, window_bytes: int, cover: Coverage
) -> None:
    """Check both ends of each channel: no sends beyond the grant, no double grants, no losses.

    Received bytes are queued, handed out, or given back. An idle end has granted more than half its
    window: it holds back only less than is worth a frame.
    """
    for id, subtask in subtasks.items():
        for channel, subpartition in subtask._subpartitions.items():
            if subpartition.queued_bytes and subpartition.sent_bytes >= subpartition.limit_bytes:
                cover.count("channels blocked by backpressure")
            consumer = subtasks.get(SubtaskId(plan.edges[channel.edge].consumer, channel.consumer))
            if consumer is None:
                continue
            channel_end = consumer._gate.channels[channel]
            end, window = channel_end.credit, channel_end.credit.window
            if subpartition.limit_bytes > end.limit_bytes:
                raise Violation(f"{id} uses credit on {channel} that nobody granted")
            given = channel_end.given
            given_bytes = 0 if given is None else given.size_bytes
            if end.received_bytes != end.consumed_bytes + channel_end.queued_bytes + given_bytes:
                raise Violation(f"channel {channel}: credit for what came in is lost")
            idle = given is None and not channel_end.queue and end.limit_bytes > 0
            least_bytes = window.size_bytes - window.size_bytes // 2
            if idle and end.limit_bytes < end.returned_bytes + least_bytes:
                raise Violation(f"channel {channel} is idle, and its window is not granted")
            # While rows wait for a full batch, their channel gets more credit; a back-edge always.
            edge = plan.edges[channel.edge]
            waits = edge.feedback or plan.tasks[edge.consumer].batch is not None
            counted_bytes = end.received_bytes if waits else end.returned_bytes
            if end.limit_bytes > counted_bytes + window_bytes:
                raise Violation(f"channel {channel}: more was granted than consumed")
            if subpartition.sent_bytes < end.received_bytes:
                raise Violation(f"channel {channel}: more bytes were received than sent")


def check_budget(subtasks: Iterable[Subtask], budget_bytes: int) -> None:
    """Check that credit and room for output come to no more than the budget of a worker.

    Exempt are subtasks that ask for batches, whose rows may be more than the budget holds.
    """
    plain = [subtask for subtask in subtasks if subtask._batches is None]
    ends = [channel.credit for subtask in plain for channel in subtask._gate.channels.values()]
    granted = [end.limit_bytes - end.returned_bytes for end in ends if end.limit_bytes]
    rooms = [queue.room_bytes for subtask in plain for queue in subtask._subpartitions.values()]
    held_bytes = sum(granted) + sum(rooms)
    # A share is a byte at least.
    if held_bytes > max(budget_bytes, len(granted) + len(rooms)):
        raise Violation(f"a worker holds {held_bytes} bytes of {budget_bytes} for its channels")


def check_backlogs(
    subtasks: Mapping[SubtaskId, Subtask], plan: ExecutionPlan, limits: Limits, cover: Coverage
) -> None:
    """Check that what waits on the back-edges of a loop is bounded, whatever is to come in.

    The bound: the windows of the back-edges, up to which the head admits records, and all that the
    channels and subtasks of the loop may hold by then. Exempt are heads with several subtasks,
    since each admits by what waits at itself, and attempts that replay.
    """
    for head in sorted({edge.consumer for edge in plan.edges if edge.feedback}):
        cycle = cycle_tasks(plan, head)
        members = [subtask for id, subtask in subtasks.items() if id.task in cycle]
        if plan.tasks[head].parallelism > 1 or any(s._spec.replay for s in members):
            continue
        room_bytes = limits.window_bytes + limits.queue_bytes_max + ROW_BYTES
        queues = sum(len(subtask._gate.channels) for subtask in members)
        rules = [rule for task in cycle if (rule := plan.tasks[task].batch) is not None]
        piece_rows = limits.work_rows_max + max((rule.rows for rule in rules), default=0)
        bound_bytes = queues * room_bytes + 2 * len(members) * piece_rows * ROW_BYTES
        for id, subtask in subtasks.items():
            back = [c for c in subtask._gate.channels.values() if c.feedback and id.task == head]
            waiting_bytes = sum(channel.queued_bytes for channel in back)
            cover.count("records that wait on a back-edge", waiting_bytes // ROW_BYTES)
            if waiting_bytes > bound_bytes:
                raise Violation(
                    f"{id}: {waiting_bytes} bytes wait on back-edges, over {bound_bytes}"
                )


# --- storage --------------------------------------------------------------------------------------


def check_newest(storage: SimulatedStorage, job: str, cover: Coverage) -> None:
    """Check that every file of the newest complete checkpoint is there, whole; count others."""
    metadata, _ = catalog.newest_valid(storage, job)
    if metadata is None:
        return
    problems = catalog.verify(storage, job, metadata.checkpoint)
    if problems:
        raise Violation(f"chk-{metadata.checkpoint} is complete, but {problems[0]}")
    referred = {store_path(job, path) for path in references(metadata)}
    segments = {path for path in storage.objects if ".segment" in path}
    cover.count(
        "files at the end that the newest checkpoint does not name", len(segments - referred)
    )


def check_retained(storage: SimulatedStorage, job: str, retain: int, profile: FaultProfile) -> None:
    """Check at the end that no more complete checkpoints are left than are to be retained.

    The law holds for any number of drivers. More may be left where storage may refuse deletions,
    metadata may be torn, or a replaced driver may write late.
    """
    if not deletes_for_certain(profile):
        return
    complete = catalog.complete_checkpoints(storage, job, savepoints=False)
    if len(complete) > retain:
        raise Violation(f"retained are to be {retain} checkpoints, left are {complete}")


def deletes_for_certain(profile: FaultProfile) -> bool:
    """Return whether every deletion must succeed by the end: storage neither refuses nor tears, and
    no process wakes up late.
    """
    return not (
        profile.storage_rejects
        or profile.deletions_refused
        or profile.storage_uncertain
        or profile.torn_writes
        or profile.pauses
        or profile.freezes
    )


# --- output ---------------------------------------------------------------------------------------


def check_output(
    reference: Reference,
    system: SinkSystem,
    mode: CheckpointMode,
    *,
    splits: int,
    rescaled: bool = False,
    spread: Collection[int] = frozenset(),
) -> None:
    """Check the visible output at the end of the job.

    `splits`: of each source; `rescaled`: the job's parallelism has changed on the way; `spread`:
    paths that have lost their order then (`spread_paths`).
    """
    copied = reference.copied if rescaled else set()
    ordered = reference.ordered - (reference.changed.union(spread) if rescaled else set())
    exact = mode is not CheckpointMode.AT_LEAST_ONCE
    for sink, expected in reference.sinks.items():
        rows = system.rows(sink)
        _check_pooled(sink, expected, rows, reference.pooled)
        expected = Counter({r: n for r, n in expected.items() if r.path not in reference.pooled})
        actual = Counter(Record(*row[:4]) for _, row in rows if row[2] not in reference.pooled)
        expected, actual = _once(expected, copied), _once(actual, copied)
        missing, extra = expected - actual, actual - expected
        if missing or (exact and extra):
            raise Violation(f"{sink}: missing {_some(missing)}, extra {_some(extra)}")
        if exact:
            _check_order(sink, rows, ordered, splits)
    if exact:
        _check_places(reference, system)
    stuck = [id for id, t in system.transactions.items() if _is_stuck(t.status)]
    if stuck:
        raise Violation(f"transactions are still open at the end: {stuck[:5]}")


def check_failed(expected: int, failed: Mapping[int, int]) -> None:
    """Check how many failed records the committed work of the last epoch has counted.

    The job never went on from a checkpoint, nor at another parallelism; one that starts at its end
    does no work.
    """
    if failed and failed[max(failed)] != expected:
        counted = failed[max(failed)]
        raise Violation(f"{expected} records failed, and {counted} were counted")


def _check_pooled(
    sink: str,
    expected: Counter[Record],
    rows: Iterable[tuple[int, tuple[int, ...]]],
    pooled: Collection[int],
) -> None:
    """Of each key, all records are told, together or by themselves, and each window once."""
    wanted, found, told = Counter[_Pool](), Counter[_Pool](), Counter[_Pool]()
    for record, times in expected.items():
        if record.path in pooled:
            wanted[record.path, record.key, 0] += times
            wanted[record.path, record.key, 1] += record.id * times
    for _, (id, key, path, _, nth, _) in rows:
        if path in pooled:
            total, window = divmod(id, LATE_STEP)
            found[path, key, 0] += nth
            found[path, key, 1] += total
            told[path, key, window] += window > 0
    if found != wanted:
        raise Violation(f"{sink}: missing in all {wanted - found}, extra {found - wanted}")
    if told and max(told.values()) > 1:
        raise Violation(f"{sink}: told twice are the windows {told - Counter(set(told))}")


#: (path, key, which).
_Pool = tuple[int, int, int]


def _is_stuck(status: TransactionStatus) -> bool:
    return status in (TransactionStatus.OPEN, TransactionStatus.PREPARED)


def _some(records: Counter[Record]) -> str:
    shown = ", ".join(f"{tuple(r)}x{n}" for r, n in sorted(records.items())[:5])
    return f"{sum(records.values())} ({shown})"


def _check_places(reference: Reference, system: SinkSystem) -> None:
    """Refuse two records at a place of a list, and a record beyond its end."""
    holders: dict[tuple[int, int, int], int] = {}
    for sink in reference.sinks:
        for _, (id, key, _, by, nth, _) in system.rows(sink):
            if not by:
                continue
            if not 1 <= nth <= reference.places[by, key]:
                raise Violation(f"{sink}: record {id} is at place {nth} of key {key}")
            if holders.setdefault((by, key, nth), id) != id:
                other = holders[by, key, nth]
                raise Violation(f"{sink}: {id} and {other} share place {nth} of key {key}")


def _once(records: Counter[Record], paths: Collection[int]) -> Counter[Record]:
    """Records of these paths counted once: how many copies there are is left open."""
    return Counter({r: 1 if r.path in paths else times for r, times in records.items()})


def _check_order(
    sink: str,
    rows: Iterable[tuple[int, tuple[int, ...]]],
    ordered: Collection[int],
    splits: int,
) -> None:
    """Check the order of visible records of a source split and key, on paths that keep order."""
    last: dict[tuple[int, int, int, int], int] = {}
    for _, (id, key, path, *_) in rows:
        if path not in ordered:
            continue
        where = (id // ID_SPAN, id % ID_SPAN % splits, key, path)
        if last.get(where, -1) >= id:
            raise Violation(f"{sink}: record {id} of key {key} comes after {last[where]}")
        last[where] = id
