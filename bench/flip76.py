"""The FLIP-76 experiment: checkpoint duration, throughput and latency of a pipeline with a slow
stage, by mode.

Question: what does a checkpoint cost while queues are full? Topology: `slow_stage.py`; the slow
stage sleeps so many milliseconds a record on average. Units: checkpoint durations in ms (trigger to
durable metadata), throughput in records/s of a fixed number of records from start to end, latency
in ms from the source's emission to the measure map.

The floor of a checkpoint is measured in the same run: hops x one-way message + bytes that it wrote
/ write bandwidth + one metadata commit. Bytes that it names from earlier checkpoints do not count.

Source: FLIP-76, "Preliminary work" (0, 0.01 and 0.1 ms; we add 1 ms). Noise: shared machines; arms
are interleaved, compare within one run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from typing import Any

from headrace.engine.contract.options import Runner

from .figure import PANELS
from .measure import percentile
from .slow_network import slow_network
from .slow_stage import Arm, Seen, Sleepy, Storage, observe, records_for, work_rate

MODES = ("aligned", "unaligned", "continuous", "none")
SLEEPS_MS = (0.0, 0.01, 0.1, 1.0)
#: Results that the figure draws, with their ranges over the rounds.
DRAWN = tuple(key for key, _ in PANELS)
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
    *,
    mode: str = "unaligned",
    sleep_ms: float = 0.1,
    parallelism: int = 2,
    seconds: float = 15.0,
    runner: Runner = "processes",
    storage: Storage = "local",
    skewed: bool = False,
    network_bytes_per_s: int | None = None,
) -> dict[str, Any]:
    """Watch one arm for `seconds` or longer after its warm-up; then let it work off a fixed number
    of records, about as long.

    Args:
        network_bytes_per_s: what each worker sends at most; the workers are threads then.

    Returns one flat object with the keys of docs/cli.md, `bench flip76`.
    """
    paced: AbstractContextManager[None] = nullcontext()
    if network_bytes_per_s is not None:
        runner = "threads"
        paced = slow_network(network_bytes_per_s // max(1, parallelism - 1))
    arm = Arm(
        mode,
        Sleepy(sleep_ms),
        parallelism,
        runner=runner,
        storage=storage,
        skewed=skewed,
        seconds=seconds,
    )
    records = records_for(sleep_ms, parallelism, seconds)
    with paced:
        seen = observe(arm)
        records_per_s = work_rate(arm, records)
    return {
        "bench": "flip76",
        "mode": mode,
        "sleep_ms": sleep_ms,
        "parallelism": parallelism,
        "runner": runner,
        "storage": storage,
        "skew": skewed,
        "network_bytes_per_s": network_bytes_per_s,
        "records": records,
        "records_per_s": round(records_per_s),
        **results(seen),
    }


def results(seen: Seen) -> dict[str, Any]:
    """What was seen of an arm, as numbers."""
    return {
        "latency_p50_ms": seen.latency_ms(50),
        "latency_p99_ms": seen.latency_ms(99),
        "checkpoint_p50_ms": seen.duration_ms(50),
        "checkpoint_p99_ms": seen.duration_ms(99),
        "underway_ms": seen.underway_ms,
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
    that have it, but p99 of the checkpoints of all rounds together; `rounds` says how many. Several
    rounds also have the range of what the figure draws.
    """
    merged: dict[str, Any] = {}
    for key, first in rounds[0].items():
        values = [found[key] for found in rounds if _is_number(found[key])]
        if key not in _POOLED:
            merged[key] = median(values) if values else first
        if key in DRAWN and len(values) > 1:
            merged |= {f"{key}_least": min(values), f"{key}_most": max(values)}
    for pool, key in _POOLED.items():
        if pool in rounds[0] and key in merged:
            merged[key] = percentile(sorted(v for found in rounds for v in found[pool]), 99)
    if any(found.get("underway_ms") for found in rounds):
        merged |= _censored(rounds)
    return {**merged, "rounds": len(rounds)}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _censored(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The median duration where some rounds completed no checkpoint: those took at least as long as
    the one under way. None if the middle round is among them.
    """
    known = [found for found in rounds if found["checkpoint_p50_ms"] or found["underway_ms"]]
    known.sort(key=lambda found: found["checkpoint_p50_ms"] or found["underway_ms"])
    middle = known[(len(known) - 1) // 2]["checkpoint_p50_ms"]
    longest = max(found["underway_ms"] or 0.0 for found in rounds)
    return {"checkpoint_p50_ms": middle, "underway_ms": longest}
