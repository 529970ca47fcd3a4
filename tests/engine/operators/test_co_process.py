"""Processors of two keyed streams: one state for both sides, with timers and expiry, on either
backend, at any parallelism.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.channels.events import MAX_WATERMARK
from headrace.engine.contract.errors import UserCodeError
from headrace.engine.contract.operators import EventTimeOperator
from headrace.engine.operators.co_process import CoInput, CoProcessOperator, CoProcessor
from headrace.engine.state.keyed import map_state, value_state

from .rocks_cases import context
from .window_cases import Subtasks

TIME = pa.timestamp("ns")
LEFT = CoInput(("k",), pa.schema([("k", pa.string()), ("t", TIME), ("id", pa.int64())]), "t")
#: Columns in another order, and another name for the key and the time.
RIGHT = CoInput(("who",), pa.schema([("id", pa.int64()), ("at", TIME), ("who", pa.string())]), "at")
OUT = pa.schema([("key", pa.string()), ("side", pa.string()), ("seen", pa.int64())])


class Seen(CoProcessor):
    """Tells each record how many of its key came before, of either side, not counting those
    whose keys were forgotten.
    """

    seen = value_state(pa.int64(), default=0, ttl=20e-9)
    sides = map_state(pa.string(), pa.int64())

    def _told(self, key: Any, side: str) -> Iterator[dict[str, Any]]:
        yield {"key": key, "side": side, "seen": self.seen.value}
        self.seen.value += 1
        self.sides[side] = self.sides.get(side, 0) + 1

    def process_left(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.timers.set(row["t"])
        return self._told(key, "left")

    def process_right(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        return self._told(key, "right")

    def on_timer(self, key: Any, time_ns: int) -> Iterator[dict[str, Any]]:
        yield {"key": key, "side": f"at {time_ns}", "seen": sum(self.sides.values())}


def make() -> CoProcessOperator:
    return CoProcessOperator(Seen, LEFT, RIGHT, 1, OUT, operator="seen")


def batch_of(side: int, rows: Sequence[tuple[str | None, int]]) -> pa.RecordBatch:
    named = [{"k": k, "who": k, "t": t, "at": t, "id": i} for i, (k, t) in enumerate(rows)]
    schema = (LEFT, RIGHT)[side].schema
    return pa.RecordBatch.from_pylist(named, schema=schema)


ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 60)), min_size=1, max_size=6
)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 1), ROWS, st.none() | st.integers(0, 40), st.none() | st.integers(1, 3)
    ),
    min_size=1,
    max_size=8,
)


def expected_of(steps: Any) -> list[tuple[str | None, str, int]]:
    """Look at one record after the other."""
    emitted: list[tuple[str | None, str, int]] = []
    seen: dict[Any, tuple[int, int]] = {}
    every: dict[Any, int] = {}
    timers: set[tuple[int, Any]] = set()
    watermark, newest = -1, 0

    def fire(until: int) -> None:
        for timer in sorted((t for t in timers if t[0] <= until), key=repr):
            timers.discard(timer)
            emitted.append((timer[1], f"at {timer[0]}", every[timer[1]]))

    for side, rows, delay, parallelism in steps:
        for key, time in rows:
            now = max(time, watermark)
            count, written = seen.get(key, (0, -100))
            if written + 20 <= now:
                count = 0
            emitted.append((key, ("left", "right")[side], count))
            seen[key] = (count + 1, max(written, now))
            every[key] = every.get(key, 0) + 1
            if side == 0:
                timers.add((time, key))
        newest = max([newest, *(time for _, time in rows)])
        if delay is not None:
            watermark = max(watermark, newest - delay)
        # After a restore, too, operators are told how far event time has come.
        if delay is not None or parallelism:
            fire(watermark)
    fire(MAX_WATERMARK)
    return emitted


def check(steps: Any, folder: Path | None, kinds: Sequence[str] = ("heap",)) -> None:
    subtasks = Subtasks(make, [LEFT.keys, RIGHT.keys], 1, folder)
    newest, watermark = 0, -1
    for at, (side, rows, delay, parallelism) in enumerate(steps):
        subtasks.process(batch_of(side, rows), side)
        newest = max([newest, *(time for _, time in rows)])
        if delay is not None:
            watermark = max(watermark, newest - delay)
            subtasks.advance(watermark)
        if parallelism:
            subtasks.rescale(parallelism, None if folder is None else kinds[at % len(kinds)])
    subtasks.advance(MAX_WATERMARK)
    subtasks.close()
    found = [(row["key"], row["side"], row["seen"]) for row in subtasks.emitted]
    assert sorted(map(repr, found)) == sorted(map(repr, expected_of(steps)))


@settings(max_examples=60)
@given(STEPS)
def test_both_sides_share_state_timers_and_expiry(steps: Any) -> None:
    check(steps, None)


@settings(max_examples=10)
@given(STEPS, st.sampled_from([["rocksdb"], ["heap", "rocksdb"]]))
def test_on_rocksdb_and_from_one_backend_to_the_other_too(steps: Any, kinds: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(steps, Path(folder), kinds)


def test_it_acts_on_event_time() -> None:
    assert isinstance(make(), EventTimeOperator)


class Half(CoProcessor):
    """Knows what to do with one side only."""

    def process_left(self, key: Any, row: dict[str, Any]) -> None:
        return None


def test_a_side_that_is_not_implemented_is_told(tmp_path: Path) -> None:
    operator = CoProcessOperator(Half, LEFT, RIGHT, 1, OUT, operator="half")
    operator.open(context(tmp_path, "heap"))
    assert list(operator.process(batch_of(0, [("a", 1)]), 0)) == []
    with pytest.raises(UserCodeError, match="implement process_right"):
        list(operator.process(batch_of(1, [("a", 1)]), 1))
