"""The bars of unaligned checkpoints under full backpressure, each as a ratio within one run.

    python -m headrace.bench.backpressure [--parallelism 2 4] [--only NAME ...] [--seconds 20]
        [--json]

Question: does a checkpoint know about backpressure? The slow stage of `slow_stage.py` sleeps,
blocks or computes while all queues in front of it are full; windows are fixed (no debloating) and
large enough for ten seconds of work. One line a bar: what was seen, the aim, met or not. Exit code
3 when one was missed; a p99 takes 100 checkpoints, one a second, and of fewer its bar is missed.
Noise: a bar compares arms of one run, run one after the other; a shared disk
is the largest part of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np

import headrace as hr

from .slow_stage import (
    Arm,
    Computing,
    Seen,
    Sleeping,
    Sleepy,
    Stage,
    observe,
    records_for,
    work_rate,
)

#: Fixed windows that hold ten seconds of a stage of 0.1 ms a record, by parallelism.
_WINDOWS = {2: "2MiB", 4: "1MiB"}
_CALL_S = 5.0
#: Longer than any arm is watched.
_FOREVER_S = 3600.0
#: Aligned checkpoints take as long as the queues, and more than one should end.
_ALIGNED_S = 60.0
#: The longest time that the fixed work of one run should take, and how many rounds of it there are.
_WORK_S = 30.0
_ROUNDS = 5
#: Least throughput with checkpoints over none. What continuous writing costs is stated without an
#: aim: it is not the default.
_THROUGHPUT_AIMS = {"aligned": 0.97, "unaligned": 0.95, "continuous": 0.0}


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure and what it should be; `at_least` tells in which direction.

    Attributes:
        value: None if the arm showed too little to tell; then the bar is missed.
    """

    name: str
    parallelism: int
    value: float | None
    aim: float
    at_least: bool
    detail: str

    @property
    def met(self) -> bool:
        """The aim is reached."""
        if self.value is None:
            return False
        return self.value >= self.aim if self.at_least else self.value <= self.aim


def _deep(
    mode: str, stage: Stage, parallelism: int, seconds: float, warm_up_s: float = 8.0
) -> Seen:
    """An arm with queues that hold ten seconds of work."""
    window = _WINDOWS.get(parallelism, "1MiB")
    network = hr.Network(window=window, buffer="1MiB", debloat_target="0s")
    arm = Arm(mode, stage, parallelism, network=network, warm_up_s=warm_up_s, seconds=seconds)
    return observe(arm)


def _bar(name: str, parallelism: int, value: float | None, aim: float, detail: str) -> Bar:
    return Bar(name, parallelism, value, aim, False, detail)


def _ratio(value: float | None, base: float | None) -> float | None:
    return None if value is None or not base else round(value / base, 3)


def duration(parallelism: int, seconds: float) -> Iterator[Bar]:
    """Unaligned against its floor and against aligned, at 0.1 ms a record."""
    seen = _deep("unaligned", Sleepy(0.1), parallelism, seconds)
    queued_bytes = seen.median_bytes([s.inflight_bytes for s in seen.sizes])
    for percent, aim in ((50, 1.5), (99, 3.0)):
        took, floor = seen.duration_ms(percent), seen.floor_ms(percent)
        detail = (
            f"{took} ms, floor {floor} ms of the bytes written, {queued_bytes} bytes in flight,"
            f" {len(seen.completed)} checkpoints"
        )
        yield _bar(f"p{percent}/floor", parallelism, _ratio(took, floor), aim, detail)
    yield _bar(
        "interval/configured",
        parallelism,
        _ratio(seen.interval_ms(50), 1000.0),
        1.1,
        f"{seen.interval_ms(50)} ms between triggers, {seen.failed} failed",
    )
    files = max((s.files for s in seen.sizes), default=0)
    yield _bar("files", parallelism, files, parallelism + 1, f"{parallelism} workers")
    aligned = _deep("aligned", Sleepy(0.1), parallelism, _ALIGNED_S)
    took = aligned.duration_ms(50)
    # One that did not complete took at least as long.
    times = _ratio(took or aligned.underway_ms, seen.duration_ms(50))
    detail = (
        f"aligned {took} ms ({len(aligned.completed)} completed; one under way for"
        f" {aligned.underway_ms} ms), unaligned {seen.duration_ms(50)} ms"
    )
    yield Bar("aligned/unaligned", parallelism, times, 50.0, True, detail)


