"""How long records are on their way from source to sink: an estimate from the records that wait.

By Little's law a record waits for as long as it takes to work on the records before it: their
number over the rate. The estimate is the sum along the longest way; the time within one call of a
source, and outside the job, is not in it. No marker travels with the records, so nothing is added
to what a channel carries, and a job that stands still has no estimate.

Source: Little 1961, "A Proof for the Queuing Formula: L = λW".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..contract.execution import ExecutionPlan


class Waiting(NamedTuple):
    """Rows on their way to a subtask over one edge, and the rows a second that it works on."""

    rows: float
    per_s: float


def latency_ms(
    plan: ExecutionPlan, waiting: Mapping[tuple[int, int], Waiting]
) -> tuple[float | None, float | None]:
    """Return the time of a middling record, and of one that meets the slowest subtask of each task,
    in milliseconds; None: nothing is worked on where records wait, or nothing is known.

    Args:
        waiting: by (edge, consumer's subtask).
    """
    if not waiting:
        return None, None
    middling_s = [0.0] * len(plan.tasks)
    slowest_s = [0.0] * len(plan.tasks)
    for task in plan.tasks:  # producers come before their consumers, but for back-edges
        for edge in (plan.edges[index] for index in task.inputs):
            if edge.feedback:
                continue
            ends = [w for (index, _), w in waiting.items() if index == edge.index]
            together = Waiting(sum(w.rows for w in ends), sum(w.per_s for w in ends))
            waits_s = _wait_s(together)
            worst_s = max((_wait_s(w) for w in ends if w.per_s), default=waits_s)
            before, worst_before = middling_s[edge.producer], slowest_s[edge.producer]
            middling_s[task.index] = max(middling_s[task.index], before + waits_s)
            slowest_s[task.index] = max(slowest_s[task.index], worst_before + worst_s)
    return _told(max(middling_s)), _told(max(slowest_s))


def _wait_s(waiting: Waiting) -> float:
    if not waiting.rows:
        return 0.0
    return waiting.rows / waiting.per_s if waiting.per_s else float("inf")


def _told(latency_s: float) -> float | None:
    return None if latency_s == float("inf") else latency_s * 1e3
