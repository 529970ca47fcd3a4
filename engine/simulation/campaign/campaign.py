"""A campaign: many seeds on all cores, and their violations.

    python -m headrace.engine.simulation.campaign --seeds 20000
    python -m headrace.engine.simulation.campaign --seeds 100:5100
    python -m headrace.engine.simulation.campaign --seed 734 --trace

A number of seeds begins at a seed drawn at random, and the range is printed: the same range always
tests the same schedules.

Exit code 0: no violation, and every fault that must happen has happened; 3: otherwise. A small
campaign cannot meet every fault: faults are demanded from `REQUIRED_SEEDS_MIN` seeds on, crash
points from `COVERAGE_SEEDS_MIN`.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import logging
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.channels.events import CheckpointMode

from ..coverage import IN_FLIGHT, REQUIRED, Coverage
from .equivalence import compare_modes
from .faults import CRASH_POINT_NAMES
from .world import Report, simulate

#: Seeds that are run without looking for garbage in between; also the size of a worker process's
#: task.
_CHUNK_SEEDS = 25
#: A campaign of so many seeds must have met every fault.
REQUIRED_SEEDS_MIN = 5_000
#: A campaign of so many seeds must have met every crash point as well.
COVERAGE_SEEDS_MIN = 10_000
#: A campaign of so many seeds in mode unaligned must have persisted in-flight data, or the mode is
#: off.
IN_FLIGHT_SEEDS_MIN = 50
#: Seeds that are drawn lie below.
_FIRST_MAX = 10**9
#: Violations that are shown in full.
_SHOWN_MAX = 20

EXIT_FOUND = 3

#: What is done with a seed.
Run = Callable[[int], Report]


@dataclass(slots=True)
class Result:
    """The findings of a campaign.

    Attributes:
        mode: the mode of all runs; None: each run has its own mode.
        violations: {seed: the broken promise}.
    """

    mode: CheckpointMode | None = None
    seeds: int = 0
    steps: int = 0
    elapsed_s: float = 0.0
    violations: dict[int, str] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def seeds_per_s(self) -> float:
        """Speed over all cores."""
        return self.seeds / self.elapsed_s if self.elapsed_s else 0.0

    @property
    def missing(self) -> list[str]:
        """Return mandatory events that never happened, for a campaign of this size."""
        if self.seeds >= COVERAGE_SEEDS_MIN:
            return self.coverage.missing((*REQUIRED, *CRASH_POINT_NAMES))
        if self.seeds >= REQUIRED_SEEDS_MIN:
            return self.coverage.missing(REQUIRED)
        if self.mode is CheckpointMode.UNALIGNED and self.seeds >= IN_FLIGHT_SEEDS_MIN:
            return self.coverage.missing(IN_FLIGHT)
        return []

    def add(self, report: Report) -> None:
        """Count one run."""
        self.seeds += 1
        self.steps += report.steps
        self.coverage.merge(report.coverage)
        if report.violation:
            self.violations[report.seed] = report.violation


def run_campaign(
    seeds: Iterable[int],
    *,
    jobs: int,
    faults: bool = True,
    mode: CheckpointMode | None = None,
    compared: bool = False,
) -> Result:
    """Run the seeds in `jobs` processes; 1: in this process.

    `compared`: each seed in every mode (`equivalence.py`).
    """
    began_s = time.monotonic()
    result = Result(mode)
    run = compare_modes if compared else functools.partial(simulate, faults=faults, mode=mode)
    for reports in _reports(list(seeds), jobs, run):
        for report in reports:
            result.add(report)
        result.elapsed_s = time.monotonic() - began_s
        _progress(result)
    return result


def _reports(seeds: list[int], jobs: int, run: Run) -> Iterator[list[Report]]:
    chunks = chunks_of(seeds)
    if jobs == 1:
        with _quieted():
            yield from (_run_chunk(chunk, run) for chunk in chunks)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=prepare_process) as pool:
        futures = [pool.submit(_run_chunk, chunk, run) for chunk in chunks]
        for future in as_completed(futures):
            yield future.result()


def quiet() -> None:
    """Simulated failures are no news."""
    logging.getLogger("headrace").setLevel(logging.CRITICAL + 1)


@contextmanager
def _quieted() -> Iterator[None]:
    """As `quiet`, and as before at the end: this process runs more than simulations."""
    logger = logging.getLogger("headrace")
    before = logger.level
    quiet()
    try:
        yield
    finally:
        logger.setLevel(before)


def prepare_process() -> None:
    """Prepare a process for runs alone: the collector skips imported objects from now on."""
    quiet()
    gc.freeze()


def chunks_of(seeds: Sequence[int]) -> list[Sequence[int]]:
    """Split seeds into runs for `uncollected`: more at a time would fill the memory."""
    return [seeds[i : i + _CHUNK_SEEDS] for i in range(0, len(seeds), _CHUNK_SEEDS)]


def _run_chunk(seeds: Sequence[int], run: Run) -> list[Report]:
    with uncollected():
        return [run(seed) for seed in seeds]


@contextmanager
def uncollected() -> Iterator[None]:
    """Do without the garbage collector inside, and collect at the end.

    A world is full of cycles and short-lived: looking for garbage while it runs costs a tenth of
    the speed and more.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
        gc.collect()


