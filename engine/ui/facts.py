"""What is known of a job before it runs: its plan, its settings and what its sinks promise."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..contract.execution import ExecutionPlan
from ..contract.places import redacted


class OperatorFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An operator; `built_at` is the line of the user's program, empty if it is not known."""

    name: str
    stateful: bool
    built_at: str


class TaskFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A task of the plan at the start; a rescale changes its parallelism."""

    name: str
    parallelism: int
    operators: list[OperatorFacts]


class EdgeFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An edge of the plan; producer and consumer are indexes of tasks."""

    key: str
    producer: int
    consumer: int
    partitioner: str
    columns: list[str]


class JobFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A job as it was started.

    Attributes:
        settings: {key of an option: its value as text}, without credentials.
        deliveries: {sink: what it promises}.
        directory: of its checkpoints, without credentials; None: it takes none.
    """

    job: str
    max_parallelism: int
    tasks: list[TaskFacts]
    edges: list[EdgeFacts]
    settings: dict[str, str]
    deliveries: dict[str, str]
    directory: str | None


def facts_of(
    plan: ExecutionPlan,
    settings: Mapping[str, object],
    deliveries: Mapping[str, str],
    directory: str | None,
) -> JobFacts:
    """Describe a job that is about to start."""
    return JobFacts(
        job=plan.job,
        max_parallelism=plan.max_parallelism,
        tasks=[
            TaskFacts(
                task.name,
                task.parallelism,
                [OperatorFacts(o.name, o.stateful, o.built_at) for o in task.operators],
            )
            for task in plan.tasks
        ],
        edges=[
            EdgeFacts(
                edge.key,
                edge.producer,
                edge.consumer,
                edge.partitioner.name,
                [field.name for field in edge.schema],
            )
            for edge in plan.edges
        ],
        settings={
            key: redacted(str(value)) for key, value in settings.items() if value is not None
        },
        deliveries={name: str(delivery) for name, delivery in deliveries.items()},
        directory=None if directory is None else redacted(directory),
    )
