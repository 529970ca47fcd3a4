"""The order of a key survives a live rescale under backpressure, over forward edges, too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.engine.inspection.contents import in_flight_on
from headrace.engine.inspection.directory import open_checkpoint
from headrace.recovery import assignment

ROWS = 12_000
KEYS = 24
WAIT_S = 120.0
#: So many records are in flight on the forward edge before the job is rescaled.
LOADED_ROWS = 300
FORWARD = "numbered->relayed/0"
NUMBERED = pa.schema([("key", pa.int64()), ("place", pa.int64())])
COMPARED = pa.schema([("key", pa.int64()), ("place", pa.int64()), ("before", pa.int64())])


class Numbered(hr.StatefulProcessor):
    """Says at which place of its key a record comes."""

    places = hr.value_state(pa.int64(), default=0)

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.places.value += 1
        yield {"key": row["key"], "place": self.places.value}


class Compared(hr.StatefulProcessor):
    """Says which place came before a record."""

    places = hr.value_state(pa.int64(), default=0)

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {**row, "before": self.places.value}
        self.places.value = row["place"]


def relayed(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.004)
    return batch


def job(folder: Path, parallelism: int) -> hr.Job:
    """Keyed, forward, keyed. The second reader of `numbered` keeps the relay a task of its own."""
    source = hr.read.sequence(ROWS, keys=KEYS, name="numbers")
    numbered = source.key_by("key").process(Numbered, schema=NUMBERED, name="numbered")
    compared = numbered.map_batches(relayed, name="relayed").key_by("key")
    written = compared.process(Compared, schema=COMPARED, name="compared")
    return hr.Job(
        "job",
        written.write.parquet(str(folder / "written"), name="out"),
        numbered.write.blackhole(name="beside"),
        parallelism=parallelism,
        max_parallelism=16,
        network=hr.Network(buffer="1KiB", window="4KiB"),
        checkpoints=hr.Checkpoints(str(folder / "checkpoints"), interval="50ms", mode="unaligned"),
    )


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not in time: {what}"
        time.sleep(0.002)


def rescaled_under_load(folder: Path, parallelism: list[int]) -> list[dict[str, Any]]:
    """Run from one parallelism to the next; rows of the sink."""

    def is_loaded() -> bool:
        handle.checkpoint()
        view = in_flight_on(open_checkpoint(str(folder / "checkpoints")), FORWARD)
        rows: int = sum(b.num_rows for piece in view.pieces for b in view.read(piece))
        return rows >= LOADED_ROWS

    first, *others = parallelism
    handle = job(folder, first).start("threads")
    try:
        for width in others:
            wait_until("a load", is_loaded)
            handle.rescale(width)
        handle.wait(WAIT_S)
    finally:
        handle.cancel()
    files = sorted((folder / "written").glob("part-*"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.mark.parametrize("parallelism", [[1, 4], [4, 1], [2, 3], [2, 3, 2]])
def test_a_second_keyed_operator_sees_each_key_in_order(
    tmp_path: Path, parallelism: list[int]
) -> None:
    rows = rescaled_under_load(tmp_path, parallelism)
    assert len(rows) == ROWS
    assert [row for row in rows if row["place"] != row["before"] + 1] == []


def test_the_order_would_be_lost_without_waves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assignment, "waves_of", lambda *_: {})
    rows = rescaled_under_load(tmp_path, [1, 4])
    assert len(rows) == ROWS
    assert any(row["place"] != row["before"] + 1 for row in rows)
