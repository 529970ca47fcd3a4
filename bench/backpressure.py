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
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import headrace as hr

from .slow_stage import Arm, Computing, Seen, Sleeping, Sleepy, Stage, observe

#: Fixed windows that hold ten seconds of a stage of 0.1 ms a record, by parallelism.
_WINDOWS = {2: "2MiB", 4: "1MiB"}
_CALL_S = 5.0
#: Longer than any arm is watched.
_FOREVER_S = 3600.0
#: Aligned checkpoints take as long as the queues, and more than one should end.
_ALIGNED_S = 60.0


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
    times = _ratio(took, seen.duration_ms(50))
    detail = (
        f"aligned {took} ms ({len(aligned.completed)} completed), unaligned {seen.duration_ms(50)}"
        " ms"
    )
    yield Bar("aligned/unaligned", parallelism, times, 50.0, True, detail)


def slope(parallelism: int, seconds: float) -> Iterator[Bar]:
    """Least squares of log duration over log slowdown, from 0.01 to 1 ms a record."""
    sleeps = (0.01, 0.1, 1.0)
    took = [_deep("unaligned", Sleepy(s), parallelism, seconds).duration_ms(50) for s in sleeps]
    detail = ", ".join(f"{s} ms: {t} ms" for s, t in zip(sleeps, took, strict=True))
    if None in took:
        yield _bar("slope", parallelism, None, 0.05, detail)
        return
    logs = [math.log10(t) for t in took if t is not None]
    # Three points, evenly spaced by one decade: the slope is half the difference of the ends.
    yield _bar("slope", parallelism, round((logs[2] - logs[0]) / 2, 3), 0.05, detail)


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
    """Records per second with checkpoints each second over without, interleaved twice; no sleep,
    and 0.1 ms.
    """
    for sleep_ms in (0.0, 0.1):
        rates: dict[str, list[float]] = {"none": [], "unaligned": [], "continuous": []}
        for _ in range(2):
            for mode, found in rates.items():
                seen = observe(Arm(mode, Sleepy(sleep_ms), parallelism, seconds=seconds))
                found.append(seen.records_per_s)
        for mode in ("unaligned", "continuous"):
            value = _ratio(sum(rates[mode]), sum(rates["none"])) or 0.0
            detail = (
                f"{mode} {[round(r) for r in rates[mode]]}, none"
                f" {[round(r) for r in rates['none']]} records/s"
            )
            # What continuous writing costs is stated; only the default has an aim.
            aim = 0.95 if mode == "unaligned" else 0.0
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
