"""Buffers: cutting one loses neither records nor bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.buffer import Buffer, ChannelId


def batch(start: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(range(start, start + rows), pa.int64())})


def records(buffer: Buffer) -> list[int]:
    return [x for part in buffer.parts for x in part["x"].to_pylist()]


def buffer_of(first: int, sizes: list[int], size_bytes: int) -> Buffer:
    """A buffer of parts of the given rows; the records are their own positions."""
    parts, start = [], first
    for rows in sizes:
        parts.append(batch(start, rows))
        start += rows
    return Buffer(first, sum(sizes), size_bytes, tuple(parts))


@given(
    first=st.integers(0, 1000),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    size_bytes=st.integers(1, 1000),
    data=st.data(),
)
def test_the_halves_of_a_cut_make_up_the_whole(
    first: int, sizes: list[int], size_bytes: int, data: st.DataObject
) -> None:
    whole = buffer_of(first, [*sizes, 1], size_bytes)
    rows = data.draw(st.integers(1, whole.rows - 1))
    left, right = whole.split(rows)
    assert (left.first, left.rows, left.end) == (first, rows, right.first)
    assert right.end == whole.end
    assert left.size_bytes + right.size_bytes == size_bytes
    assert records(left) == list(range(first, first + rows))
    assert records(left) + records(right) == records(whole)
    assert all(part.num_rows > 0 for half in (left, right) for part in half.parts)


@pytest.mark.parametrize("rows", [-1, 0, 3, 4])
def test_a_cut_leaves_something_on_both_sides(rows: int) -> None:
    with pytest.raises(AssertionError, match=f"cannot cut 3 rows at {rows}"):
        buffer_of(0, [3], 24).split(rows)


def test_channels_sort_by_edge_then_producer_then_consumer() -> None:
    channels = [ChannelId(1, 0, 0), ChannelId(0, 1, 0), ChannelId(0, 0, 2), ChannelId(0, 0, 1)]
    assert [str(c) for c in sorted(channels)] == ["e0:0>1", "e0:0>2", "e0:1>0", "e1:0>0"]
