"""The FLIP-76 experiment: checkpoint duration, throughput and latency of a pipeline with a slow
stage, by mode.

Question: what does a checkpoint cost while queues are full? Topology: `slow_stage.py`; the slow
stage sleeps so many milliseconds a record on average. Units: checkpoint durations in ms (trigger to
durable metadata), throughput in records/s arriving at the measure map, latency in ms from the
source's emission to the measure map.

The floor of a checkpoint is measured in the same run: hops x one-way message + bytes that it wrote
/ write bandwidth + one metadata commit. Bytes that it names from earlier checkpoints do not count.

Source: FLIP-76, "Preliminary work" (0, 0.01 and 0.1 ms; we add 1 ms). Noise: shared machines; arms
are interleaved, compare within one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from .measure import percentile
from .slow_stage import Arm, Seen, Sleepy, observe

MODES = ("aligned", "unaligned", "continuous", "none")
SLEEPS_MS = (0.0, 0.01, 0.1, 1.0)
#: {values of every checkpoint of a round: the result that several rounds compute of all of them}.
_POOLED = {"durations_ms": "checkpoint_p99_ms", "floors_ms": "floor_p99_ms"}


def arms(mode: str | None = None, sleep_ms: float | None = None) -> Iterator[tuple[str, float]]:
    """(mode, sleep) of each arm to run, those to be compared next to each other; None: all there
    are.
    """
    for sleep in SLEEPS_MS if sleep_ms is None else (sleep_ms,):
        for name in MODES if mode is None else (mode,):
            yield name, sleep


def run(
    *, mode: str = "unaligned", sleep_ms: float = 0.1, parallelism: int = 2, seconds: float = 15.0
) -> dict[str, Any]:
    """Run one arm for `seconds` after its warm-up.

    Returns one flat object with the keys of docs/cli.md, `bench flip76`.
    """
    seen = observe(Arm(mode, Sleepy(sleep_ms), parallelism, seconds=seconds))
    return {
        "bench": "flip76",
        "mode": mode,
        "sleep_ms": sleep_ms,
        "parallelism": parallelism,
        **results(seen),
    }


def results(seen: Seen) -> dict[str, Any]:
    """What was seen of an arm, as numbers."""
    return {
        "records_per_s": round(seen.records_per_s),
        "latency_p50_ms": seen.latency_ms(50),
        "latency_p99_ms": seen.latency_ms(99),
        "checkpoint_p50_ms": seen.duration_ms(50),
        "checkpoint_p99_ms": seen.duration_ms(99),
        "floor_ms": seen.floor_ms(50),
        "floor_p99_ms": seen.floor_ms(99),
        "interval_p50_ms": seen.interval_ms(50),
        "inflight_bytes": seen.median_bytes([s.inflight_bytes for s in seen.sizes]),
        "written_bytes": seen.median_bytes([s.written_bytes for s in seen.sizes]),
        "files_max": max((s.files for s in seen.sizes), default=0),
        "completed": len(seen.completed),
        "failed": seen.failed,
        "durations_ms": seen.durations_ms,
        "floors_ms": seen.floors_ms,
    }


def medians(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One flat object of several rounds of the same arm: the median of each number over the rounds
    that have it, but p99 of the checkpoints of all rounds together; `rounds` says how many.
    """
    merged: dict[str, Any] = {}
    for key, first in rounds[0].items():
        values = [found[key] for found in rounds if isinstance(found[key], int | float)]
        if key not in _POOLED:
            merged[key] = median(values) if values else first
    for pool, key in _POOLED.items():
        if pool in rounds[0]:
            merged[key] = percentile(sorted(v for found in rounds for v in found[pool]), 99)
    return {**merged, "rounds": len(rounds)}
