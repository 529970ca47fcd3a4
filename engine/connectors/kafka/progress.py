"""Partitions, the subtasks that read them, and the offsets: the state of the Kafka source.

One rule deals partitions at every parallelism and on every restart. *Known* partitions, planned in
the driver or in the checkpoint, are sorted and dealt out round robin; a partition that appears
later belongs to the subtask that a hash of its name picks. Every subtask's offsets together are the
state, and each subtask gets all of them back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ...contract.operators import StateKind, StateSnapshot
from ..splits import owner_of_new
from .cluster import Partition
from .offsets import EARLIEST

_STATE = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("topic_id", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a partition has been read.

    Attributes:
        offset: of the next record; EARLIEST: the oldest that is there.
        topic_id: of the topic whose offset this is; empty: not known.
    """

    partition: Partition
    offset: int
    topic_id: str


def known_progress(
    planned: Iterable[Progress], restored: Sequence[Progress] | None
) -> list[Progress]:
    """Join plan and checkpoint, sorted.

    A planned partition that the checkpoint does not mention is new if the checkpoint mentions its
    topic, and is read from its beginning then, wherever the plan would start.

    Args:
        restored: of all subtasks; None: the run starts without a checkpoint.
    """
    known = {each.partition: each for each in planned}
    if restored is not None:
        topics = {each.partition.topic for each in restored}
        for partition, each in known.items():
            if partition.topic in topics:
                known[partition] = Progress(partition, EARLIEST, each.topic_id)
        known |= {each.partition: each for each in restored}
    return sorted(known.values(), key=lambda each: each.partition)


def deal(known: Sequence[Progress], *, parallelism: int, index: int) -> list[Progress]:
    """Return the part of `known`, sorted, that subtask `index` reads and remembers."""
    return list(known[index::parallelism])


def owns_new(partition: Partition, *, parallelism: int, index: int) -> bool:
    """Whether subtask `index` reads a partition that appeared after the start."""
    return owner_of_new(str(partition), parallelism) == index


class Ledger:
    """Progress of one subtask's partitions: `note` in the subtask's thread, the rest as `Stateful`
    says.
    """

    def __init__(self) -> None:
        self._committed: dict[Partition, Progress] = {}
        #: Noted since the last commit.
        self._pending: dict[Partition, Progress] = {}

    def reset(self, own: Iterable[Progress]) -> None:
        """Start from `own`, which counts as committed."""
        self._committed = {each.partition: each for each in own}
        self._pending = {}

    def note(self, progress: Progress) -> None:
        """Remember progress until the next commit."""
        self._pending[progress.partition] = progress

    def commit(self) -> None:
        """Publish the noted progress."""
        self._committed |= self._pending
        self._pending.clear()

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the published progress."""
        frozen = tuple(self._committed.values())
        return (StateSnapshot("offsets", StateKind.UNION, lambda: progress_table(frozen)),)


def progress_table(rows: Sequence[Progress]) -> pa.Table:
    """Encode progress as state."""
    columns = {
        "topic": [row.partition.topic for row in rows],
        "partition": [row.partition.index for row in rows],
        "offset": [row.offset for row in rows],
        "topic_id": [row.topic_id for row in rows],
    }
    return pa.table(columns, schema=_STATE)


def progress_rows(table: pa.Table) -> list[Progress]:
    """Decode a table of `progress_table`."""
    return [
        Progress(Partition(row["topic"], row["partition"]), row["offset"], row["topic_id"])
        for row in table.to_pylist()
    ]


def offsets_of(states: Iterable[StateSnapshot]) -> Mapping[Partition, int]:
    """Return the offsets in snapshots of a ledger, without those that are not known yet."""
    rows = [row for state in states for row in progress_rows(state.table())]
    return {row.partition: row.offset for row in rows if row.offset >= 0}
