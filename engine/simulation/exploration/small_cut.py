"""Is a complete checkpoint of a small scope a consistent cut?

Judged by the records themselves, without any position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from headrace.inflight.replay import merge_sides
from headrace.recovery.metadata import CheckpointMetadata

from ..sink import TransactionStatus
from ..watch import Violation
from .small_coordinator import System
from .small_scope import KEYED, SOURCE, SPAN, Contents, Rows


def check_cut(metadata: CheckpointMetadata, contents: Contents, system: System) -> int:
    """Check a cut, and return the number of records in flight. Raises Violation.

    Every record that a source has read is in flight to the keyed operator or in its state; every
    record in its state is in flight to the sink, or in a transaction that is committed or named.
    """
    read: list[Hashable] = []
    seen: list[Hashable] = []
    totals: list[Hashable] = []
    for snapshot in metadata.subtasks:
        state = contents.value(snapshot.states[0].offset)
        if snapshot.task == SOURCE:
            read += [snapshot.index * SPAN + sequence for sequence in range(state)]
        elif snapshot.task == KEYED:
            seen += state
            totals += [(snapshot.index, state)] if snapshot.finished else []
    named = {t.id for t in metadata.transactions}
    sunk = [
        id
        for name, (status, ids) in system.transactions.items()
        if name in named or status is TransactionStatus.COMMITTED
        for id in ids
    ]
    in_flight = 0
    for edge, before, after in ((0, read, seen), (1, [*seen, *totals], sunk)):
        between = _held(metadata, contents, edge)
        in_flight += len(between)
        if Counter(before) != Counter(between) + Counter(after):
            raise Violation(
                f"chk-{metadata.checkpoint} cuts edge {edge} wrongly: {before} before it,"
                f" {between} in flight, {after} behind it"
            )
    return in_flight


def _held(metadata: CheckpointMetadata, contents: Contents, edge: int) -> list[Hashable]:
    ids: list[Hashable] = []
    for handle in merge_sides([h for s in metadata.subtasks for h in s.inflight]):
        for buffer in handle.buffers if handle.edge == edge else ():
            rows: Rows = contents.value(buffer.offset)
            ids += rows.slice(buffer.start, buffer.rows).slice(buffer.skip).ids
    return ids
