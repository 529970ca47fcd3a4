"""`headrace explain`, `status` and `jobs`: look at jobs that run in other processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from rich.console import Console

from ..contract.errors import JobUnreachable, UserError
from ..control.client import find, jobs, look_at
from ..control.folder import RunningFile
from ..observation.observed import Observation
from .live import LiveReporter, view
from .reporter import print_object
from .streams import give
from .tables import print_table

_WRONG = 3
_EVERY_S = 1.0


def explain(job: str | None, *, pid: int | None, address: str | None, as_json: bool) -> int:
    """Print what holds a job back; 3 if something is wrong. Raises: UserError, JobUnreachable."""
    observation = look_at(find(job, pid=pid, address=address))
    if as_json:
        finding = msgspec.to_builtins(observation.finding)
        print_object({"job": observation.job, "phase": observation.phase, **finding})
    else:
        give(observation.finding.sentence)
    return _code(observation)


def status(
    job: str | None, *, watch: bool, pid: int | None, address: str | None, as_json: bool
) -> int:
    """Print how a job stands; with `watch` again and again until it has ended.

    Returns 3 if something is wrong. Raises: UserError, JobUnreachable.
    """
    found = find(job, pid=pid, address=address)
    observation = look_at(found)
    if watch:
        return _code(_watched(found, observation, as_json=as_json))
    if as_json:
        print_object(msgspec.to_builtins(observation))
    else:
        Console().print(view(observation))
    return _code(observation)


def listing(*, address: str | None, as_json: bool) -> int:
    """Print the jobs that run here, each with its sentence. Raises: UserError."""
    rows = [_row(found) for found in jobs(address)]
    if as_json:
        for row in rows:
            print_object(row)
    elif not rows:
        give("no job runs here")
    else:
        columns = ("job", "process", "phase", "runner", "sentence")
        print_table(columns, ([str(row[key]) for key in _KEYS] for row in rows))
    return 0


_KEYS = ("job", "pid", "phase", "runner", "sentence")


def _row(found: RunningFile) -> dict[str, Any]:
    row: dict[str, Any] = {"job": found.job, "pid": found.pid}
    try:
        observation = look_at(found)
    except JobUnreachable as reason:
        return row | {"phase": "unreachable", "runner": "", "sentence": str(reason)}
    finding = observation.finding
    return row | {
        "phase": observation.phase,
        "runner": observation.runner,
        "sentence": finding.sentence,
        "severity": finding.severity,
        "cause": finding.cause,
    }


def _watched(found: RunningFile, first: Observation, *, as_json: bool) -> Observation:
    """Show the job until it has ended; return the last look."""
    live = None if as_json else LiveReporter(Console())
    last = first
    try:
        for last in _looks(found, first):
            if live is None:
                print_object(msgspec.to_builtins(last))
            else:
                live.look(last, time.monotonic_ns())
    finally:
        if live is not None:
            live.close()
    if not as_json:
        give(f"job {last.job} has ended")
    return last


def _looks(
    found: RunningFile, first: Observation, sleep: Callable[[float], None] = time.sleep
) -> Iterable[Observation]:
    """Look once a second, for as long as the job runs."""
    yield first
    while True:
        sleep(_EVERY_S)
        try:
            yield look_at(found)
        except (JobUnreachable, UserError):
            return


def _code(observation: Observation) -> int:
    return _WRONG if observation.finding.severity == "wrong" else 0
