"""The end of loops: no record of a loop is anywhere any more, and none can come.

A loop cannot see its own end: the end of input stops at the head, which waits for its back-edges.
The coordinator can. When every task that feeds the cycle has finished, all workers are asked in
*waves* about the subtasks on the cycle: is each at rest, and how many records have been sent and
consumed on the cycle's channels? The loop has ended when two waves in a row, the second begun after
the first was complete, find every subtask at rest, as many records consumed as sent, and equal
numbers. Then no record was on its way between the waves, and no subtask at work. Only a record on
the cycle makes a subtask at rest work again, so nothing ever will.

While tasks before the cycle run, nobody is asked. A wave that finds work is followed by a pause,
each longer than the one before: a loop may go on for hours after its input has ended.

An inner loop ends after the loop around it. The outer's cycle contains the inner's, and the entries
of the inner end when the outer's head has finished.

Source: Mattern, "Algorithms for distributed termination detection" (1987), the four counter method.
Deviation: a process there is at rest between messages. A subtask here may have a call, a timer or a
replay ahead, so it answers whether it is at rest, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ..contract.execution import ExecutionPlan
from ..contract.messages import EndLoop, LoopProbed, ProbeLoop
from .coordinator_events import CoordinatorEffect
from .workers import Workers

#: The pause after a wave that found work: from the first, doubled, to the longest.
_PAUSE_NS_MIN, _PAUSE_NS_MAX = 2_000_000, 200_000_000


def cycle_tasks(plan: ExecutionPlan, head: int) -> frozenset[int]:
    """Return the tasks on a way from task `head` back to `head`, loops inside included."""
    forward = [(edge.producer, edge.consumer) for edge in plan.edges if not edge.feedback]
    back = [edge for edge in plan.edges if edge.feedback]
    ends = [edge.producer for edge in back if edge.consumer == head]
    tasks = _reached([head], forward) & _reached(
        ends, [(after, before) for before, after in forward]
    )
    inner = {edge.consumer for edge in back} & tasks - {head}
    return tasks.union(*(cycle_tasks(plan, one) for one in sorted(inner)))


def _reached(tasks: Iterable[int], steps: Iterable[tuple[int, int]]) -> frozenset[int]:
    """Return `tasks` and all that steps (from, to) lead to."""
    steps = list(steps)
    found: set[int] = set()
    stack = list(tasks)
    while stack:
        task = stack.pop()
        if task not in found:
            found.add(task)
            stack += [to for from_, to in steps if from_ == task]
    return frozenset(found)


@dataclass(slots=True)
class _Loop:
    """A loop in the present attempt.

    Attributes:
        edges: inside the cycle.
        feeding: the subtasks before the cycle.
        heads: the subtasks of its head.
        wave: number of the wave under way; None: none is.
        answers: {worker: (records sent, consumed), or None where a subtask is not at rest}.
        rest: records sent, if the wave before found the whole cycle at rest.
    """

    head: int
    edges: list[int]
    feeding: frozenset[tuple[int, int]]
    heads: frozenset[tuple[int, int]]
    wave: int | None = None
    answers: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    rest: int | None = None
    next_at_ns: int = 0
    pause_ns: int = _PAUSE_NS_MIN
    ended: bool = False

    def may_end(self, finished: AbstractSet[tuple[int, int]]) -> bool:
        """Whether its end is to be looked for."""
        return not self.ended and self.feeding <= finished and not self.heads <= finished

    def has_ended(self, now_ns: int) -> bool:
        """All have answered: whether the loop has ended. If not, set the time of the next wave."""
        self.wave, before = None, self.rest
        counts = [answer for answer in self.answers.values() if answer is not None]
        sent = sum(sent for sent, _ in counts)
        consumed = sum(consumed for _, consumed in counts)
        self.rest = sent if len(counts) == len(self.answers) and sent == consumed else None
        if self.rest is None:
            self.next_at_ns = now_ns + self.pause_ns
            self.pause_ns = min(2 * self.pause_ns, _PAUSE_NS_MAX)
        return self.rest is not None and self.rest == before


class LoopEnds:
    """Finds the ends of a job's loops, attempt by attempt."""

    def __init__(self, plan: ExecutionPlan, workers: Workers) -> None:
        self._plan = plan
        self._workers = workers
        self._epoch = 0
        self._loops: list[_Loop] = []
        #: Number of the newest wave; each loop's waves are numbers of their own.
        self._wave = 0
        #: Loops whose end may be near, as of the last `advance`.
        self._near: list[_Loop] = []

    def begin(self, epoch: int) -> None:
        """A new attempt begins: nothing is known of its loops."""
        self._epoch, self._wave, self._near = epoch, 0, []
        heads = {edge.consumer for edge in self._plan.edges if edge.feedback}
        self._loops = [self._loop(head) for head in sorted(heads)]

    def advance(
        self, finished: AbstractSet[tuple[int, int]], now_ns: int
    ) -> list[CoordinatorEffect]:
        """Begin the waves that are due. `finished`: (task, subtask) of this attempt."""
        self._near = [loop for loop in self._loops if loop.may_end(finished)]
        effects: list[CoordinatorEffect] = []
        for loop in self._near:
            if loop.wave is None and loop.next_at_ns <= now_ns:
                effects += self._probe(loop)
        return effects

    def probed(self, worker: int, answer: LoopProbed, now_ns: int) -> list[CoordinatorEffect]:
        """A worker answers; answers of other waves mean nothing."""
        loop = next((one for one in self._near if one.wave == answer.wave), None)
        if loop is None:
            return []
        loop.answers[worker] = (answer.sent, answer.consumed) if answer.at_rest else None
        if not loop.answers.keys() >= set(self._workers.numbers):
            return []
        loop.ended = loop.has_ended(now_ns)
        return self._workers.send_all(EndLoop(self._epoch, loop.head)) if loop.ended else []

    def next_deadline_ns(self) -> int | None:
        """When the next wave is due. None: none will be before something happens."""
        pauses = [loop.next_at_ns for loop in self._near if loop.wave is None and not loop.ended]
        return min(pauses, default=None)

    def _probe(self, loop: _Loop) -> list[CoordinatorEffect]:
        self._wave += 1
        loop.wave, loop.answers = self._wave, {}
        return self._workers.send_all(ProbeLoop(self._epoch, self._wave, loop.edges))

    def _loop(self, head: int) -> _Loop:
        edges, tasks = self._plan.edges, cycle_tasks(self._plan, head)
        feeding = {edge.producer for edge in edges if edge.consumer in tasks} - tasks
        return _Loop(
            head,
            [edge.index for edge in edges if {edge.producer, edge.consumer} <= tasks],
            self._subtasks(feeding),
            self._subtasks({head}),
        )

    def _subtasks(self, tasks: Iterable[int]) -> frozenset[tuple[int, int]]:
        plan = self._plan
        return frozenset((task, n) for task in tasks for n in range(plan.tasks[task].parallelism))
