"""Jobs with loops end exactly: though workers die, drained, resumed and rescaled, and nested."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.engine.contract.options import Mode, Runner

from .conftest import WAIT_S, wait_for

ROWS = 3_000
ATTEMPTS_MAX = 4
ASKED = pa.schema([("order", pa.int64()), ("attempts", pa.int64()), ("price", pa.int64())])
PRICED = pc.field("price") > 0
GIVEN_UP = ~PRICED & (pc.field("attempts") >= ATTEMPTS_MAX)


def retries(folder: Path, rows: int | None = ROWS, mode: Mode = "aligned") -> hr.Job:
    """Calls that fail go round again, until they are given up; see examples/retries.py."""

    async def ask(row: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0.01)
        order, attempts = row["order"], row["attempts"] + 1
        fails = order % 20 == 0 or order % 3 >= attempts
        return {"order": order, "attempts": attempts, "price": 0 if fails else 1}

    def attempt(loop: hr.Stream) -> tuple[hr.Stream, hr.Stream]:
        asked = loop.key_by("order").map_async(ask, ASKED, capacity=64, name="ask")
        return asked.filter(~PRICED & ~GIVEN_UP, name="again"), asked.filter(
            PRICED | GIVEN_UP, name="ready"
        )

    numbers = hr.read.sequence(rows, keys=None, rate=1_000, name="orders")
    orders = numbers.select(order=pc.field("key"), attempts=pc.scalar(0), price=pc.scalar(0))
    ready = orders.iterate(attempt, name="attempts")
    return hr.Job(
        "retries",
        ready.write.parquet(str(folder / "out"), name="out"),
        parallelism=2,
        max_parallelism=16,
        checkpoints=hr.Checkpoints(str(folder / "checkpoints"), interval="0.1s", mode=mode),
    )


def written(folder: Path) -> Counter[tuple[int, int, int]]:
    rows = pq.read_table(folder / "out").to_pylist()
    return Counter((row["order"], row["attempts"], row["price"]) for row in rows)


def expected(orders: Any) -> Counter[tuple[int, int, int]]:
    return Counter(
        (order, ATTEMPTS_MAX, 0) if order % 20 == 0 else (order, order % 3 + 1, 1)
        for order in orders
    )


def _is_beyond(handle: hr.JobHandle, number: str, than: int) -> bool:
    return bool(getattr(handle.status(), number) > than)


@pytest.mark.parametrize("mode", ["aligned", "unaligned", "at_least_once"])
def test_loops_end_exactly_though_workers_die(tmp_path: Path, mode: Mode) -> None:
    handle = retries(tmp_path, mode=mode).start("processes", restart=hr.Restart(backoff="0.1s"))
    try:
        for kill in range(3):
            done = handle.status().completed
            wait_for(partial(_is_beyond, handle, "completed", done), "a checkpoint")
            os.kill(handle.status().workers[kill % 2], signal.SIGKILL)
            wait_for(partial(_is_beyond, handle, "restarts", kill), "the restart")
        assert handle.wait(WAIT_S).outcome == "finished"
    finally:
        handle.cancel()
    found = written(tmp_path)
    assert set(found) == set(expected(range(ROWS)))
    assert mode == "at_least_once" or set(found.values()) == {1}


def test_a_drained_loop_works_on_everything_that_was_read(tmp_path: Path) -> None:
    handle = retries(tmp_path, rows=None).start("threads")
    try:
        wait_for(lambda: handle.status().completed >= 3, "three checkpoints")
        handle.drain()
        assert handle.wait(WAIT_S).outcome == "finished"
    finally:
        handle.cancel()
    found = written(tmp_path)
    read = sorted(order for order, _, _ in found)
    assert found == expected(read)
    assert len(read) > 100
    assert len(set(range(max(read))) - set(read)) < 100, "one subtask may have read further"


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_a_loop_goes_on_from_a_savepoint_and_at_another_parallelism(
    tmp_path: Path, mode: str
) -> None:
    handle = retries(tmp_path).start("threads")
    try:
        wait_for(lambda: handle.status().completed >= 2, "two checkpoints")
        handle.stop_with_savepoint(mode=mode)
        assert handle.wait(WAIT_S).outcome == "stopped"
        assert set(written(tmp_path).values()) == {1}
        handle = retries(tmp_path).start("threads", restore="latest")
        wait_for(lambda: handle.status().completed >= 2, "two more")
        handle.rescale(3)
        assert handle.wait(WAIT_S).outcome == "finished"
    finally:
        handle.cancel()
    assert written(tmp_path) == expected(range(ROWS))


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_nested_loops_end_from_the_outside_in(runner: Runner) -> None:
    """Each record goes round the outer loop `key % 3` times, each time `key % 4` times inside."""
    outer_left, inner_left = pc.field("outer"), pc.field("inner")

    def inside(loop: hr.Stream) -> tuple[hr.Stream, hr.Stream]:
        step = loop.rebalance().select(
            key=pc.field("key"),
            outer=outer_left,
            inner=inner_left - 1,
            rounds=pc.field("rounds") + 1,
        )
        return step.filter(inner_left > 0), step.filter(inner_left <= 0)

    def around(loop: hr.Stream) -> tuple[hr.Stream, hr.Stream]:
        step = loop.iterate(inside, name="inner").select(
            key=pc.field("key"),
            outer=outer_left - 1,
            inner=pc.field("key") - pc.field("key") / 4 * 4,
            rounds=pc.field("rounds"),
        )
        return step.key_by("key").stream.filter(outer_left > 0), step.filter(outer_left <= 0)

    records = hr.read.sequence(ROWS, keys=None, name="numbers").select(
        key=pc.field("key"),
        outer=pc.field("key") - pc.field("key") / 3 * 3,
        inner=pc.field("key") - pc.field("key") / 4 * 4,
        rounds=pc.scalar(0),
    )
    out = records.iterate(around, name="outer").write.collect(name="out")
    result = hr.Job("nested", out, parallelism=2).run(runner)
    found = {row["key"]: row["rounds"] for row in result.collected["out"].to_pylist()}
    assert result.collected["out"].num_rows == ROWS
    assert found == {key: max(1, key % 3) * max(1, key % 4) for key in range(ROWS)}
