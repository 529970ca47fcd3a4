"""The records of a source are shared out once, whatever the parallelism, and a restored reader
goes on where it was.
"""

from __future__ import annotations

import random

import pytest

from headrace.engine.contract.operators import OperatorContext, RestoredState, SourceStatus
from headrace.engine.simulation.jobs.source import RecordsReader, records_of


def reader(index: int, parallelism: int) -> RecordsReader:
    made = RecordsReader(2, 30, 3, 4, random.Random(index))
    made.open(OperatorContext("job", "source", index, parallelism, 16, 1))
    return made


def rest_of(read: RecordsReader) -> list[int]:
    ids: list[int] = []
    while (polled := read.poll(4)).status is not SourceStatus.END:
        ids += [id for batch in polled.batches for id in batch.column(0).to_pylist()]
        read.commit()
    return ids


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_all_subtasks_together_read_every_record_once(parallelism: int) -> None:
    shares = [rest_of(reader(index, parallelism)) for index in range(parallelism)]
    assert sorted(id for share in shares for id in share) == list(records_of(2, 30))


def test_a_restored_reader_reads_what_was_not_committed() -> None:
    before = reader(1, 2)
    while not before.poll(4).batches:
        pass
    before.commit()
    (state,) = before.snapshot()
    left = rest_of(before)
    after = reader(1, 2)
    after.restore([RestoredState(state.name, state.kind, state.table())])
    assert sorted(rest_of(after)) == sorted(left)
    assert len(left) < 15


def test_splits_move_with_their_places_to_another_parallelism() -> None:
    readers = [reader(index, 2) for index in range(2)]
    read = [id for some in readers for batch in some.poll(8).batches for id in batch[0].to_pylist()]
    for some in readers:
        some.commit()
    states = [state for some in readers for state in some.snapshot()]
    restored = [RestoredState(state.name, state.kind, state.table()) for state in states]
    after = [reader(index, 3) for index in range(3)]
    for some in after:
        some.restore(restored)
    assert sorted([*read, *(id for some in after for id in rest_of(some))]) == list(
        records_of(2, 30)
    )
