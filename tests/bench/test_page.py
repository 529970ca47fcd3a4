"""The comparison of turns with a page and without."""

from __future__ import annotations

import pytest

from headrace.bench.page import costs


def test_a_page_costs_what_is_missing_in_the_same_block_of_turns() -> None:
    # Twice as fast in the second block, with and without: that is the machine, not the page.
    rates = {False: [100.0, 100.0, 200.0, 200.0], True: [98.0, 100.0, 200.0, 204.0]}
    assert costs(rates) == [pytest.approx(1.0), pytest.approx(-1.0)]
