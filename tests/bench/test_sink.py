"""The Parquet sink against one that drops its records."""

from __future__ import annotations

import pytest

from headrace.bench.sink import Pipeline, run


@pytest.mark.parametrize("pipeline", ["read", "count", "map"])
def test_every_arm_is_measured_against_the_dropping_sink_of_its_round(pipeline: Pipeline) -> None:
    found = run(pipeline=pipeline, records=200_000, rounds=2, runner="threads")
    assert found["correct"]
    assert found["rounds"] == 2
    ratios = {name: value for name, value in found.items() if name.endswith("_ratio")}
    assert set(ratios) == {
        "parquet_wall_ratio",
        "parquet_processor_ratio",
        "identity_wall_ratio",
        "identity_processor_ratio",
        "arrow_ratio",
    }
    assert all(value is None or value > 0 for value in ratios.values())
    assert ratios["parquet_wall_ratio"] is not None
