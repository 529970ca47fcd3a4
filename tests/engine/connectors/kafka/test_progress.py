"""Partitions are dealt out so that each has one owner, at every parallelism."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.connectors.kafka.cluster import Partition
from headrace.engine.connectors.kafka.offsets import EARLIEST
from headrace.engine.connectors.kafka.progress import (
    Ledger,
    Progress,
    deal,
    known_progress,
    offsets_of,
    owns_new,
    progress_rows,
    progress_table,
)


def at(index: int, offset: int = 0, topic: str = "t") -> Progress:
    return Progress(Partition(topic, index), offset, "id")


@given(count=st.integers(0, 20), parallelism=st.integers(1, 7))
def test_each_partition_has_one_reader(count: int, parallelism: int) -> None:
    known = [at(index) for index in range(count)]
    dealt = [deal(known, parallelism=parallelism, index=i) for i in range(parallelism)]
    assert sorted((each for own in dealt for each in own), key=lambda p: p.partition) == known
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    for progress in known:
        owners = [
            index
            for index in range(parallelism)
            if owns_new(progress.partition, parallelism=parallelism, index=index)
        ]
        assert len(owners) == 1


def test_the_checkpoint_counts_and_new_partitions_of_its_topics_begin_at_the_beginning() -> None:
    planned = [at(0, 7), at(1, 7), at(0, 7, "u")]
    assert known_progress(planned, None) == planned
    restored = [at(0, 3), at(9, 4)]
    assert known_progress(planned, restored) == [at(0, 3), at(1, EARLIEST), at(9, 4), at(0, 7, "u")]


def test_progress_is_state_when_it_is_committed() -> None:
    ledger = Ledger()
    ledger.reset([at(0), at(1)])
    ledger.note(at(1, 5))
    ledger.note(at(2, EARLIEST))
    before = ledger.snapshot()
    ledger.commit()
    (after,) = ledger.snapshot()
    assert progress_rows(before[0].table()) == [at(0), at(1)]
    assert progress_rows(after.table()) == [at(0), at(1, 5), at(2, EARLIEST)]
    assert offsets_of([after]) == {Partition("t", 0): 0, Partition("t", 1): 5}
    assert progress_rows(progress_table([])) == []
