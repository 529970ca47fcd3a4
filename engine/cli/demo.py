"""`headrace demo`: the main promise, tried out on this machine in less than a minute and a half.

The demonstration counts the identifiers in the source text of Python's own standard library, real
text that every machine has, on embedded Spark. Halfway it kills one of its own workers with
SIGKILL. In the end it compares the output, word by word, with a plain count of the same files.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path

from ..contract.errors import UserError
from ..contract.execution import ExecutionPlan
from ..contract.numbers import seconds, size
from ..contract.outcomes import JobResult
from ..coordinator.rules import Phase
from ..drivers.status import Status
from .follow import announce, follow, listening, start
from .identifiers import SLOW, TOTALS, identifiers_job, plain_count, written
from .reporter import Reporter, open_reporter

#: Duration of the slow stage in all, whatever the size of the library and the number of words.
_SLOW_S = 18.0
_VICTIM = 1
_PROBLEM = 3
#: Folders in which others put their packages.
_FOREIGN = {"site-packages", "dist-packages"}


class Killer:
    """Kills a worker when half of the words have passed the slow stage, and times the recovery."""

    def __init__(self, plan: ExecutionPlan, words: int, reporter: Reporter) -> None:
        self._half = words // 2
        self._slow = _task_of(plan, SLOW)
        self._totals = _task_of(plan, TOTALS)
        self._reporter = reporter
        self._killed_ns: int | None = None
        self._epoch = 0
        #: From the kill to the first word counted again; None as long as there is none.
        self.recovery_ns: int | None = None

    def watch(self, status: Status) -> None:
        """Look at the job; kill, or note that it has recovered."""
        if status.phase is not Phase.RUNNING:
            return
        if self._killed_ns is None:
            if _rows_in(status, self._slow) >= self._half:
                self._kill(status)
        elif (
            self.recovery_ns is None
            and status.epoch > self._epoch
            and _rows_in(status, self._totals)
        ):
            self._recovered()

    def _kill(self, status: Status) -> None:
        pid = status.workers[_VICTIM]
        self._reporter.event(
            "killing",
            f"Halfway: killing worker {_VICTIM}, process {pid}, with SIGKILL.",
            worker=_VICTIM,
            pid=pid,
        )
        self._epoch, self._killed_ns = status.epoch, time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)

    def _recovered(self) -> None:
        assert self._killed_ns is not None, "nobody was killed"
        self.recovery_ns = time.monotonic_ns() - self._killed_ns
        self._reporter.event(
            "recovered",
            f"Counting again, {seconds(self.recovery_ns)} after the kill.",
            recovery_ms=self.recovery_ns // 1_000_000,
        )


def run_demo(*, as_json: bool) -> int:
    """Run the demonstration. Returns the exit code: 3 if the output differs from a plain count."""
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        return _run(Path(folder), as_json=as_json)


def _run(folder: Path, *, as_json: bool) -> int:
    library, output = folder / "library", folder / "out"
    files, size_bytes = gather(library)
    began_ns = time.monotonic_ns()
    expected = plain_count(library)
    plain_ns = time.monotonic_ns() - began_ns
    job = identifiers_job(
        library, output, folder / "checkpoints", pause_s=pause_s(expected.total())
    )
    plan = job.plan()
    reporter = open_reporter(as_json=as_json)
    reporter.event(
        "input",
        f"The text: {files:,} files of Python {sys.version_info[0]}.{sys.version_info[1]}'s"
        " standard library, "
        f"{size(size_bytes)}.\nA plain count, to compare with: {expected.total():,} words, "
        f"{len(expected):,} different ones, in {seconds(plain_ns)}.\nNow as a job, with a slow"
        " stage:",
        files=files,
        bytes=size_bytes,
        words=expected.total(),
        distinct=len(expected),
    )
    announce(job, plan, job.run_options(), reporter)
    killer = Killer(plan, expected.total(), reporter)
    with listening() as interrupts:
        handle = start(job, job.run_options())
        result = follow(handle, reporter, interrupts, durable=True, watch=killer.watch)
    if interrupts.count:
        return interrupts.exit_code
    return conclude(expected, written(output), result, killer.recovery_ns, reporter)


def gather(library: Path) -> tuple[int, int]:
    """Copy the standard library's Python files, without packages installed into it. Returns their
    number and bytes.

    A copy with names of its own, since the file source takes names that begin with an underscore
    for hidden ones.
    """
    library.mkdir()
    source = Path(sysconfig.get_paths()["stdlib"])
    sizes = []
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).parts
        if _FOREIGN.isdisjoint(parts):
            copy = shutil.copyfile(path, library / ".".join(("python", *parts)))
            sizes.append(copy.stat().st_size)
    if not sizes:
        raise UserError(
            f"this Python has no source text of its library in {source}; the demo needs one that"
            " has"
        )
    return len(sizes), sum(sizes)


def pause_s(words: int) -> float:
    """Return the pause for each word that makes two slow subtasks take the demonstration's time."""
    return _SLOW_S * 2 / max(1, words)


def conclude(
    expected: Counter[str],
    found: Counter[str],
    result: JobResult,
    recovery_ns: int | None,
    reporter: Reporter,
) -> int:
    """Compare and print the one line.

    A run without a kill has shown nothing: that is a problem too.
    """
    missing = (expected - found).total()
    extra = (found - expected).total()
    recovered = (
        "NO recovery seen"
        if recovery_ns is None
        else f"recovered {seconds(recovery_ns)} after the kill"
    )
    reporter.event(
        "result",
        f"{found.total():,} words, {result.checkpoints} checkpoints, {recovered}, {missing}"
        f" missing, {extra} extra",
        words=found.total(),
        distinct=len(found),
        checkpoints=result.checkpoints,
        restarts=result.restarts,
        recovery_ms=None if recovery_ns is None else recovery_ns // 1_000_000,
        duration_s=round(result.duration_ns / 1e9, 3),
        missing=missing,
        extra=extra,
    )
    return 0 if recovery_ns is not None and missing == extra == 0 else _PROBLEM


def _task_of(plan: ExecutionPlan, operator: str) -> int:
    return next(task.index for task in plan.tasks if operator in (o.name for o in task.operators))


def _rows_in(status: Status, task: int) -> int:
    return sum(numbers.rows_in for key, numbers in status.numbers.items() if key[0] == task)
