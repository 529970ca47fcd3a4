"""Rescale campaign: is every record counted exactly once, in order, through rescales under load with a SIGKILL in each recovery?

Question: milliseconds from the request until the job has stopped, runs again, and handles its first record at the new parallelism; in the same
run milliseconds from a SIGKILL's detection to the first record handled, as a measure of what any recovery costs here; records lost, doubled or out
of order in all. The stateful stage is slower than the source, so its queues are full and every checkpoint holds records in flight. Order
is checked per key and source partition.

    python -m headrace.bench.rescales --steps 2,3,1,4 --kill --on processes --json
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import headrace as hr
from headrace.engine.api.handle import Rescaled
from headrace.engine.coordination.rules import Phase
from headrace.engine.spark.standalone import descendants
from headrace.recovery.sizes import sizes_of

from .audit import AuditedJob

Place = Literal["processes", "threads", "spark"]

_POLL_S = 0.004
_PATIENCE_S = 90.0
_PARTITIONS = 12
#: Above what the stateful stage takes, whose records cost `_PAUSE_S` each in a subtask.
_RATE_PER_S = 4000.0
_PAUSE_S = 0.0005
_INPUT_S_PER_STEP = 4.0
#: Kills of processes that only just start, within so many seconds; the others hit the replay.
_EARLY_SHARE, _EARLY_S = 0.3, 1.5
_REPLAY_S = 0.4


@dataclass(frozen=True, slots=True)
class Step:
    """One rescale; times in milliseconds from the request.

    Attributes:
        stopped_ms: until the job had stopped, with its checkpoint.
        running_ms: until an attempt ran; `first_row_ms`: until it handled its first record.
        inflight_records: what the checkpoint held.
        killed: a worker was killed in the recovery.
    """

    before: int
    after: int
    stopped_ms: float
    running_ms: float
    first_row_ms: float
    inflight_records: int
    killed: bool


def run(
    steps: Sequence[int],
    *,
    on: Place = "processes",
    kill: bool = True,
    seed: int = 0,
    mode: Literal["aligned", "unaligned"] = "unaligned",
    report: Callable[[str], None] = lambda line: None,
    **runner: Any,
) -> dict[str, Any]:
    """Start at the first of `steps` and rescale to each of the others. Returns one flat object: `exactly_once`, `lost`, `rescales`, ...

    Args:
        kill: kill a worker in each recovery, at a random moment between the start of the new processes and some records later.
        runner: more arguments of `Job.start`.
    """
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="headrace-rescales-") as name:
        audited = AuditedJob(
            Path(name),
            int(_RATE_PER_S * (3 + _INPUT_S_PER_STEP * len(steps))),
            _RATE_PER_S,
            parallelism=steps[0],
            interval="0.5s",
            partitions=_PARTITIONS,
            pause_s=_PAUSE_S,
        )
        checkpoints = hr.Checkpoints(str(audited.checkpoints), audited.interval, mode)
        job = audited.build(checkpoints=checkpoints, restart=hr.Restart(attempts=100))
        handle = job.start(on, **runner)
        try:
            found = []
            for before, after in itertools.pairwise(steps):
                found.append(_step(handle, audited, before, after, rng if kill else None))
                report(str(found[-1]))
            audited.hurry()
            result = handle.wait(_PATIENCE_S)
        finally:
            handle.cancel()
            with suppress(hr.JobFailed, TimeoutError):
                handle.wait(_PATIENCE_S)
        verdict = audited.verdict()
    return {
        "bench": "rescales",
        "on": on,
        "seed": seed,
        "exactly_once": verdict.exact,
        "records": verdict.rows,
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "misplaced": verdict.misplaced,
        "examples": list(verdict.examples),
        "restarts": result.restarts,
        "checkpoints": result.checkpoints,
        "rescales": [
            {name: getattr(step, name) for name in Step.__dataclass_fields__} for step in found
        ],
    }


def _step(
    handle: hr.JobHandle, audited: AuditedJob, before: int, after: int, rng: random.Random | None
) -> Step:
    _await(lambda: handle.status().phase is Phase.RUNNING)
    completed = handle.status().completed
    _await(lambda: handle.status().completed > completed)
    began_ns = time.time_ns()
    early = rng is not None and rng.random() < _EARLY_SHARE
    killer = threading.Thread(target=_kill_starting, args=(rng or random.Random(),))
    if early:
        killer.start()
    rescaled: Rescaled = handle.rescale(after)
    if rng is not None and not early:
        _kill_running(handle, rng)
    _await(lambda: audited.first_rows_ns()[-1] > began_ns + rescaled.stop_ns)
    first_ns = next(n for n in audited.first_rows_ns() if n > began_ns + rescaled.stop_ns)
    if early:
        killer.join(_PATIENCE_S)
    taken = [c for c in handle.status().checkpoints if c.checkpoint == rescaled.checkpoint]
    return Step(
        before,
        after,
        _ms(rescaled.stop_ns),
        _ms(rescaled.duration_ns),
        _ms(first_ns - began_ns),
        sizes_of(taken[-1]).inflight_records,
        rng is not None,
    )


def _kill_starting(rng: random.Random) -> None:
    """Kill one of the processes that are started from now on."""
    old = set(descendants(os.getpid()))
    _await(lambda: _workers(old))
    time.sleep(rng.uniform(0.0, _EARLY_S))
    workers = sorted(_workers(old))
    if workers:
        with suppress(ProcessLookupError):
            os.kill(rng.choice(workers), signal.SIGKILL)


def _kill_running(handle: hr.JobHandle, rng: random.Random) -> None:
    """Kill a worker that has most of what was in flight yet to replay, and wait until that is noticed."""
    restarts = handle.status().restarts
    time.sleep(rng.uniform(0.0, _REPLAY_S))
    with suppress(ProcessLookupError):
        os.kill(rng.choice(sorted(handle.status().workers.values())), signal.SIGKILL)
    _await(lambda: handle.status().restarts > restarts)


def _workers(old: set[int]) -> set[int]:
    """Worker processes that are not `old`: Python processes that run a child's or a daemon's main program."""
    return {pid for pid in descendants(os.getpid()) if pid not in old and _is_worker(pid)}


def _is_worker(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"headrace.engine.local.child" in words or b"headrace.engine.spark.daemon" in words


def _await(condition: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"no progress for {_PATIENCE_S:.0f} s")
        time.sleep(_POLL_S)


def _ms(ns: int) -> float:
    return round(ns / 1e6, 1)


def main() -> int:
    """Run one campaign from the command line; exit code 3 if a record was lost, doubled or misplaced."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", default="2,3,1,4", help="parallelisms, such as 2,4")
    parser.add_argument("--on", choices=["processes", "spark"], default="processes")
    parser.add_argument("--mode", choices=["aligned", "unaligned"], default="unaligned")
    parser.add_argument("--kill", action="store_true", help="a worker in each recovery")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    given = parser.parse_args()

    def report(line: str) -> None:
        if not given.json:
            print(line, file=sys.stderr, flush=True)

    steps = [int(step) for step in given.steps.split(",")]
    figures = run(
        steps, on=given.on, kill=given.kill, seed=given.seed, mode=given.mode, report=report
    )
    print(json.dumps(figures, indent=None if given.json else 2))
    return 0 if figures["exactly_once"] else 3


if __name__ == "__main__":
    sys.exit(main())
