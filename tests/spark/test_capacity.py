"""Too few slots are told at once, before anything is waited for. No Spark is started."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest
from pyspark import SparkContext

from headrace.engine.contract.errors import UserError
from headrace.engine.spark import capacity
from headrace.engine.spark.capacity import require_slots, tell_of_busy_slots

NEEDS = "the job needs 8 slots"


class Context:
    """A Spark context of a cluster, as far as it is asked here."""

    master = "spark://host:7077"

    def __init__(self, **settings: str) -> None:
        self._settings = settings
        self._jsc = self

    def getConf(self) -> dict[str, str]:
        return {name.replace("_", "."): value for name, value in self._settings.items()}

    def sc(self) -> Context:
        return self

    def isLocal(self) -> bool:
        return False


def context(**settings: str) -> SparkContext:
    return cast(SparkContext, Context(**settings))


def test_missing_executors_are_waited_for_aloud(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    def slots(_: Any) -> int:
        if seen:
            assert f"{NEEDS}, Spark has 3" in caplog.text, "told before the first wait"
        seen.append(3 if len(seen) < 2 else 8)
        return seen[-1]

    monkeypatch.setattr(capacity, "slots", slots)
    monkeypatch.setattr(capacity, "_POLL_S", 0.0)
    with caplog.at_level(logging.WARNING):
        require_slots(context(), 8, timeout_s=60.0)
    assert "waiting up to 60 s for executors" in caplog.text
    assert len(caplog.records) == 1


def test_too_few_slots_are_refused_after_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "slots", lambda _: 3)
    with pytest.raises(UserError, match=f"{NEEDS}, Spark has 3"):
        require_slots(context(), 8, timeout_s=0.0)


@pytest.mark.parametrize(
    ("total", "busy", "told"),
    [
        (10, 2, ""),
        (10, 5, "5 of Spark's 10 slots are free; it waits until other jobs"),
    ],
)
def test_slots_that_other_jobs_hold_are_told(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    total: int,
    busy: int,
    told: str,
) -> None:
    monkeypatch.setattr(capacity, "slots", lambda _: total)
    monkeypatch.setattr(capacity, "active_tasks", lambda _: busy)
    with caplog.at_level(logging.WARNING):
        tell_of_busy_slots(context(), 8)
    assert told in caplog.text
    assert bool(caplog.records) == bool(told)


def test_executors_of_dynamic_allocation_are_waited_for_aloud(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(capacity, "slots", lambda _: 2)
    monkeypatch.setattr(capacity, "active_tasks", lambda _: 0)
    with caplog.at_level(logging.WARNING):
        tell_of_busy_slots(context(spark_dynamicAllocation_enabled="true"), 8)
    assert f"{NEEDS}, Spark has 2; dynamic allocation is to add executors" in caplog.text
