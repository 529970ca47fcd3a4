from __future__ import annotations

from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.contract.errors import UserCodeError, UserError
from headrace.engine.operators.windows import (
    SessionWindow,
    TimeWindow,
    check_durations,
    from_times,
    session,
    sliding,
    times_of,
    tumbling,
)

UNITS = ("s", "ms", "us", "ns")


@given(st.lists(st.integers(-200, 200), max_size=20), st.integers(1, 30), st.integers(1, 30))
def test_a_record_is_in_every_window_that_holds_its_time(
    times: list[int], size: int, every: int
) -> None:
    size = max(size, every)
    rows, starts = TimeWindow(size, every).starts(np.array(times, np.int64))
    found = list(
        zip(range(len(times)) if rows is None else rows.tolist(), starts.tolist(), strict=True)
    )
    expected = [
        (row, start)
        for row, time in enumerate(times)
        for start in range(-300 * every, 300, every)
        if start <= time < start + size
    ]
    assert sorted(found) == sorted(expected)


def test_durations_are_read_like_everywhere() -> None:
    assert tumbling("1m") == TimeWindow(60 * 10**9, 60 * 10**9)
    assert sliding(timedelta(minutes=1), every=10) == TimeWindow(60 * 10**9, 10**10)
    assert session(gap="30s") == SessionWindow(30 * 10**9)


def test_windows_that_cannot_be_are_refused() -> None:
    with pytest.raises(UserError, match="no time at all"):
        tumbling("0s")
    with pytest.raises(UserError, match="is not a duration"):
        session(gap=-1)
    with pytest.raises(UserError, match="longer than the window"):
        sliding("1m", every="2m")
    with pytest.raises(UserError, match="in 3600 windows, at most 1000"):
        sliding("1h", every="1s")
    with pytest.raises(UserError, match="longer than 36 years"):
        tumbling("20000d")


@pytest.mark.parametrize("unit", UNITS)
def test_times_of_every_unit_are_nanoseconds_and_back(unit: str) -> None:
    array = pa.array([-3, 0, 7], pa.timestamp(unit, "UTC"))
    times = times_of(pa.record_batch([array], names=["t"]), "t", "o")
    assert times.tolist() == [n * 10 ** (9 - 3 * UNITS.index(unit)) for n in (-3, 0, 7)]
    assert from_times(times, array.type).equals(array)


def test_a_time_that_is_missing_or_out_of_range_names_the_column() -> None:
    for value, problem in ((None, "has no time"), (1 << 40, "more than 146 years")):
        batch = pa.record_batch([pa.array([0, value], pa.timestamp("s"))], names=["at"])
        with pytest.raises(UserCodeError, match=problem) as caught:
            times_of(batch, "at", "clicks")
        assert "'at'" in str(caught.value)
        assert "clicks" in str(caught.value)


def test_a_unit_that_is_too_coarse_for_the_windows_is_refused() -> None:
    check_durations(pa.timestamp("s"), 10**9, where="window")
    with pytest.raises(UserError, match=r"500000000 ns cannot be written as timestamp\[s\]"):
        check_durations(pa.timestamp("s"), 5 * 10**8, where="window")
