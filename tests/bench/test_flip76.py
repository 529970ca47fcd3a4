"""The FLIP-76 experiment: its arms, and one result of several rounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.bench.flip76 import medians, run
from headrace.bench.slow_stage import Arm, Seen, observe


def of_round(durations_ms: list[float]) -> dict[str, object]:
    return {"mode": "unaligned", "checkpoint_p99_ms": None, "durations_ms": durations_ms}


def test_p99_is_of_the_checkpoints_of_all_rounds_together() -> None:
    few = medians([of_round([1.0] * 33) for _ in range(3)])
    assert few == {"mode": "unaligned", "checkpoint_p99_ms": None, "rounds": 3}
    many = medians([of_round([1.0] * 49 + [number]) for number in (7.0, 9.0)])
    assert many["checkpoint_p99_ms"] == 7.0


def test_several_rounds_have_the_range_of_what_is_drawn() -> None:
    found = medians([{"records_per_s": rate, "completed": 1} for rate in (10, 30, 20)])
    assert found == {
        "records_per_s": 20,
        "records_per_s_least": 10,
        "records_per_s_most": 30,
        "completed": 1,
        "rounds": 3,
    }


def duration(p50_ms: float | None, underway_ms: float | None) -> dict[str, float | None]:
    return {"checkpoint_p50_ms": p50_ms, "underway_ms": underway_ms}


def test_rounds_without_a_complete_checkpoint_count_as_at_least_so_long() -> None:
    mostly = medians([duration(5.0, None), duration(7.0, 50.0), duration(None, 60.0)])
    assert (mostly["checkpoint_p50_ms"], mostly["underway_ms"]) == (7.0, 60.0)
    rarely = medians([duration(5.0, None), duration(None, 50.0), duration(None, 60.0)])
    assert (rarely["checkpoint_p50_ms"], rarely["underway_ms"]) == (None, 60.0)


@pytest.mark.slow
def test_a_slow_network_holds_the_records_of_one_arm_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record is of about 104 bytes and half of them cross the network, four times."""
    seen: list[Seen] = []

    def briefly(arm: Arm) -> Seen:
        seen.append(observe(replace(arm, warm_up_s=1.0)))
        return seen[-1]

    monkeypatch.setattr("headrace.bench.flip76.observe", briefly)
    monkeypatch.setattr("headrace.bench.flip76.records_for", lambda *_: 50_000)
    found = run(mode="none", sleep_ms=0.0, seconds=2.0, network_bytes_per_s=2_000_000)
    assert found["runner"] == "threads"
    # Two workers send 2 MB/s each, and a record takes 208 bytes of that.
    assert 0 < seen[0].records_per_s < 30_000
