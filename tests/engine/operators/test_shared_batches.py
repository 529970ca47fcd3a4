"""Batches through shared memory: equal, unchanged as long as they are kept, and not written to."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.operators.shared_batches import Gone, SharedBatches

Ends = tuple[SharedBatches, SharedBatches]


@pytest.fixture
def ends() -> Iterator[Ends]:
    one, other = (SharedBatches(end) for end in socket.socketpair())
    yield one, other
    one.close()
    other.close()


def batch_of(value: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": np.full(rows, value)})


def pass_on(ends: Ends, batch: pa.RecordBatch) -> pa.RecordBatch:
    ends[0].send_batch(b"B", batch)
    kind, received = ends[1].receive()
    assert kind == b"B"
    return received


def regions(ends: Ends) -> tuple[int, int]:
    return len(ends[0]._written), len(ends[1]._read)


def test_bytes_pass_both_ways(ends: Ends) -> None:
    ends[0].send(b"A", b"text")
    ends[1].send(b"B")
    assert ends[1].receive() == (b"A", b"text")
    assert ends[0].receive() == (b"B", b"")


def test_a_small_batch_takes_no_memory_of_its_own(ends: Ends) -> None:
    ends[0].send_batch(b"B", batch_of(1, 10))
    _, stream = ends[1].receive()
    assert pa.ipc.open_stream(stream).read_next_batch() == batch_of(1, 10)
    assert regions(ends) == (0, 0)


def test_a_batch_that_is_kept_is_not_overwritten(ends: Ends) -> None:
    kept = [pass_on(ends, batch_of(i, 100_000)) for i in range(3)]
    assert kept == [batch_of(i, 100_000) for i in range(3)]
    assert regions(ends) == (3, 3)


def test_the_memory_of_a_dropped_batch_is_taken_again_once_that_is_told(ends: Ends) -> None:
    for i in range(5):
        assert pass_on(ends, batch_of(i, 100_000)) == batch_of(i, 100_000)
        ends[1].send(b"A")
        ends[0].receive()
    assert regions(ends) == (1, 1)


def test_a_part_of_a_batch_keeps_its_memory(ends: Ends) -> None:
    part = pass_on(ends, batch_of(1, 100_000)).slice(7, 2)
    ends[1].send(b"A")
    ends[0].receive()
    pass_on(ends, batch_of(2, 100_000))
    assert part == batch_of(1, 2)


def test_a_batch_that_fits_nowhere_gets_more_memory(ends: Ends) -> None:
    for rows in (50_000, 500_000):
        assert pass_on(ends, batch_of(rows, rows)) == batch_of(rows, rows)
        ends[1].send(b"A")
        ends[0].receive()
    assert regions(ends) == (2, 2)


def test_the_receiver_cannot_write_to_the_memory(ends: Ends) -> None:
    numbers = pass_on(ends, batch_of(1, 100_000))["n"].to_numpy()
    assert not numbers.flags.writeable


def test_the_end_of_the_other_side_is_told(ends: Ends) -> None:
    ends[1].close()
    with pytest.raises(Gone):
        ends[0].receive()
    with pytest.raises(Gone):
        ends[0].send(b"A", b"text")
        ends[0].send(b"A", b"text")
