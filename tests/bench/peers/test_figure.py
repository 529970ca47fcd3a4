"""The bars of the peers' figure."""

from __future__ import annotations

from headrace.bench.peers.figure import bars


def test_an_engine_without_a_result_has_no_bar_and_others_keep_their_place() -> None:
    result = {"records_per_s": 5, "records_per_s_min": 4, "records_per_s_max": 7}
    results = [
        {"peer": "one", "checkpoint_interval": "none", **result},
        {"peer": "two", "checkpoint_interval": "none", **result},
        {"peer": "two", "checkpoint_interval": "1s", **result},
    ]
    assert bars(results, ["one", "two"], "none") == ([-0.19, 0.81], [5, 5], [1, 1], [2, 2])
    assert bars(results, ["one", "two"], "1s") == ([1.19], [5], [1], [2])
