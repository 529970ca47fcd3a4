"""`headrace check` and `headrace graph`: the plan of a job, which is built and not run.

A plan is built as a run builds it, so each mistake that a run would refuse before it starts is
refused here: files and topics that sources look at when the program builds them, columns, types,
names, options of every layer. Checkpoints are not read: a checkpoint that does not fit the program
is found by the run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..contract.errors import UserError
from ..contract.execution import EdgePlan, ExecutionPlan, TaskPlan
from ..plan.mermaid import mermaid
from ..plan.svg import svg
from ..session.settings import CODE, find_settings_file, layered
from .follow import described, starting_fields
from .reporter import print_object
from .streams import give
from .tables import print_table
from .target import load_job


def check(target: str, settings: Mapping[str, str], *, as_json: bool) -> int:
    """Build the job that `target` names with `settings` over its options, and print the outcome.

    Raises: UserError for a job that no run would start.
    """
    job = load_job(target)
    options, origins = layered(
        job.run_options(), settings, os.environ, find_settings_file(Path.cwd())
    )
    plan = job.plan(options.parallelism)
    stated = {key: origin for key, origin in origins.items() if origin != CODE}
    if as_json:
        fields = starting_fields(job, plan, options)
        print_object({**fields, **plan_fields(plan), "origins": stated})
        return 0
    for line in described(job, plan, options):
        give(line)
    for key, origin in stated.items():
        give(f"  {key}: set by {origin}")
    give("")
    print_table(("task", "subtasks", "keeps state", "built at"), map(_task_row, plan.tasks))
    give("")
    print_table(("edge", "how", "columns"), map(_edge_row, plan.edges))
    return 0


def graph(target: str, parallelism: int | None, *, as_json: bool, as_svg: bool = False) -> int:
    """Print the plan of the job that `target` names: a mermaid flowchart, an object or a picture.

    Args:
        parallelism: of operators that set none; None: the job's.

    Raises: UserError for a job that no run would start, and for both forms at once.
    """
    if as_json and as_svg:
        raise UserError("headrace graph prints --json or --svg; leave one out")
    plan = load_job(target).plan(parallelism)
    if as_json:
        print_object({"job": plan.job, **plan_fields(plan)})
    elif as_svg:
        give(svg(plan))
    else:
        give(mermaid(plan))
    return 0


def plan_fields(plan: ExecutionPlan) -> dict[str, Any]:
    """A plan for JSON."""
    return {
        "max_parallelism": plan.max_parallelism,
        "tasks": [_task(task) for task in plan.tasks],
        "edges": [_edge(edge) for edge in plan.edges],
    }


def _task(task: TaskPlan) -> dict[str, Any]:
    return {
        "task": task.name,
        "parallelism": task.parallelism,
        "is_source": task.is_source,
        "is_sink": task.is_sink,
        "operators": [
            {"name": operator.name, "stateful": operator.stateful, "built_at": operator.built_at}
            for operator in task.operators
        ],
    }


def _edge(edge: EdgePlan) -> dict[str, Any]:
    return {
        "edge": edge.key,
        "producer": edge.producer,
        "consumer": edge.consumer,
        "partitioner": edge.partitioner.name,
        "output": edge.output.value,
        "feedback": edge.feedback,
        "columns": _columns(edge),
    }


def _columns(edge: EdgePlan) -> dict[str, str]:
    return {column.name: str(column.type) for column in edge.schema}


def _task_row(task: TaskPlan) -> tuple[str, ...]:
    stateful = ", ".join(operator.name for operator in task.operators if operator.stateful)
    return task.name, str(task.parallelism), stateful or "-", task.operators[0].built_at


def _edge_row(edge: EdgePlan) -> tuple[str, ...]:
    columns = ", ".join(f"{name}: {kind}" for name, kind in _columns(edge).items())
    return edge.key, edge.partitioner.name, columns
