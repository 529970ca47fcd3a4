"""Kill campaign: is every record counted exactly once through SIGKILLs at random moments, and how
long does the job stand still?

Question: milliseconds from a kill to its detection, and from detection to the first record handled
by the next attempt, p50 and maximum of all kills; records lost or doubled in all. The job runs on a
standalone Spark cluster of two workers, and a Python worker, an executor and a whole node are
killed in turn; a node comes back once the job has recovered. The next kill comes 0.2 to 3 s after
that, so many come before the first checkpoint of the attempt.

Noise: on a machine with few cores the starting JVMs of killed executors and nodes compete with the
recovery.

    python -m headrace.bench.kills --kills 30 --on standalone --json
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import headrace as hr
from headrace.engine.coordinator.coordinator_events import NoticeKind
from headrace.engine.coordinator.rules import Phase
from headrace.engine.drivers.coordinator_driver import Status

from .audit import AuditedJob, Verdict
from .measure import percentile
from .victims import Ground, Place, open_ground

_POLL_S = 0.004
#: A job that has not come back after this long does not.
_PATIENCE_S = 90.0
_PAUSE_S = (0.2, 3.0)
_RATE_PER_S = 4000.0
#: Input for so many seconds per kill; what is left after the last kill is made at once.
_INPUT_S_PER_KILL = 12.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """One kill and what followed; times in milliseconds, each from the moment of detection but the
    first.

    Attributes:
        detection_ms: from the kill until the coordinator knew.
        registered_ms: until all workers were there again.
        running_ms: until all of them were told to run.
        first_row_ms: until the first record was handled.
    """

    kind: str
    detection_ms: float
    registered_ms: float
    running_ms: float
    first_row_ms: float


def run(
    *,
    kills: int = 30,
    on: Place = "standalone",
    seed: int = 0,
    kinds: Sequence[str] = (),
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Run one campaign. Returns one flat object: `kills`, `lost`, `doubled`, `detection_p50_ms`,
    `recovery_p50_ms`, ...

    Args:
        seed: of the moments and the victims.
        kinds: what to kill in turn; none: what the place proposes.
        report: told about each kill.
    """
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="headrace-kills-") as name:
        folder = Path(name)
        rows = int(_RATE_PER_S * (20 + _INPUT_S_PER_KILL * kills))
        audited = AuditedJob(folder / "job", rows, _RATE_PER_S)
        with open_ground(on, folder / "spark", rng) as ground:
            handle = audited.build(restart=hr.Restart(attempts=100)).start(**ground.runner)
            try:
                turns = list(itertools.islice(itertools.cycle(kinds or ground.turns), kills))
                recoveries = _campaign(handle, audited, ground, turns, rng, report)
                audited.hurry()
                result = handle.wait(_PATIENCE_S)
            finally:
                handle.cancel()
        return {
            "bench": "kills",
            "on": on,
            "seed": seed,
            "kills": kills,
            **_told(audited.verdict()),
            **_times(recoveries),
            "restarts": result.restarts,
            "checkpoints": result.checkpoints,
        }


def _campaign(
    handle: hr.JobHandle,
    audited: AuditedJob,
    ground: Ground,
    turns: Sequence[str],
    rng: random.Random,
    report: Callable[[str], None],
) -> list[Recovery]:
    _wait(handle, lambda status: status.phase is Phase.RUNNING)
    recoveries = []
    for number, kind in enumerate(turns, start=1):
        time.sleep(rng.uniform(*_PAUSE_S))
        recovery = _kill(handle, audited, ground, kind)
        recoveries.append(recovery)
        report(f"{number}/{len(turns)} {recovery}")
        ground.mend()
    return recoveries


def _kill(handle: hr.JobHandle, audited: AuditedJob, ground: Ground, kind: str) -> Recovery:
    before = handle.status()
    seen = before.notices[-1][0] if before.notices else 0
    killed_ns = time.time_ns()
    ground.kinds[kind](handle)
    _wait(handle, lambda status: _noticed(status, seen, NoticeKind.WORKER_LOST))
    detected_ns = time.time_ns()
    _wait(handle, lambda status: status.phase in (Phase.DEPLOYING, Phase.RUNNING))
    registered_ns = time.time_ns()
    _wait(handle, lambda status: status.phase is Phase.RUNNING)
    running_ns = time.time_ns()
    _wait(handle, lambda _: audited.first_rows_ns()[-1:] > [detected_ns])
    first_row_ns = next(mark for mark in audited.first_rows_ns() if mark > detected_ns)
    since = [round((ns - detected_ns) / 1e6, 1) for ns in (registered_ns, running_ns, first_row_ns)]
    return Recovery(kind, round((detected_ns - killed_ns) / 1e6, 1), *since)


def _noticed(status: Status, seen: int, kind: NoticeKind) -> bool:
    return any(number > seen and notice.kind is kind for number, notice in status.notices)


def _wait(handle: hr.JobHandle, condition: Callable[[Status], bool]) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not condition(status := handle.status()):
        if status.phase is Phase.ENDED:
            handle.wait(10.0)
            raise RuntimeError("the job ended before its campaign: give it more input")
        if time.monotonic() > deadline_s:
            told = [notice.text for _, notice in status.notices[-5:]]
            raise RuntimeError(f"no progress for {_PATIENCE_S:.0f} s in {status.phase}: {told}")
        time.sleep(_POLL_S)


def _told(verdict: Verdict) -> dict[str, Any]:
    return {
        "exactly_once": verdict.exact,
        "records": verdict.rows,
        "lost": verdict.lost,
        "doubled": verdict.doubled,
        "foreign": verdict.foreign,
        "misplaced": verdict.misplaced,
    }


def _times(recoveries: Sequence[Recovery]) -> dict[str, Any]:
    times: dict[str, Any] = {}
    for name, attribute in (
        ("detection", "detection_ms"),
        ("registered", "registered_ms"),
        ("running", "running_ms"),
        ("recovery", "first_row_ms"),
    ):
        ordered = sorted(getattr(recovery, attribute) for recovery in recoveries)
        times[f"{name}_p50_ms"] = percentile(ordered, 50)
        times[f"{name}_max_ms"] = ordered[-1] if ordered else None
    for kind in dict.fromkeys(recovery.kind for recovery in recoveries):
        ordered = sorted(r.first_row_ms for r in recoveries if r.kind == kind)
        times[f"recovery_p50_ms_{kind.replace(' ', '_')}"] = percentile(ordered, 50)
    return times


def main() -> int:
    """Run one campaign from the command line; exit code 3 if a record was lost, doubled or
    misplaced.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--on", choices=get_args(Place), default="standalone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", help="what to kill, instead of all in turn")
    parser.add_argument("--json", action="store_true", help="print one JSON object only")
    given = parser.parse_args()

    def report(line: str) -> None:
        if not given.json:
            print(line, file=sys.stderr, flush=True)

    figures = run(
        kills=given.kills, on=given.on, seed=given.seed, kinds=given.kind or (), report=report
    )
    print(json.dumps(figures, indent=None if given.json else 2))
    return 0 if figures["exactly_once"] else 3


if __name__ == "__main__":
    sys.exit(main())
