"""The FLIP-76 experiment: its arms, and one result of several rounds."""

from __future__ import annotations

from headrace.bench.flip76 import medians


def of_round(durations_ms: list[float]) -> dict[str, object]:
    return {"mode": "unaligned", "checkpoint_p99_ms": None, "durations_ms": durations_ms}


def test_p99_is_of_the_checkpoints_of_all_rounds_together() -> None:
    few = medians([of_round([1.0] * 33) for _ in range(3)])
    assert few == {"mode": "unaligned", "checkpoint_p99_ms": None, "rounds": 3}
    many = medians([of_round([1.0] * 49 + [number]) for number in (7.0, 9.0)])
    assert many["checkpoint_p99_ms"] == 7.0
