"""Calls in an event loop: attempts, time limits, rates, and every way in which a call can end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from headrace.engine.operators.async_calls import (
    Answer,
    Call,
    CallLimits,
    LoopCalls,
    idempotency_key,
)

SECOND = 1_000_000_000


def answers(
    function: Callable[..., Any] | type,
    rows: list[dict[str, Any]],
    *,
    capacity: int = 8,
    timeout_ns: int = 60 * SECOND,
    retries: int = 0,
    rate: float | None = None,
) -> list[Answer]:
    calls = LoopCalls(function, CallLimits(capacity, timeout_ns, retries, 1000, rate), "job/op")
    found: list[Answer] = []
    try:
        calls.start([Call(number, row) for number, row in enumerate(rows)])
        while len(found) < len(rows):
            calls.wait(60)
            found += calls.take()
    finally:
        calls.close()
    return sorted(found, key=lambda answer: answer.number)


async def doubled(row: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"n": row["n"] * 2}


def test_coroutines_run_side_by_side() -> None:
    met = 0

    async def all_meet(row: dict[str, Any]) -> dict[str, Any]:
        nonlocal met
        met += 1
        while met < 5:
            await asyncio.sleep(0.001)
        return row

    rows = [{"n": n} for n in range(5)]
    assert [answer.result for answer in answers(all_meet, rows)] == rows


def test_plain_functions_run_side_by_side() -> None:
    meeting = threading.Barrier(4)

    def all_meet(row: dict[str, Any]) -> dict[str, Any]:
        meeting.wait(60)
        return row

    rows = [{"n": n} for n in range(4)]
    assert [answer.result for answer in answers(all_meet, rows, capacity=4)] == rows


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("plain", [True, False])
def test_whatever_a_call_raises_is_its_answer(error: BaseException, plain: bool) -> None:
    def plainly(row: dict[str, Any]) -> dict[str, Any]:
        raise error

    async def coroutine(row: dict[str, Any]) -> dict[str, Any]:
        raise error

    (failed,) = answers(plainly if plain else coroutine, [{"n": 1}])
    assert type(failed.error) is type(error)
    (good,) = answers(doubled, [{"n": 1}])
    assert good.result == {"n": 2}


def test_a_failed_attempt_is_repeated() -> None:
    seen: list[dict[str, Any]] = []

    async def third_time(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(dict(row))
        row.clear()
        if len(seen) < 3:
            raise ConnectionError
        return {"n": 1}

    (answer,) = answers(third_time, [{"n": 7}], retries=2)
    assert (answer.result, answer.attempts) == ({"n": 1}, 3)
    assert seen == [{"n": 7}] * 3


def test_attempts_are_used_up() -> None:
    async def never(row: dict[str, Any]) -> dict[str, Any]:
        raise ConnectionError("refused")

    (answer,) = answers(never, [{"n": 7}], retries=2)
    assert isinstance(answer.error, ConnectionError)
    assert answer.attempts == 3


def test_an_attempt_has_a_time_limit() -> None:
    async def stuck(row: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(3600)
        return row

    (answer,) = answers(stuck, [{"n": 7}], timeout_ns=SECOND // 100)
    assert isinstance(answer.error, TimeoutError)
    assert str(answer.error) == "no answer within 0.01 s"


def test_a_rate_limits_attempts() -> None:
    began = time.monotonic()
    answers(doubled, [{"n": n} for n in range(11)], rate=100)
    assert time.monotonic() - began >= 0.1


def test_a_class_is_opened_and_closed_in_the_loop() -> None:
    told: list[tuple[str, int]] = []

    class Asks:
        async def open(self) -> None:
            told.append(("open", threading.get_ident()))

        async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
            told.append(("call", threading.get_ident()))
            return row

        async def close(self) -> None:
            told.append(("close", threading.get_ident()))

    answers(Asks, [{"n": 1}])
    assert [what for what, _ in told] == ["open", "call", "close"]
    assert len({thread for _, thread in told}) == 1


def test_a_class_that_cannot_be_opened_says_so() -> None:
    class Broken:
        async def open(self) -> None:
            raise ConnectionError("no service")

        async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
            return row

    before = set(threading.enumerate())
    with pytest.raises(ConnectionError, match="no service"):
        answers(Broken, [{"n": 1}])
    assert set(threading.enumerate()) <= before


def test_close_does_not_wait_for_coroutines() -> None:
    ended: list[str] = []

    async def stuck(row: dict[str, Any]) -> dict[str, Any]:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(row["n"])
        return row

    calls = LoopCalls(stuck, CallLimits(1, 3600 * SECOND, 5, 0, None), "job/op")
    calls.start([Call(0, {"n": "x"})])
    while not calls._tasks:
        time.sleep(0.001)
    time.sleep(0.01)
    calls.close()
    assert ended == ["x"]


def test_a_function_that_asks_for_the_key_gets_it() -> None:
    async def keyed(row: dict[str, Any], idempotency_key: str) -> dict[str, Any]:
        return {"key": idempotency_key}

    first, second, third = answers(keyed, [{"n": 1}, {"n": 1}, {"n": 2}])
    assert first.result == second.result != third.result
    assert first.result == {"key": idempotency_key("job/op", {"n": 1})}
    assert idempotency_key("job/other", {"n": 1}) != idempotency_key("job/op", {"n": 1})


def test_a_key_stays_what_it_is() -> None:
    """Services keep keys longer than a release lives."""
    row = {"n": 1, "t": "x", "none": None, "b": b"\0", "f": 0.5, "l": [1, {"a": 2}]}
    assert idempotency_key("job/op", row) == "b718351788e61f8933cb5fcd3f6ec76c"
