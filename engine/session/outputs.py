"""Output of earlier runs in the sinks of a job that begins anew: refused, kept or removed.

A run from a checkpoint goes on with the output before it. A run from the beginning would write
every record once more beside that output, so it says what is to happen first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from headrace.recovery.layout import staged_folder

from ..connectors.memory import CollectCommitter
from ..contract.errors import StorageUnreachable, UserError
from ..contract.execution import ExecutionPlan
from ..contract.operators import KeepsNotes, OwnsOutput, SinkCommitter

_Answer = TypeVar("_Answer")


def committers_of(plan: ExecutionPlan) -> dict[str, SinkCommitter]:
    """Make the committers of the plan's sinks, by operator."""
    return {
        operator.name: operator.committer()
        for task in plan.tasks
        for operator in task.operators
        if operator.committer is not None
    }


def is_volatile(plan: ExecutionPlan, committers: Mapping[str, SinkCommitter]) -> bool:
    """All output of the job ends with this process: there is nothing to add to in another."""
    sinks = [o.name for task in plan.tasks for o in task.operators if o.sink is not None]
    return all(isinstance(committers.get(name), CollectCommitter) for name in sinks)


def refuse_output(committers: Mapping[str, SinkCommitter], job: str, why: str) -> None:
    """Refuse to begin anew beside output of the job.

    Args:
        why: the run begins anew.

    Raises: UserError, StorageUnreachable.
    """
    for sink, committer in committers.items():
        if isinstance(committer, OwnsOutput) and (place := _asked(sink, committer.output)):
            raise UserError(
                f"sink {sink!r}: {place} holds output of job {job!r}, and {why}, so it would write"
                " every record once more: fresh=replace removes that output, fresh=append keeps"
                " it (--fresh=replace, --fresh=append)"
            )


def take_over(
    committers: Mapping[str, SinkCommitter], owner: str, *, anew: bool, remove: bool
) -> None:
    """Let the committers work for this owner, and remove the job's earlier output if so told.

    Raises: StorageUnreachable.
    """
    for sink, committer in committers.items():
        if isinstance(committer, OwnsOutput):
            if remove:
                _asked(sink, committer.remove_output)
            _asked(sink, lambda committer=committer: committer.own(owner, anew=anew))  # type: ignore[misc]  # bound at once


def give_folders(committers: Mapping[str, SinkCommitter], job: str, directory: str) -> None:
    """Tell committers where their notes lie.

    Args:
        directory: of the checkpoints; empty: there is none.
    """
    for sink, committer in committers.items():
        if isinstance(committer, KeepsNotes):
            folder = f"{directory.rstrip('/')}/{staged_folder(job, sink)}" if directory else ""
            committer.keep_in(folder)


def _asked(sink: str, ask: Callable[[], _Answer]) -> _Answer:
    try:
        return ask()
    except OSError as error:
        raise StorageUnreachable(f"sink {sink!r}: its folder does not answer: {error}") from error
