"""Windows, joins, timers and connect under kills and rescales: do they put out what Spark SQL
computes from the same input?

Question: rows that a streaming job with tumbling, sliding and session windows, full outer joins by
interval and in all three kinds of windows, timers and a broadcast connect puts out too many or too
few, compared with a batch computation by Spark, through SIGKILLs of workers and rescales. Records
are out of order within each partition of the input, and partitions are apart in event time; none is
late for its partition, so none may be dropped. A slow stage before the windows keeps queues full,
so barriers, watermarks and records in flight are in every unaligned checkpoint.

    python -m headrace.bench.relations --steps 2,3,1 --kills 2 --json
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import SparkSession

import headrace as hr
from headrace.engine.coordinator.rules import Phase
from headrace.recovery.sizes import sizes_of

from .relations_job import PAUSE_S, RelationsJob
from .relations_judge import differences
from .rescales import queued_bytes

_POLL_S = 0.004
_PATIENCE_S = 300.0
#: How much more the source makes than the slow stage takes.
_LOAD = 1.5
#: Input for the slow stage at the highest parallelism, in seconds for each kill or rescale, and
#: before the first.
_INPUT_S = 5.0
#: Aligned checkpoints, some of which are waited for, take as long as the queues: so those are
#: short.
_NETWORK = {"unaligned": hr.Network(), "aligned": hr.Network(buffer="4KiB", window="8KiB")}
#: In the queues of one subtask, before anything befalls the job.
_LOADED_BYTES = 6 << 10


@dataclass(frozen=True, slots=True)
class Blow:
    """What befell the job: a kill, or a rescale with a kill once it runs again.

    `inflight_records`: in the checkpoint before.
    """

    what: str
    inflight_records: int


def run(
    steps: Sequence[int] = (2, 3, 1),
    *,
    kills: int = 1,
    on: Literal["processes", "threads", "spark"] = "processes",
    seed: int = 0,
    mode: Literal["aligned", "unaligned"] = "unaligned",
    backend: Literal["heap", "rocksdb"] = "heap",
    spark: SparkSession | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Start at the first of `steps`, kill workers, rescale to each of the others with a kill in
    each recovery, and compare.

    Args:
        kills: of a worker at each parallelism.
        spark: judges, and with `on="spark"` runs the job; None: one is started for each.

    Returns: one flat object; `exactly_once`, and `wrong_OUTPUT` for each output.
    """
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="headrace-relations-") as name:
        taken_per_s = max(steps) / PAUSE_S
        seconds = _INPUT_S * (kills * len(steps) + len(steps))
        relations = RelationsJob(
            Path(name) / "job", int(taken_per_s * seconds), _LOAD * taken_per_s
        )
        checkpoints = hr.Checkpoints(f"{name}/checkpoints", "0.3s", mode)
        job = relations.build(
            parallelism=steps[0],
            checkpoints=checkpoints,
            restart=hr.Restart(attempts=100),
            state=hr.State(backend),
            network=_NETWORK[mode],
        )
        handle = job.start(on, spark=spark if on == "spark" else None)
        blows = []
        try:
            for number, parallelism in enumerate(steps):
                if number:
                    blows.append(_rescaled(handle, rng, steps[number - 1], parallelism))
                blows += [_killed(handle, rng) for _ in range(kills)]
                report(str(blows))
            # All rules are known by then, and records of all keys come later.
            _await_checkpoints(handle, 4)
            relations.hurry()
            result = handle.wait(_PATIENCE_S)
        finally:
            handle.cancel()
            with suppress(hr.JobFailed, TimeoutError):
                handle.wait(_PATIENCE_S)
        wrong = differences(relations, spark)
    return {
        "bench": "relations",
        "on": on,
        "seed": seed,
        "mode": mode,
        "backend": backend,
        "exactly_once": not any(wrong.values()),
        **{f"wrong_{name}": count for name, count in wrong.items()},
        "restarts": result.restarts,
        "checkpoints": result.checkpoints,
        "blows": [[blow.what, blow.inflight_records] for blow in blows],
    }


def _killed(handle: hr.JobHandle, rng: random.Random) -> Blow:
    """Kill a worker when so many more checkpoints were complete, the last of them with load."""
    _await_checkpoints(handle, rng.randint(1, 2))
    _await(handle, lambda: queued_bytes(handle) >= _LOADED_BYTES)
    inflight = _inflight(handle)
    _kill(handle, rng)
    return Blow("kill", inflight)


def _rescaled(handle: hr.JobHandle, rng: random.Random, before: int, after: int) -> Blow:
    """Rescale, and kill a worker as soon as the job runs again: it has most of what was in flight
    yet to replay.
    """
    _await(handle, lambda: queued_bytes(handle) >= _LOADED_BYTES)
    rescaled = handle.rescale(after)
    _kill(handle, rng)
    taken = [c for c in handle.status().checkpoints if c.checkpoint == rescaled.checkpoint]
    return Blow(f"{before} to {after}", sizes_of(taken[-1]).inflight_records)


def _inflight(handle: hr.JobHandle) -> int:
    """Records in flight at the last checkpoint."""
    taken = handle.status().checkpoints
    return sizes_of(taken[-1]).inflight_records if taken else 0


def _await_checkpoints(handle: hr.JobHandle, more: int) -> None:
    completed = handle.status().completed + more
    _await(handle, lambda: handle.status().completed >= completed)


def _kill(handle: hr.JobHandle, rng: random.Random) -> None:
    status = handle.status()
    with suppress(ProcessLookupError):
        os.kill(rng.choice(sorted(status.workers.values())), signal.SIGKILL)
    _await(handle, lambda: handle.status().restarts > status.restarts)
    _await(handle, lambda: handle.status().phase is Phase.RUNNING)


def _await(handle: hr.JobHandle, condition: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition():
        if handle.status().phase is Phase.ENDED:
            raise RuntimeError("the job ended before its campaign: give it more input")
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"no progress for {_PATIENCE_S:.0f} s")
        time.sleep(_POLL_S)


def main() -> int:
    """Run one campaign from the command line; exit code 3 if an output is not that of the batch
    computation.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", default="2,3,1", help="parallelisms, such as 2,4")
    parser.add_argument("--kills", type=int, default=1, help="at each parallelism")
    parser.add_argument("--on", choices=["processes", "spark"], default="processes")
    parser.add_argument(
        "--mode", choices=["aligned", "unaligned"], default="unaligned", help="of checkpoints"
    )
    parser.add_argument("--backend", choices=["heap", "rocksdb"], default="heap")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    given = vars(parser.parse_args())
    quiet = given.pop("json")

    def report(line: str) -> None:
        if not quiet:
            print(line, file=sys.stderr, flush=True)

    steps = [int(step) for step in given.pop("steps").split(",")]
    figures = run(steps, report=report, **given)
    print(json.dumps(figures, indent=None if quiet else 2))
    return 0 if figures["exactly_once"] else 3


if __name__ == "__main__":
    sys.exit(main())
