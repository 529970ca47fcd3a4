"""Percentiles that the benchmarks print."""

from __future__ import annotations

import pytest

from headrace.bench.measure import percentile


@pytest.mark.parametrize(
    ("count", "percent", "expected"),
    [
        (0, 50, None),
        (1, 50, 1.0),
        (2, 50, 1.0),
        (3, 50, 2.0),
        (99, 99, None),
        (100, 99, 99.0),
        (300, 99, 297.0),
        (9, 90, None),
        (10, 90, 9.0),
        (0, 100, None),
        (3, 100, 3.0),
    ],
)
def test_a_percentile_is_the_nearest_rank_and_absent_of_too_few(
    count: int, percent: int, expected: float | None
) -> None:
    assert percentile([float(n) for n in range(1, count + 1)], percent) == expected
