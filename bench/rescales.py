"""Rescale campaign: is every record counted exactly once, in order, through rescales under load
with SIGKILLs in each recovery?

Question: milliseconds from the request until the job has stopped, runs again, and handles its first
record at the new parallelism; in the same run records lost, doubled or out of order in all, and
what each attempt started from. The stateful stage takes half of what the source makes even at the
highest parallelism, so its queues are full and the checkpoint holds records in flight. Order is
checked per key and source partition.

The first kill falls into the recovery that a rescale is, and each further one into the recovery of
the kill before. The victim is the process of a subtask that has just said that its state is back,
that it handles its first record, or that it has replayed some (`audit.Moment`), or any once the
attempt's first checkpoint is complete ("checkpointed"). A kill that no attempt fails of is an
error, and so is an attempt that does not start from the newest complete checkpoint: without that,
failures in a row would make no progress.

    python -m headrace.bench.rescales --steps 2,3,1,4 --kills-per-recovery 3 --on processes --json
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import headrace as hr
from headrace.engine.contract.outcomes import Rescaled
from headrace.recovery.sizes import sizes_of

from .audit import AuditedJob
from .killer import PAUSE_S, POINTS, Killer, Point, wait_for
from .restores import Restore, restores

Place = Literal["processes", "threads", "spark"]

_PATIENCE_S = 90.0
#: All that is left is worked on at the end.
_END_S = 300.0
_PARTITIONS = 12
#: What a record costs in a subtask of the stateful stage, and how much more than that the source
#: makes for as many subtasks as there ever are.
_PAUSE_S = 0.001
_LOAD = 2.0
_INPUT_S_PER_STEP = 4.0
_INPUT_S_PER_KILL = 2.0
#: Some hundreds of records.
_LOADED_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Step:
    """One rescale and the kills in its recovery; times in milliseconds from the request.

    Attributes:
        stopped_ms: until the job had stopped, with its checkpoint.
        running_ms: until an attempt ran; `first_row_ms`: until it handled its first record.
        inflight_records: what the checkpoint held.
        kills: when each came.
        attempts: what the attempts started from: the rescale's own, and one after each kill.
    """

    before: int
    after: int
    stopped_ms: float
    running_ms: float
    first_row_ms: float
    inflight_records: int
    kills: tuple[Point, ...]
    attempts: tuple[Restore, ...]


def run(
    steps: Sequence[int],
    *,
    on: Place = "processes",
    kills: int = 1,
    at: Sequence[Point] = (),
    seed: int = 0,
    mode: Literal["aligned", "unaligned"] = "unaligned",
    state: Literal["heap", "rocksdb"] = "heap",
    report: Callable[[str], None] = lambda line: None,
    **runner: Any,
) -> dict[str, Any]:
    """Start at the first of `steps` and rescale to each of the others. Returns one flat object:
    `exactly_once`, `lost`, `rescales`, ...

    Args:
        kills: in each recovery.
        at: when these come, in turn; none: drawn for each.
        runner: more arguments of `Job.start`.
    """
    rng = random.Random(seed)
    rate_per_s = _LOAD * max(steps) / _PAUSE_S
    with tempfile.TemporaryDirectory(prefix="headrace-rescales-") as name:
        audited = AuditedJob(
            Path(name),
            int(rate_per_s * (3 + (_INPUT_S_PER_STEP + _INPUT_S_PER_KILL * kills) * len(steps))),
            rate_per_s,
            parallelism=steps[0],
            interval="0.5s",
            partitions=_PARTITIONS,
            pause_s=_PAUSE_S,
        )
        job = audited.build(
            checkpoints=hr.Checkpoints(str(audited.checkpoints), audited.interval, mode),
            restart=hr.Restart(attempts=100, backoff=PAUSE_S, max_backoff=PAUSE_S),
            state=hr.State(state, directory=str(Path(name, "state"))),
        )
        handle = job.start(on, **runner)
        try:
            found: list[Step] = []
            since_ns = 0
            for before, after in itertools.pairwise(steps):
                points = [at[i % len(at)] if at else rng.choice(POINTS) for i in range(kills)]
                wait_for(partial(_replays_are_told, audited, before, since_ns))
                step, since_ns = _step(handle, audited, before, after, points)
                found.append(step)
                report(str(step))
            audited.hurry()
            result = handle.wait(_END_S)
        finally:
            handle.cancel()
            with suppress(hr.JobFailed, TimeoutError):
                handle.wait(_PATIENCE_S)
        verdict = audited.verdict()
    return {
        "bench": "rescales",
        "on": on,
        "mode": mode,
        "state": state,
        "seed": seed,
        "exactly_once": verdict.exact,
        "records": verdict.rows,
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "misplaced": verdict.misplaced,
        "examples": list(verdict.examples),
        "stale_restores": sum(a.stale for step in found for a in step.attempts),
        "restarts": result.restarts,
        "checkpoints": result.checkpoints,
        "rescales": [asdict(step) for step in found],
    }


def _replays_are_told(audited: AuditedJob, subtasks: int, since_ns: int) -> bool:
    """All subtasks of the attempt that runs have worked on some records."""
    return sum(m.opened_ns > since_ns for m in audited.marks("replaying")) >= subtasks


def _step(
    handle: hr.JobHandle, audited: AuditedJob, before: int, after: int, points: Sequence[Point]
) -> tuple[Step, int]:
    """Rescale and kill.

    Returns also after what time (wall) the subtasks that now run were opened.
    """
    wait_for(lambda: queued_bytes(handle) >= _LOADED_BYTES)
    told, began_ns = handle.status().notices[-1][0], time.time_ns()
    killer = Killer(handle, audited, points, began_ns)
    killer.start()
    rescaled: Rescaled = handle.rescale(after)
    killer.end()
    stopped_ns = began_ns + rescaled.stop_ns
    first_ns = wait_for(lambda: [ns for ns in audited.first_rows_ns() if ns > stopped_ns])[0]
    status = handle.status()
    taken = [c for c in status.checkpoints if c.checkpoint == rescaled.checkpoint]
    step = Step(
        before,
        after,
        _ms(rescaled.stop_ns),
        _ms(rescaled.duration_ns),
        _ms(first_ns - began_ns),
        sizes_of(taken[-1]).inflight_records,
        tuple(points),
        tuple(restores(status, told)),
    )
    return step, killer.since_ns


def queued_bytes(handle: hr.JobHandle) -> int:
    """What waits before the subtask that has most.

    Not a checkpoint: an aligned one would take as long as the queues.
    """
    return max((n.queued_bytes for n in handle.status().numbers.values()), default=0)


def _ms(ns: int) -> float:
    return round(ns / 1e6, 1)


def main() -> int:
    """Run one campaign from the command line; exit code 3 if a record was lost, doubled or
    misplaced, or a restore stale.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", default="2,3,1,4", help="parallelisms, such as 2,4")
    parser.add_argument("--on", choices=["processes", "spark"], default="processes")
    parser.add_argument("--master", help="Spark master, such as local[7,64]")
    parser.add_argument("--mode", choices=["aligned", "unaligned"], default="unaligned")
    parser.add_argument("--state", choices=["heap", "rocksdb"], default="heap")
    parser.add_argument(
        "--kills-per-recovery", type=int, default=0, help="each within the recovery of the last"
    )
    parser.add_argument("--at", choices=POINTS, action="append", help="when, in turn; else at any")
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
        kills=given.kills_per_recovery,
        at=given.at or (),
        seed=given.seed,
        mode=given.mode,
        state=given.state,
        report=report,
        **({} if given.master is None else {"master": given.master}),
    )
    print(json.dumps(figures, indent=None if given.json else 2))
    return 0 if figures["exactly_once"] and not figures["stale_restores"] else 3


if __name__ == "__main__":
    sys.exit(main())
