"""`headrace run`: load the job, lay the command line's settings over it, follow it to its end."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..contract.errors import UserError
from ..contract.execution import ExecutionPlan
from ..contract.options import RunOptions
from ..contract.outcomes import JobResult
from ..session.job import Job
from ..session.settings import find_settings_file, layered
from .follow import follow, listening, start
from .numbers import seconds
from .reporter import Reporter, open_reporter, print_object
from .standing import counted
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
    plan = job.plan(options.parallelism)
    reporter = open_reporter(plan, as_json=as_json)
    announce(job, plan, options, reporter)
    with listening() as interrupts:
        handle = start(job, options)
        result = follow(handle, reporter, interrupts, durable=options.checkpoints is not None)
    stopped = interrupts.count > 0
    _give_out(result, as_json=as_json)
    conclude(result, reporter, outcome="stopped" if stopped else "finished")
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


def announce(job: Job, plan: ExecutionPlan, options: RunOptions, reporter: Reporter) -> None:
    """Say what is about to run: what and where, checkpoints, and what each sink promises."""
    checkpoints = options.checkpoints
    lines = [
        f"job {job.name}: {counted(len(plan.tasks), 'task')} on {counted(plan.slots, 'slot')}, "
        + _place(options)
    ]
    if checkpoints is None:
        lines.append("  checkpoints: none, so a failure starts from the beginning")
    else:
        every = "on request" if checkpoints.interval is None else f"every {checkpoints.interval}"
        lines.append(f"  checkpoints: {every}, {checkpoints.mode}, in {checkpoints.directory}")
    lines += [f"  sink {name}: {delivery}" for name, delivery in job.deliveries.items()]
    reporter.event(
        "starting",
        "\n".join(lines),
        job=job.name,
        runner=options.runner,
        master=options.master,
        slots=plan.slots,
        tasks=[task.name for task in plan.tasks],
        checkpoint_directory=None if checkpoints is None else checkpoints.directory,
        checkpoint_interval=None if checkpoints is None else checkpoints.interval,
        mode=None if checkpoints is None else checkpoints.mode,
        restore=options.restore,
        sinks=dict(job.deliveries),
    )


def conclude(result: JobResult, reporter: Reporter, *, outcome: str) -> None:
    """Say how the job ended."""
    parts = [counted(result.checkpoints, "checkpoint"), counted(result.restarts, "restart")]
    if result.last_checkpoint is not None and outcome == "stopped":
        parts.append(f"the last is chk-{result.last_checkpoint}")
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
        collected={name: table.num_rows for name, table in result.collected.items()},
    )


def _place(options: RunOptions) -> str:
    if options.runner != "spark":
        return f"as {options.runner} of this machine"
    return (
        f"on Spark at {options.master}" if options.master else "on Spark embedded in this process"
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
        print(json.dumps(record, default=str, ensure_ascii=False))
