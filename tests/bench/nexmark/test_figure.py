"""The bars of Nexmark's figure."""

from __future__ import annotations

import pytest

from headrace.bench.nexmark.figure import WIDTH, bars


def test_a_query_without_a_result_has_no_bar_and_others_keep_their_place() -> None:
    rates = {"events_per_s": 5, "events_per_s_min": 4, "events_per_s_max": 7}
    results = [
        {"engine": "one", "query": 3, **rates},
        {"engine": "one", "query": 7, **rates},
        {"engine": "two", "query": 7, **rates},
    ]
    places, medians, below, above = bars(results, [3, 7], ["one", "two"], "two")
    assert places == pytest.approx([1 + WIDTH / 2])
    assert (medians, below, above) == ([5], [1], [2])
    assert bars(results, [3, 7], ["one", "two"], "one")[0] == pytest.approx(
        [-WIDTH / 2, 1 - WIDTH / 2]
    )
