"""A source hears of complete checkpoints, with its own states in them, in its own thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

import headrace as hr
from headrace.connectors import (
    OperatorContext,
    Polled,
    RestoredState,
    SourceStatus,
    StateKind,
    StateSnapshot,
)

WAIT_S = 20.0
SCHEMA = pa.schema([("x", pa.int64())])
#: (checkpoint, offset in it) of every call in this process.
HEARD: list[tuple[int, int]] = []
ENOUGH = threading.Event()


class Counter:
    """Counts on until it has heard of three checkpoints; its state is the next number."""

    def __init__(self) -> None:
        self._next = self._committed = 0
        self._polls = ""

    def open(self, context: OperatorContext) -> None:
        self._polls = threading.current_thread().name

    def restore(self, states: Sequence[RestoredState]) -> None:
        (state,) = states
        self._next = self._committed = state.table["next"].to_pylist()[0]

    def poll(self, rows_max: int) -> Polled:
        if ENOUGH.is_set():
            return Polled((), SourceStatus.END)
        batch = pa.record_batch({"x": [self._next]})
        self._next += 1
        return Polled([batch], SourceStatus.IDLE, 1_000_000)

    def commit(self) -> None:
        self._committed = self._next

    def snapshot(self) -> Sequence[StateSnapshot]:
        offset = self._committed
        return [StateSnapshot("next", StateKind.LIST, lambda: pa.table({"next": [offset]}))]

    def completed(self, checkpoint: int, states: Sequence[StateSnapshot]) -> None:
        assert threading.current_thread().name == self._polls
        (state,) = states
        HEARD.append((checkpoint, state.table()["next"].to_pylist()[0]))
        if len(HEARD) == 3:
            ENOUGH.set()

    def close(self) -> None:
        pass


class Numbers:
    """A source that hears of checkpoints."""

    schema = SCHEMA

    def reader(self) -> Counter:
        return Counter()


def test_a_source_hears_of_complete_checkpoints_and_its_states_in_them(tmp_path: Path) -> None:
    HEARD.clear()
    ENOUGH.clear()
    stream = hr.from_source(Numbers(), name="numbers")
    checkpoints = hr.Checkpoints(str(tmp_path / "c"), interval="20ms", retain=1000)
    job = hr.Job("job", stream.write.collect(name="out"), parallelism=1, checkpoints=checkpoints)
    result = job.start("threads").wait(WAIT_S)
    emitted = result.collected["out"]["x"].to_pylist()
    assert emitted == list(range(len(emitted)))
    checkpoint_numbers = [number for number, _ in HEARD]
    assert checkpoint_numbers == sorted(set(checkpoint_numbers)), "each once, in order"
    for number, offset in HEARD:
        assert (tmp_path / f"c/job/chk-{number}/metadata").exists()
        assert 0 <= offset <= len(emitted)
    assert [offset for _, offset in HEARD] == sorted(offset for _, offset in HEARD)