def _progress(result: Result) -> None:
    if sys.stderr.isatty():
        found = f"{len(result.violations)} violations" if result.violations else "no violation"
        line = f"\r{result.seeds} seeds, {result.seeds_per_s:.0f} a second, {found} "
        print(line, end="", file=sys.stderr, flush=True)


# --- the command ----------------------------------------------------------------------------------


def command_of(seed: int, mode: CheckpointMode | None, faults: bool) -> str:
    """Return the command that replays a seed."""
    words = [
        f"python -m headrace.engine.simulation.campaign --seed {seed} --trace",
        f"--mode {mode.value}" if mode else "",
        "" if faults else "--no-faults",
    ]
    return " ".join(word for word in words if word)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="headrace-simulate", description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", default="1000", help="how many, or FIRST:LAST (LAST not run)")
    parser.add_argument("--first", type=int, help="the first seed; without it one is drawn")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--mode", choices=[mode.value for mode in CheckpointMode])
    parser.add_argument("--no-faults", action="store_true", help="delays only")
    parser.add_argument(
        "--compare-modes", action="store_true", help="each seed in every mode, without faults"
    )
    parser.add_argument("--json", action="store_true", help="one object to stdout")
    parser.add_argument("--seed", type=int, help="run this seed alone")
    parser.add_argument("--trace", action="store_true", help="show what happens in --seed")
    return parser.parse_args()


def _seeds(text: str, first: int | None) -> range:
    if ":" in text:
        low, _, high = text.partition(":")
        return range(int(low), int(high))
    if first is None:
        first = random.randrange(_FIRST_MAX)
    return range(first, first + int(text))


def main() -> int:
    """Run the command; returns the exit code."""
    arguments = _arguments()
    mode = CheckpointMode(arguments.mode) if arguments.mode else None
    faults = not arguments.no_faults
    if arguments.seed is not None:
        quiet()
        show = print if arguments.trace else None
        report = (
            compare_modes(arguments.seed)
            if arguments.compare_modes
            else simulate(arguments.seed, faults=faults, mode=mode, show=show)
        )
        print(f"seed {report.seed}: {report.violation or 'no violation'}")
        print(f"trace {report.trace_hash}, {report.steps} steps")
        return EXIT_FOUND if report.violation else 0
    seeds = _seeds(arguments.seeds, arguments.first)
    print(f"seeds {seeds.start}:{seeds.stop}", file=sys.stderr, flush=True)
    compared = arguments.compare_modes
    result = run_campaign(seeds, jobs=arguments.jobs, faults=faults, mode=mode, compared=compared)
    if arguments.json:
        print(json.dumps(_as_json(result, mode, faults)))
    else:
        _print(result, mode, faults)
    missing = result.missing and faults and not compared
    return EXIT_FOUND if result.violations or missing else 0


def _as_json(result: Result, mode: CheckpointMode | None, faults: bool) -> dict[str, object]:
    return {
        "seeds": result.seeds,
        "seeds_per_s": round(result.seeds_per_s, 1),
        "steps": result.steps,
        "violations": [
            {"seed": seed, "violation": text, "command": command_of(seed, mode, faults)}
            for seed, text in sorted(result.violations.items())
        ],
        "missing": result.missing,
        "coverage": dict(sorted(result.coverage.counts.items())),
    }


def _print(result: Result, mode: CheckpointMode | None, faults: bool) -> None:
    if sys.stderr.isatty():
        print(file=sys.stderr)
    for what, times in sorted(result.coverage.counts.items()):
        print(f"{times:12,} {what}")
    for seed, text in sorted(result.violations.items())[:_SHOWN_MAX]:
        print(f"seed {seed}: {text}\n  {command_of(seed, mode, faults)}")
    for what in result.missing if faults else ():
        print(f"never happened: {what}")
    print(
        f"{result.seeds} seeds, {result.steps} steps, {result.elapsed_s:.1f} s,"
        f" {result.seeds_per_s:.1f} seeds a second, {len(result.violations)} violations"
    )
