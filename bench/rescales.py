"""Rescale campaign: is every record counted exactly once, in order, through rescales under load with a SIGKILL in each recovery?

Question: milliseconds from the request until the job has stopped, runs again, and handles its first record at the new parallelism; in the same
run records lost, doubled or out of order in all. The stateful stage takes half of what the source makes even at the highest parallelism, so its
queues are full and the checkpoint holds records in flight. Order is checked per key and source partition.

Each kill falls into the recovery: the victim is the process of a subtask that has just said that its state is back, that it handles its first
record, or that it has replayed some (`audit.Moment`). A kill that no attempt fails of is an error.

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
from typing import Any, Literal, get_args

import headrace as hr
from headrace.engine.api.handle import Rescaled
from headrace.engine.coordination.rules import Phase
from headrace.recovery.sizes import sizes_of

from .audit import AuditedJob, Moment

Place = Literal["processes", "threads", "spark"]

_POLL_S = 0.004
_PATIENCE_S = 90.0
_PARTITIONS = 12
#: What a record costs in a subtask of the stateful stage, and how much more than that the source makes for as many subtasks as there ever are.
_PAUSE_S = 0.001
_LOAD = 2.0
_INPUT_S_PER_STEP = 4.0
#: Some hundreds of records.
_LOADED_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Step:
    """One rescale; times in milliseconds from the request.

    Attributes:
        stopped_ms: until the job had stopped, with its checkpoint.
        running_ms: until an attempt ran; `first_row_ms`: until it handled its first record.
        inflight_records: what the checkpoint held.
        killed: how far the worker had come in the recovery that was killed there; None: none was.
    """

    before: int
    after: int
    stopped_ms: float
    running_ms: float
    first_row_ms: float
    inflight_records: int
    killed: Moment | None


def run(
    steps: Sequence[int],
    *,
    on: Place = "processes",
    kill: bool = True,
    at: Moment | None = None,
    seed: int = 0,
    mode: Literal["aligned", "unaligned"] = "unaligned",
    report: Callable[[str], None] = lambda line: None,
    **runner: Any,
) -> dict[str, Any]:
    """Start at the first of `steps` and rescale to each of the others. Returns one flat object: `exactly_once`, `lost`, `rescales`, ...

    Args:
        kill: kill a worker in each recovery.
        at: how far it has come then; None: drawn for each step.
        runner: more arguments of `Job.start`.
    """
    rng = random.Random(seed)
    rate_per_s = _LOAD * max(steps) / _PAUSE_S
    with tempfile.TemporaryDirectory(prefix="headrace-rescales-") as name:
        audited = AuditedJob(
            Path(name),
            int(rate_per_s * (3 + _INPUT_S_PER_STEP * len(steps))),
            rate_per_s,
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
                moment = (at or rng.choice(get_args(Moment))) if kill else None
                found.append(_step(handle, audited, before, after, moment))
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
    handle: hr.JobHandle, audited: AuditedJob, before: int, after: int, moment: Moment | None
) -> Step:
    _await(lambda: handle.status().phase is Phase.RUNNING)
    restarts = handle.status().restarts
    _await(lambda: queued_bytes(handle) >= _LOADED_BYTES)
    began_ns = time.time_ns()
    killer = threading.Thread(target=_kill, args=(audited, moment, began_ns))
    if moment is not None:
        killer.start()
    rescaled: Rescaled = handle.rescale(after)
    if moment is not None:
        killer.join(_PATIENCE_S)
        _await(lambda: handle.status().restarts > restarts)
    _await(lambda: audited.first_rows_ns()[-1] > began_ns + rescaled.stop_ns)
    first_ns = next(n for n in audited.first_rows_ns() if n > began_ns + rescaled.stop_ns)
    taken = [c for c in handle.status().checkpoints if c.checkpoint == rescaled.checkpoint]
    return Step(
        before,
        after,
        _ms(rescaled.stop_ns),
        _ms(rescaled.duration_ns),
        _ms(first_ns - began_ns),
        sizes_of(taken[-1]).inflight_records,
        moment,
    )


def queued_bytes(handle: hr.JobHandle) -> int:
    """What waits before the subtask that has most. Not a checkpoint: an aligned one would take as long as the queues."""
    return max((n.queued_bytes for n in handle.status().numbers.values()), default=0)


def _kill(audited: AuditedJob, moment: Moment, since_ns: int) -> None:
    """Kill the worker of the first subtask that comes to `moment` from now on."""

    def come() -> list[int]:
        return [pid for ns, pid in audited.marks(moment) if ns > since_ns]

    _await(come)
    with suppress(ProcessLookupError):
        os.kill(come()[0], signal.SIGKILL)


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
    parser.add_argument("--at", choices=get_args(Moment), help="when, instead of at any of these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    given = parser.parse_args()

    def report(line: str) -> None:
        if not given.json:
            print(line, file=sys.stderr, flush=True)

    steps = [int(step) for step in given.steps.split(",")]
    figures = run(
        steps,
        on=given.on,
        kill=given.kill,
        at=given.at,
        seed=given.seed,
        mode=given.mode,
        report=report,
    )
    print(json.dumps(figures, indent=None if given.json else 2))
    return 0 if figures["exactly_once"] else 3


if __name__ == "__main__":
    sys.exit(main())
