"""The comparison of turns with a page and without."""

from __future__ import annotations

import pytest

from headrace.bench.page import Turn, cost_by_clock, cost_by_processor

# Twice as fast in the second block, with and without: that is the machine, not the page.
ARMS = {
    False: [Turn(rate, 0.02, 2.0) for rate in (100.0, 100.0, 200.0, 200.0)],
    True: [Turn(rate, 0.03, 2.0) for rate in (98.0, 100.0, 200.0, 204.0)],
}


def test_by_the_clock_turns_of_the_same_block_are_compared() -> None:
    assert cost_by_clock(ARMS) == [pytest.approx(1.0), pytest.approx(-1.0)]


def test_by_processor_time_the_page_costs_what_the_driver_uses_beside() -> None:
    assert cost_by_processor(ARMS) == pytest.approx(0.5)
