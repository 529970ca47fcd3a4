"""`headrace run`: load the job, lay the command line's settings over it, follow it to its end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..contract.errors import JobFailed, UserError
from ..contract.numbers import counted, seconds
from ..contract.outcomes import JobResult
from ..session.settings import find_settings_file, layered
from .follow import announce, follow, listening, start, tell_page
from .reporter import Reporter, open_reporter, print_object
from .streams import give
from .target import load_job

#: Rows of a collect sink turned into Python objects at a time.
_ROWS = 10_000


def run(target: str, settings: Mapping[str, str], *, as_json: bool) -> int:
    """Run the job that `target` names to its end.

    Args:
        settings: {key: text} of the command line, the strongest layer of options.

    Returns: the exit code. Raises: HeadraceError.
    """
    job = load_job(target)
    options, _ = layered(job.run_options(), settings, os.environ, find_settings_file(Path.cwd()))
    plan = job.plan_with(options)
    reporter = open_reporter(as_json=as_json)
    announce(job, plan, options, reporter)
    began_ns = time.monotonic_ns()
    with listening() as interrupts:
        handle = start(job, options)
        tell_page(handle, reporter)
        try:
            result = follow(handle, reporter, interrupts, durable=options.checkpoints is not None)
        except JobFailed as failure:
            conclude_failed(job.name, failure, time.monotonic_ns() - began_ns, reporter)
            raise
    _give_out(result, as_json=as_json)
    conclude(result, reporter)
    handle.close_page()
    stopped = result.outcome == "stopped" and interrupts.count > 0
    return interrupts.exit_code if stopped else 0


def parsed(assignments: Sequence[str]) -> dict[str, str]:
    """Turn `--set key=value` into {key: value}. Raises: UserError for what is no assignment."""
    settings = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise UserError(f"--set takes key=value, got {assignment!r}")
        settings[key] = value
    return settings


def conclude_failed(job: str, failure: JobFailed, duration_ns: int, reporter: Reporter) -> None:
    """Say that the job failed; the reason follows as the command's own last word."""
    reporter.event(
        "result",
        f"job {job} failed after {seconds(duration_ns)}",
        job=job,
        outcome="failed",
        duration_s=round(duration_ns / 1e9, 3),
        reason=str(failure).partition("\n")[0],
    )


def conclude(result: JobResult, reporter: Reporter) -> None:
    """Say how the job ended."""
    outcome = result.outcome
    parts = [counted(result.checkpoints, "checkpoint"), counted(result.restarts, "restart")]
    if result.last_checkpoint is not None and outcome == "stopped":
        parts.append(f"the last is chk-{result.last_checkpoint}")
    if result.savepoint is not None:
        parts.append(f"the savepoint is {result.savepoint}")
    text = f"job {result.job} {outcome} after {seconds(result.duration_ns)}: {', '.join(parts)}"
    reporter.event(
        "result",
        text,
        job=result.job,
        outcome=outcome,
        duration_s=round(result.duration_ns / 1e9, 3),
        checkpoints=result.checkpoints,
        restarts=result.restarts,
        last_checkpoint=result.last_checkpoint,
        savepoint=result.savepoint,
        collected={name: table.num_rows for name, table in result.collected.items()},
    )


def _give_out(result: JobResult, *, as_json: bool) -> None:
    """Print what collect sinks gathered, a record per line."""
    for name, table in result.collected.items():
        for batch in table.to_batches(max_chunksize=_ROWS):
            for record in batch.to_pylist():
                _print_record(name, record, as_json=as_json)


def _print_record(sink: str, record: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_object({"event": "record", "sink": sink, "record": record})
    else:
        give(json.dumps(record, default=str, ensure_ascii=False))
