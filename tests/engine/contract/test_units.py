"""Durations and sizes, read exactly or refused."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.contract.errors import UserError
from headrace.engine.contract.units import Duration, Size, duration_ns, size_bytes


@pytest.mark.parametrize(
    ("value", "nanoseconds"),
    [
        ("500ms", 500_000_000),
        ("0.1s", 100_000_000),
        (" 10 s ", 10_000_000_000),
        ("250us", 250_000),
        ("7ns", 7),
        ("5m", 300_000_000_000),
        ("2h", 7_200_000_000_000),
        ("1d", 86_400_000_000_000),
        ("0s", 0),
        (3, 3_000_000_000),
        (0.5, 500_000_000),
        (timedelta(days=1, microseconds=3), 86_400_000_003_000),
    ],
)
def test_a_duration_is_read_as_nanoseconds(value: Duration, nanoseconds: int) -> None:
    assert duration_ns(value, option="x") == nanoseconds


@pytest.mark.parametrize(
    "value",
    ["", "10", "10 parsecs", "-1s", "1e3s", "1.s", -1, True, float("nan"), float("inf"), None],
)
def test_what_is_no_duration_is_refused(value: Duration) -> None:
    with pytest.raises(UserError) as caught:
        duration_ns(value, option="checkpoints.interval")
    assert str(caught.value) == (
        f"checkpoints.interval={value!r} is not a duration; "
        "write '500ms', '10s', '5m', a number of seconds or a timedelta"
    )


@pytest.mark.parametrize(
    ("value", "size"),
    [("64MiB", 2**26), ("256KiB", 2**18), ("1.5KiB", 1536), ("1kB", 1000), ("0B", 0), (17, 17)],
)
def test_a_size_is_read_as_bytes(value: Size, size: int) -> None:
    assert size_bytes(value, option="x") == size


@pytest.mark.parametrize("value", ["64", "64mib", "-1B", -1, 1.5, False, timedelta(1)])
def test_what_is_no_size_is_refused(value: Size) -> None:
    with pytest.raises(UserError) as caught:
        size_bytes(value, option="network.buffer")
    assert str(caught.value) == (
        f"network.buffer={value!r} is not a size; write '64MiB', '256KiB' or a number of bytes"
    )


@given(st.integers(min_value=0, max_value=3 * 10**18))
def test_whole_nanoseconds_survive_as_text(nanoseconds: int) -> None:
    assert duration_ns(f"{nanoseconds}ns", option="x") == nanoseconds


def test_a_duration_that_no_clock_counts_is_refused() -> None:
    with pytest.raises(UserError, match="x='200000d' is too long; write at most '36500d'"):
        duration_ns("200000d", option="x")
