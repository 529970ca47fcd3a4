"""What holds a job back, in one sentence: a pure function of the latest observations.

The task that holds back the others is busy and not backpressured itself, while records wait before
it. The rest of the sentence says since when, whether it gets worse, and what would help.
"""

from __future__ import annotations

from collections.abc import Sequence

from .observed import Finding, Observation, TaskObserved

#: A task that is busy for less of its time is no bottleneck.
_BUSY_SHARE_MIN = 0.5


def explain(now: Observation, before: Sequence[Observation]) -> Finding:
    """Explain the present.

    Args:
        before: earlier observations of the same plan with their findings, oldest first.
    """
    if now.phase in ("preparing", "deploying"):
        return Finding("ok", "deploying", "Operators open and state is loaded.")
    if now.phase == "restarting":
        return Finding("wrong", "restarting", "The job restarts after a failure.")
    slow = slowest(now.tasks)
    if slow is None:
        return Finding("ok", "none", "No operator is busy: the job keeps up with its sources.")
    sentence = f"{slow.name} ({slow.parallelism} subtasks, {slow.busy:.0%} busy) is the slowest."
    return Finding("note", "slow_function", sentence, slow.name)


def slowest(tasks: Sequence[TaskObserved]) -> TaskObserved | None:
    """Return the busiest task that no other task holds back; None: none is busy."""
    candidates = [
        task for task in tasks if task.busy >= _BUSY_SHARE_MIN and task.busy > task.backpressured
    ]
    return max(candidates, key=lambda task: task.busy, default=None)
