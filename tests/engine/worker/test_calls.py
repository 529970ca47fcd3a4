"""Calls of operators in buckets of doubling length."""

from __future__ import annotations

import pytest

from headrace.engine.worker.calls import BUCKETS, Calls, bound_ms, bucket_of, quantile_ms


@pytest.mark.parametrize(
    ("spent_ns", "bucket"),
    [(0, 0), (1_000, 0), (1_001, 1), (2_000, 1), (2_001, 2), (10**18, BUCKETS - 1)],
)
def test_a_bucket_takes_calls_up_to_twice_as_long_as_the_one_before(
    spent_ns: int, bucket: int
) -> None:
    assert bucket_of(spent_ns) == bucket


def test_times_are_totals_by_operator() -> None:
    calls = Calls()
    calls.made(((0, 1_000), (2, 4_000)))
    calls.made(((2, 5_000),))
    assert calls.spent_ns == {0: 1_000, 2: 9_000}
    assert calls.counts == {0: [1], 2: [0, 0, 1, 1]}


def test_a_quantile_is_at_most_twice_the_length_of_the_call() -> None:
    calls = Calls()
    for _ in range(99):
        calls.made(((0, 3_000_000),))
    calls.made(((0, 900_000_000),))
    counts = calls.counts[0]
    middling, rare = quantile_ms(counts, 0.5), quantile_ms(counts, 1.0)
    assert middling is not None
    assert rare is not None
    assert 3.0 <= middling < 6.0
    assert 900.0 <= rare < 1_800.0
    assert bound_ms(0) == 0.001


def test_no_call_has_no_quantile() -> None:
    assert quantile_ms([], 0.5) is None
