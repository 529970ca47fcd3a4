"""Spilled records keep their place: ranges of a run cut, join and load like buffers."""

from __future__ import annotations

import pyarrow as pa

from headrace.channels.buffer import Buffer
from headrace.channels.events import Watermark
from headrace.channels.spilled import Records, RunFile, Spilled, with_spilled
from headrace.channels.subpartition import QueuedEvent

FILE = RunFile(3, 6, 100, "0" * 16)
RUN = pa.table({"x": range(10, 16)})


def buffer(first: int, rows: int) -> Buffer:
    numbers = pa.array(range(first, first + rows), pa.int64())
    return Buffer(first, rows, rows * 8, (pa.record_batch({"x": numbers}),))


def test_halves_add_up_and_load_their_own_records() -> None:
    left, right = Spilled(11, 5, 41, FILE, 1).split(2)
    assert left.size_bytes + right.size_bytes == 41
    assert (left.end, right.first, right.end) == (13, 13, 16)
    loaded = [part["x"].to_pylist() for half in (left, right) for part in half.loaded(RUN).parts]
    assert loaded == [[11, 12], [13, 14, 15]]


def test_neighbours_in_a_run_are_one_and_others_are_not() -> None:
    items: list[Records] = [buffer(8, 2), buffer(10, 3), buffer(13, 3), buffer(16, 1)]
    assert with_spilled(items, FILE, 10, 16)[1] == Spilled(10, 6, 48, FILE, 0)
    assert Spilled(10, 2, 16, FILE, 0).followed_by(Spilled(12, 2, 16, FILE, 3)) is None
    assert (
        Spilled(10, 2, 16, FILE, 0).followed_by(Spilled(12, 2, 16, RunFile(4, 6, 1, ""), 2)) is None
    )


def test_an_event_between_the_records_keeps_its_place() -> None:
    event = QueuedEvent(13, Watermark(5))
    items = [buffer(10, 3), event, buffer(13, 3)]
    expected = [Spilled(10, 3, 24, FILE, 0), event, Spilled(13, 3, 24, FILE, 3)]
    assert with_spilled(items, FILE, 10, 16) == expected


def test_a_buffer_that_reaches_beyond_the_run_stays_in_memory() -> None:
    beyond = buffer(14, 4)
    items: list[Records] = [beyond]
    assert with_spilled(items, FILE, 10, 16) == [beyond]
