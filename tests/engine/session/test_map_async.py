"""Jobs that call a service for each record: many calls at a time, each record once."""

from __future__ import annotations

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr

ROWS = 600
ASKED = pa.schema([("sequence", pa.int64()), ("key_given", pa.string())])
WAIT_S = 120.0


def asked(function: Any, folder: Path, **options: Any) -> hr.Job:
    source = hr.read.sequence(ROWS, keys=7, name="numbers")
    out = source.map_async(function, ASKED, name="ask", **options).write.collect(name="out")
    checkpoints = hr.Checkpoints(str(folder), interval="50ms", mode="unaligned")
    return hr.Job("asks", out, parallelism=2, max_parallelism=8, checkpoints=checkpoints)


class Service:
    """Answers after a while; refuses a caller once in so often, and notes each call's key."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.calls = 0
        self.keys: dict[int, set[str]] = {}
        self.lock = threading.Lock()

    def ask(self, row: dict[str, Any], key: str) -> dict[str, Any]:
        with self.lock:
            self.calls += 1
            self.keys.setdefault(row["sequence"], set()).add(key)
            if self.refusals and self.calls % 150 == 0:
                self.refusals -= 1
                raise ConnectionError("refused")
        return {"sequence": row["sequence"], "key_given": key}


#: Jobs in threads share this process; what is shipped by value would be a copy.
SERVICE = Service()


async def ask(row: dict[str, Any], idempotency_key: str) -> dict[str, Any]:
    await asyncio.sleep(random.random() / 100)
    return SERVICE.ask(row, idempotency_key)


def ask_plainly(row: dict[str, Any], idempotency_key: str) -> dict[str, Any]:
    return SERVICE.ask(row, idempotency_key)


#: Calls for the later records wait for it.
OPEN = threading.Event()


def answer_later(row: dict[str, Any]) -> dict[str, Any]:
    if row["sequence"] >= ROWS // 2:
        OPEN.wait(WAIT_S)
    return {"sequence": row["sequence"], "key_given": ""}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    fresh = Service()
    monkeypatch.setitem(globals(), "SERVICE", fresh)
    return fresh


@pytest.mark.parametrize("function", [ask, ask_plainly])
@pytest.mark.parametrize("ordered", [False, True])
def test_every_record_is_asked_for_and_counts_once(
    tmp_path: Path, service: Service, function: Any, ordered: bool
) -> None:
    found = asked(function, tmp_path, ordered=ordered).run("threads").collected["out"]
    assert sorted(found["sequence"].to_pylist()) == list(range(ROWS))
    assert service.calls == ROWS


def test_a_failed_call_fails_the_job_which_asks_again(tmp_path: Path, service: Service) -> None:
    service.refusals = 2
    result = asked(ask, tmp_path).run("threads")
    # Both refusals may come to one attempt.
    assert 1 <= result.restarts <= 2
    found = result.collected["out"]
    assert sorted(found["sequence"].to_pylist()) == list(range(ROWS))
    # A repeated call can be recognised, and no two records are taken for each other.
    assert all(len(keys) == 1 for keys in service.keys.values())
    assert len({key for (key,) in service.keys.values()}) == ROWS


def test_retries_spare_the_job(tmp_path: Path, service: Service) -> None:
    service.refusals = 2
    result = asked(ask, tmp_path, retries=3, backoff="1ms").run("threads")
    assert result.restarts == 0
    assert sorted(result.collected["out"]["sequence"].to_pylist()) == list(range(ROWS))


def test_calls_under_way_are_made_again_at_another_parallelism(
    tmp_path: Path, service: Service
) -> None:
    OPEN.clear()
    try:
        handle = asked(answer_later, tmp_path, capacity=8).start("threads")
        handle.checkpoint()
        handle.rescale(3)
        OPEN.set()
        found = handle.wait(WAIT_S).collected["out"]
    finally:
        OPEN.set()
    assert sorted(found["sequence"].to_pylist()) == list(range(ROWS))


async def refuse_round(row: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(random.random() / 100)
    if row["sequence"] % 10 == 0:
        raise LookupError(f"no order {row['sequence']}")
    return {"sequence": row["sequence"], "key_given": ""}


def test_failed_calls_become_letters_once_through_a_restart(tmp_path: Path) -> None:
    failed: list[int] = []

    def fails_once(row: dict[str, Any]) -> dict[str, Any]:
        if row["sequence"] == ROWS - 1 and not failed:
            failed.append(1)
            raise ConnectionError("once")
        return row

    source = hr.read.sequence(ROWS, keys=7, name="numbers", rate=2_000.0)
    good = source.map_async(
        refuse_round, ASKED, retries=1, backoff="1ms", on_error="route", name="ask"
    )
    out = good.rebalance().map(fails_once).write.collect(name="out")
    dead = good.errors.rebalance().write.collect(name="dead")
    options = hr.Checkpoints(str(tmp_path), interval="30ms", mode="unaligned")
    job = hr.Job("asks", out, dead, parallelism=2, max_parallelism=8, checkpoints=options)
    result = job.start("threads").wait(WAIT_S)
    assert result.restarts == 1
    letters = result.collected["dead"].to_pylist()
    assert sorted(letter["record"]["sequence"] for letter in letters) == list(range(0, ROWS, 10))
    assert {letter["error"] for letter in letters} == {"LookupError"}
    found = sorted(result.collected["out"]["sequence"].to_pylist())
    assert found == [n for n in range(ROWS) if n % 10]


#: A third of the records was asked for.
UNDER_LOAD = threading.Event()


async def dawdle(row: dict[str, Any]) -> dict[str, Any]:
    """Answers a third at once; the next calls wait for `OPEN`, and the first of these are slow."""
    later = row["sequence"] - ROWS // 3
    if later >= 0:
        UNDER_LOAD.set()
        while not OPEN.is_set():
            await asyncio.sleep(0.005)
    if 0 <= later < 8:
        await asyncio.sleep(0.1 * later)
    return row


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1)])
def test_a_key_keeps_its_order_at_another_parallelism(
    tmp_path: Path, before: int, after: int
) -> None:
    UNDER_LOAD.clear()
    OPEN.clear()
    source = hr.read.sequence(ROWS, keys=7, name="numbers", parallelism=1)
    slow = source.key_by("key").map_async(dawdle, ordered=True, capacity=8, name="ask")
    out = slow.key_by("key").stream.write.collect(name="out", parallelism=1)
    options = hr.Checkpoints(str(tmp_path), interval="50ms", mode="unaligned")
    job = hr.Job("asks", out, parallelism=before, max_parallelism=8, checkpoints=options)
    try:
        handle = job.start("threads")
        assert UNDER_LOAD.wait(WAIT_S)
        handle.checkpoint()
        handle.rescale(after)
        OPEN.set()
        found = handle.wait(WAIT_S).collected["out"].to_pylist()
    finally:
        OPEN.set()
    assert sorted(row["sequence"] for row in found) == list(range(ROWS))
    for key in {row["key"] for row in found}:
        own = [row["sequence"] for row in found if row["key"] == key]
        assert own == sorted(own)