def slope(parallelism: int, seconds: float) -> Iterator[Bar]:
    """Least squares of log duration over log slowdown, from no sleep to 1 ms a record; the slowdown
    is that of the throughput, against no sleep.
    """
    points: list[tuple[float, float]] = []
    told = []
    for sleep_ms in (0.0, 0.01, 0.1, 1.0):
        seen = _deep("unaligned", Sleepy(sleep_ms), parallelism, seconds)
        took = seen.duration_ms(50)
        told.append(f"{sleep_ms} ms: {took} ms at {round(seen.records_per_s)} records/s")
        if took is not None and seen.records_per_s:
            points.append((seen.records_per_s, took))
    value = fitted(points) if len(points) == len(told) else None
    yield _bar("slope", parallelism, value, 0.05, ", ".join(told))


def fitted(points: Sequence[tuple[float, float]]) -> float:
    """Slope of log duration over log slowdown, by least squares, of (records per second, duration)
    of each arm.
    """
    rates, took = zip(*points, strict=True)
    return round(float(np.polyfit(-np.log10(rates), np.log10(took), 1)[0]), 3)


def calls(parallelism: int, seconds: float) -> Iterator[Bar]:
    """A user's function that sleeps, or computes, for five seconds a call."""
    for name, stage, aim in (
        ("sleeping call p99 ms", Sleeping(_CALL_S), 100.0),
        ("computing call p99 ms", Computing(_CALL_S), 250.0),
    ):
        seen = _deep("unaligned", stage, parallelism, seconds)
        detail = (
            f"p50 {seen.duration_ms(50)} ms, {len(seen.completed)} checkpoints, {seen.failed}"
            " failed"
        )
        if (waited := seen.waited(99)) is not None:
            detail += (
                f"; during that of p99 an owner thread waited up to {waited.owner_ms} ms for a"
                " processor, "
                f"another thread, which may have held the GIL, up to {waited.other_ms} ms"
            )
        yield _bar(name, parallelism, seen.duration_ms(99), aim, detail)


def stalled(parallelism: int, seconds: float) -> Iterator[Bar]:
    """What the checkpoints after the first write while nothing moves."""
    # The first comes an interval after the start, when the queues are full already.
    seen = _deep("unaligned", Sleeping(_FOREVER_S), parallelism, seconds, warm_up_s=0.0)
    written = [s.written_bytes for s in seen.sizes]
    detail = f"bytes written by checkpoint: {written[:5]}"
    ratio = _ratio(written[1], written[0]) if len(written) > 1 else None
    yield _bar("second/first bytes", parallelism, ratio, 0.1, detail)


def throughput(parallelism: int, seconds: float) -> Iterator[Bar]:
    """Records per second of fixed work with checkpoints each second over without: the median of
    interleaved rounds; no sleep, and 0.1 ms.
    """
    for sleep_ms in (0.0, 0.1):
        records = records_for(sleep_ms, parallelism, min(seconds, _WORK_S))
        rates: dict[str, list[float]] = {mode: [] for mode in ("none", *_THROUGHPUT_AIMS)}
        for _ in range(_ROUNDS):
            for mode, found in rates.items():
                found.append(work_rate(Arm(mode, Sleepy(sleep_ms), parallelism), records))
        for mode, aim in _THROUGHPUT_AIMS.items():
            ratios = [rate / none for rate, none in zip(rates[mode], rates["none"], strict=True)]
            detail = (
                f"{records} records; {mode} {[round(r) for r in rates[mode]]}, none"
                f" {[round(r) for r in rates['none']]} records/s"
            )
            value = round(median(ratios), 3)
            yield Bar(f"throughput {mode} {sleep_ms} ms", parallelism, value, aim, True, detail)


BARS: dict[str, Callable[[int, float], Iterator[Bar]]] = {
    "duration": duration,
    "slope": slope,
    "calls": calls,
    "stalled": stalled,
    "throughput": throughput,
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the bars that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m headrace.bench.backpressure")
    parser.add_argument("--parallelism", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", nargs="+", choices=list(BARS), default=list(BARS))
    parser.add_argument("--seconds", type=float, default=110.0, help="to watch each arm")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(words)
    missed = 0
    for parallelism in given.parallelism:
        for name in given.only:
            for bar in BARS[name](parallelism, given.seconds):
                missed += not bar.met
                _show(bar, as_json=given.json)
    return 3 if missed else 0


def _show(bar: Bar, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**asdict(bar), "met": bar.met}), flush=True)
        return
    relation = ">=" if bar.at_least else "<="
    verdict = "met" if bar.met else "MISSED"
    value = "-" if bar.value is None else bar.value
    print(
        f"p={bar.parallelism} {bar.name}: {value} ({relation} {bar.aim}) {verdict}; {bar.detail}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
