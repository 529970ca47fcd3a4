"""The bars of unaligned checkpoints: their arithmetic."""

from __future__ import annotations

import pytest

from headrace.bench.backpressure import Bar, fitted


def test_a_bar_without_a_value_is_missed() -> None:
    assert Bar("files", 2, 3.0, 3.0, False, "").met
    assert not Bar("p99/floor", 2, None, 3.0, False, "").met
    assert not Bar("aligned/unaligned", 2, None, 50.0, True, "").met


def test_the_slope_is_fitted_to_all_arms() -> None:
    # Ten times slower, the checkpoint takes the square root of ten times as long.
    points = [(10.0**-n, 10 ** (n / 2)) for n in range(4)]
    assert fitted(points) == pytest.approx(0.5)
    # The arm without sleep, the fastest, counts: without it these lie on a level line.
    assert fitted([(1e6, 1.0), (1e5, 10.0), (1e4, 10.0), (1e3, 10.0)]) == pytest.approx(0.3)
