"""Watermarks from a column of times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK
from headrace.engine.contract.operators import OperatorContext, RestoredState
from headrace.engine.operators.watermark import WatermarkOperator

SECOND = 1_000_000_000
START = datetime(2026, 1, 1, tzinfo=UTC)
START_NS = 1_767_225_600 * SECOND


def operator(
    unit: str = "us", *, delay_ns: int = 2 * SECOND, index: int = 0, parallelism: int = 1
) -> WatermarkOperator:
    schema = pa.schema([("id", pa.int64()), ("time", pa.timestamp(unit, "UTC"))])
    subject = WatermarkOperator("time", delay_ns, schema, operator="watermark")
    subject.open(OperatorContext("job", "watermark", index, parallelism, 16, 1))
    return subject


def feed(subject: WatermarkOperator, *seconds: int | None, unit: str = "us") -> None:
    times = [None if s is None else START + timedelta(seconds=s) for s in seconds]
    columns = [pa.array(range(len(times)), pa.int64()), pa.array(times, pa.timestamp(unit, "UTC"))]
    batch = pa.record_batch(columns, names=["id", "time"])
    assert list(subject.process(batch, 0)) == [batch]
    subject.commit()


def state(*subjects: WatermarkOperator) -> list[RestoredState]:
    return [RestoredState(s.name, s.kind, s.table()) for o in subjects for s in o.snapshot()]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_the_watermark_is_the_newest_time_less_the_delay_and_a_nanosecond(unit: str) -> None:
    subject = operator(unit)
    assert subject.watermark_ns == MIN_WATERMARK
    feed(subject, 5, 9, 7, unit=unit)
    assert subject.watermark_ns == START_NS + 7 * SECOND - 1
    feed(subject, 8, None, unit=unit)
    assert subject.watermark_ns == START_NS + 7 * SECOND - 1
    assert subject.records == 5


def test_nulls_say_nothing() -> None:
    subject = operator()
    feed(subject, None)
    assert subject.watermark_ns == MIN_WATERMARK
    assert subject.records == 1


def test_far_times_stay_within_the_bounds() -> None:
    subject = operator("s", delay_ns=0)
    column = pa.array([2**40], pa.timestamp("s", "UTC"))
    list(subject.process(pa.record_batch([pa.array([1]), column], names=["id", "time"]), 0))
    assert subject.watermark_ns == MAX_WATERMARK - 1, "the highest is for the end of input"


def test_the_newest_time_is_state_that_running_work_does_not_show_in() -> None:
    subject = operator()
    feed(subject, 5)
    before = state(subject)
    batch = pa.record_batch(
        [pa.array([1]), pa.array([START + timedelta(seconds=50)], pa.timestamp("us", "UTC"))],
        names=["id", "time"],
    )
    list(subject.process(batch, 0))
    assert state(subject) == before
    other = operator()
    other.restore(before)
    assert other.watermark_ns == START_NS + 3 * SECOND - 1


def test_each_subtask_goes_on_from_its_own_time_and_a_changed_number_of_them_from_the_oldest() -> (
    None
):
    old = [operator(index=i, parallelism=2) for i in range(2)]
    feed(old[0], 5)
    feed(old[1], 9)
    again = operator(index=1, parallelism=2)
    again.restore(state(*old))
    assert again.watermark_ns == START_NS + 7 * SECOND - 1
    for parallelism in (1, 3):
        fewer = operator(parallelism=parallelism)
        fewer.restore(state(*old))
        assert fewer.watermark_ns == START_NS + 3 * SECOND - 1


def test_a_subtask_that_had_seen_nothing_may_still_bring_anything() -> None:
    old = [operator(index=i, parallelism=2) for i in range(2)]
    feed(old[0], 5)
    subject = operator(parallelism=1)
    subject.restore(state(*old))
    assert subject.watermark_ns == MIN_WATERMARK
