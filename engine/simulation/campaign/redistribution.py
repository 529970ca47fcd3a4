"""Oracle of a rescale: the shares of a checkpoint that the new subtasks get.

Every in-flight record goes to exactly one new consumer, to the partitioner's choice if it has any;
of a broadcast each new consumer gets the unread records of one old consumer. A keyed row has one
new owner.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import pyarrow as pa

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.by_range import ByRange
from headrace.channels.partitioners.custom import Custom
from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.inflight.handle import BufferHandle
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot
from headrace.recovery.store import Store

from ...contract.execution import EdgePlan, ExecutionPlan
from ...storage.snapshots import passes_of, read_buffer, read_states
from ..coverage import Coverage
from ..watch import Violation

_BY_PARALLELISM = {Forward.name, Rebalance.name}
#: The values of a record.
_Row = tuple[object, ...]


def is_rescaled(metadata: CheckpointMetadata, plan: ExecutionPlan) -> bool:
    """Some task of the plan has another parallelism."""
    return [t.parallelism for t in metadata.tasks] != [t.parallelism for t in plan.tasks]


def is_repartitioned(metadata: CheckpointMetadata, plan: ExecutionPlan) -> bool:
    """Some edge of the plan has another partitioner."""
    return any(_is_repartitioned(metadata, edge) for edge in plan.edges)


def _is_repartitioned(metadata: CheckpointMetadata, edge: EdgePlan) -> bool:
    """A forward edge becomes a rebalance by the parallelism alone, and the other way."""
    partitioner, old = edge.partitioner, [e for e in metadata.edges if e.key == edge.key]
    now = (partitioner.name, partitioner.key_columns, partitioner.parameters)
    before = {(e.partitioning, tuple(e.columns), tuple(e.parameters)) for e in old}
    return not before <= {now} and {name for name, *_ in (*before, now)} != _BY_PARALLELISM


def check_redistribution(
    metadata: CheckpointMetadata,
    plan: ExecutionPlan,
    assigned: Sequence[SubtaskSnapshot],
    store: Store,
    coverage: Coverage,
) -> None:
    """Compare shares and checkpoint.

    Raises Violation. `assigned`: the start of each subtask of `plan`.
    """
    for edge in plan.edges:
        _check_edge(metadata, plan, edge, assigned, store, coverage)
    _check_keyed(metadata, plan, assigned, store)
    for buffer in (b for s in assigned for h in s.inflight for b in h.buffers if b.filters):
        coverage.count("records re-filtered", buffer.rows)
        coverage.count("filters stacked twice", len(buffer.filters) > 1)


def _check_edge(
    metadata: CheckpointMetadata,
    plan: ExecutionPlan,
    edge: EdgePlan,
    assigned: Sequence[SubtaskSnapshot],
    store: Store,
    coverage: Coverage,
) -> None:
    indexes = [i for i, e in enumerate(metadata.edges) if e.key == edge.key]
    old: dict[int, Counter[_Row]] = defaultdict(Counter)
    for snapshot in metadata.subtasks:
        for handle in snapshot.inflight:
            if handle.edge in indexes:
                owner = handle.consumer if handle.side == "output" else snapshot.index
                old[owner] += _rows(store, plan, edge, handle.buffers)
    new = {
        s.index: Counter(
            row
            for h in s.inflight
            if h.edge == edge.index
            for row in _rows(store, plan, edge, h.buffers).elements()
        )
        for s in assigned
        if s.task == edge.consumer
    }
    where = f"chk-{metadata.checkpoint}, edge {edge.key}"
    before = sum(old.values(), Counter[_Row]())
    other = _is_repartitioned(metadata, edge)
    coverage.count("records in flight given out by another partitioner", other * before.total())
    if isinstance(edge.partitioner, Broadcast):
        given = [before] if other else [*old.values(), Counter[_Row]()]
        for consumer, rows in new.items():
            if rows not in given:
                raise Violation(f"{where}: {consumer} gets the input of no one old consumer")
        return
    after = sum(new.values(), Counter[_Row]())
    if before != after:
        raise Violation(
            f"{where}: lost {sorted(before - after)[:5]}, doubled {sorted(after - before)[:5]}"
        )
    if isinstance(edge.partitioner, Hash | Custom | ByRange):
        _check_owners(where, edge, new)


def _rows(
    store: Store, plan: ExecutionPlan, edge: EdgePlan, buffers: Sequence[BufferHandle]
) -> Counter[_Row]:
    passes = passes_of(edge.partitioner)
    batches = [read_buffer(store, plan.job, buffer, passes) for buffer in buffers]
    return Counter(tuple(row.values()) for batch in batches for row in batch.to_pylist())


def _check_owners(where: str, edge: EdgePlan, new: dict[int, Counter[_Row]]) -> None:
    splitter = edge.partitioner.open(0, 1, len(new), 0)
    for consumer, rows in new.items():
        named = [dict(zip(edge.schema.names, row, strict=True)) for row in rows]
        batch = pa.RecordBatch.from_pylist(named, schema=edge.schema)
        strangers = [target for target, _ in splitter.split(batch) if target != consumer]
        if strangers:
            raise Violation(f"{where}: {consumer} gets records of {strangers}")


def _check_keyed(
    metadata: CheckpointMetadata,
    plan: ExecutionPlan,
    assigned: Sequence[SubtaskSnapshot],
    store: Store,
) -> None:
    """Check tasks without finished subtasks: finished state may have served its purpose."""
    finished = {s.task for s in metadata.subtasks if s.finished}
    names = {o for i, t in enumerate(metadata.tasks) if i not in finished for o in t.operators}
    before: Counter[tuple[str, str, _Row]] = Counter()
    for snapshot in metadata.subtasks:
        before += _keyed(store, plan, snapshot, 1, 0, names)
    after: Counter[tuple[str, str, _Row]] = Counter()
    for snapshot in assigned:
        parallelism = plan.tasks[snapshot.task].parallelism
        after += _keyed(store, plan, snapshot, parallelism, snapshot.index, names)
    if before != after:
        lost, doubled = list(before - after)[:3], list(after - before)[:3]
        raise Violation(f"chk-{metadata.checkpoint}, keyed state: lost {lost}, doubled {doubled}")


def _keyed(
    store: Store,
    plan: ExecutionPlan,
    snapshot: SubtaskSnapshot,
    parallelism: int,
    subtask: int,
    names: set[str],
) -> Counter[tuple[str, str, _Row]]:
    handles = [h for h in snapshot.states if h.kind == "keyed" and h.operator in names]
    states = read_states(
        store,
        plan.job,
        handles,
        max_parallelism=plan.max_parallelism,
        parallelism=parallelism,
        subtask=subtask,
    )
    return Counter(
        (operator, state.name, tuple(map(repr, row.values())))
        for operator, pieces in states.items()
        for state in pieces
        for row in state.table.to_pylist()
    )
