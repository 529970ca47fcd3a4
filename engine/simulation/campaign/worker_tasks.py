"""The subtasks' threads of a simulated worker, in virtual time.

The chain's call happens when the work starts or when the work ends, as drawn, and its end is an
event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.recovery.store import StoreError

from ...contract.execution import SubtaskId
from ...drivers.failed_calls import open_failed
from ...drivers.loading import make_chain, read_restored
from ...operators.chain import Chain
from ...operators.work import (
    ProcessWork,
    Work,
    WorkDone,
)
from ...storage.ahead import FilesAhead
from ...storage.snapshots import CorruptState, Origin
from ...worker import worker_events as w
from ...worker.subtask_events import RunWork
from ..scheduler import MICROSECOND_NS, MILLISECOND_NS
from .claims import seen_as
from .environment import Environment, Process
from .promptness import SLOWNESS
from .storage import FaultyReads


@dataclass(slots=True)
class _Task:
    """A subtask's thread: its chain, and its running work."""

    chain: Chain
    running: tuple[Work, WorkDone] | None = None
    busy: bool = False
    #: The work is from the subtask's replay.
    replays: bool = False


class SimulatedTasks:
    """The subtasks of an attempt at `process`.

    `deliver` gets each end, while the process lives; `replays` says whether the work that a subtask
    just ordered is from its replay.
    """

    def __init__(
        self,
        env: Environment,
        process: Process,
        effect: w.LoadAttempt,
        deliver: Callable[[w.WorkerEvent], None],
        replays: Callable[[SubtaskId], bool],
        ahead: FilesAhead | None,
    ) -> None:
        self._env = env
        self._process = process
        self._effect = effect
        self._deliver = deliver
        self._replays = replays
        self._ahead = ahead
        self._tasks: dict[SubtaskId, _Task] = {}
        self._abandoned = False

    def start(self) -> None:
        """Open all chains after a delay: no observer can see their order."""
        scheduler = self._env.scheduler
        delay_ns = scheduler.delay_ns(100 * MICROSECOND_NS, 5 * MILLISECOND_NS)
        scheduler.after(delay_ns, self._open)

    def chain(self, subtask: SubtaskId) -> Chain:
        """An open chain."""
        return self._tasks[subtask].chain

    def run(self, effect: RunWork) -> None:
        """Run a piece of work; ends in WorkEnded or WorkFailed."""
        task = self._tasks[effect.subtask]
        assert not task.busy, f"{effect.subtask}: two works at once"
        task.busy, task.replays = True, self._replays(effect.subtask)
        rule = self._env.plan.tasks[effect.subtask.task].batch
        if rule is not None and isinstance(effect.what, ProcessWork):
            kind = "full batches" if effect.what.rows == rule.rows else "batches in part"
            self._env.coverage.count(kind)
        scheduler, settings = self._env.scheduler, self._env.settings
        low_ns, high_ns = settings.work_ns
        duration_ns = scheduler.rng.randint(low_ns, high_ns)
        if effect.subtask.task in settings.slow_tasks:
            duration_ns *= SLOWNESS
        at_once = scheduler.rng.random() < 0.5
        early = _call(task, effect, duration_ns) if at_once else None

        def end() -> None:
            if self._process.alive:
                done = early or _call(task, effect, duration_ns)
                self._end(task, effect, done)

        scheduler.after(duration_ns, end)

    def committed(self, subtask: SubtaskId) -> None:
        """Tell the watch that the last work's writes are published."""
        task = self._tasks[subtask]
        assert task.running is not None, f"{subtask}: committed without work"
        work, done = task.running
        self._env.failed[self._effect.epoch] += done.rows_failed
        self._env.watch.committed(
            self._effect.epoch, subtask, work, done.outputs, replayed=task.replays
        )

    def abandon(self) -> None:
        """Abandon all subtasks; each ends after its running piece."""
        self._abandoned = True
        self._drop_ahead()
        for task in self._tasks.values():
            if not task.busy:
                task.chain.close()

    def _drop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.drop()

    def _open(self) -> None:
        if not self._process.alive or self._abandoned:
            return
        env, effect = self._env, self._effect
        snapshots = {SubtaskId(s.task, s.index): s for s in effect.restore}
        store: Any = FaultyReads(env.faults, env.storage)  # only `get` is asked for
        origin = Origin(store, effect.job, ours=not effect.origin)
        buffer_bytes = env.settings.limits.buffer_bytes
        try:
            for id in effect.subtasks:
                backend = env.disk.backend(database=id.task in env.settings.databases)
                chain = make_chain(env.plan, id, effect.epoch, buffer_bytes, backend, owner=env.run)
                states = read_restored(env.plan, id, snapshots.get(id), origin, self._ahead)
                chain.open()
                if states is not None:
                    chain.restore(states)
                self._tasks[id] = _Task(chain)
                if id in snapshots:
                    seen = seen_as(env.storage, effect.job, env.plan.job)
                    env.watch.restored(effect.epoch, snapshots[id], seen)
        except (StoreError, CorruptState) as error:
            self._deliver(open_failed(effect.epoch, id, error))
            return
        if effect.checkpoint:
            env.coverage.count("restored from a checkpoint")
        self._drop_ahead()
        hearing = frozenset(id for id, task in self._tasks.items() if task.chain.hears)
        self._deliver(w.AttemptLoaded(effect.epoch, hearing))

    def _end(self, task: _Task, effect: RunWork, done: WorkDone | Exception) -> None:
        task.busy = False
        self._env.watch.ended(effect.subtask, done)
        if self._abandoned:
            task.chain.close()
        epoch = self._effect.epoch
        if isinstance(done, Exception):
            reason = f"{type(done).__name__}: {done}"
            self._deliver(w.WorkFailed(epoch, effect.subtask, reason, "", fatal=False))
            return
        task.running = (effect.what, done)
        self._deliver(w.WorkEnded(epoch, effect.subtask, done))


def _call(task: _Task, effect: RunWork, duration_ns: int) -> WorkDone | Exception:
    """Run the chain; abandoning an attempt does not change the running piece."""
    try:
        return task.chain.run(effect.work, effect.what)._replace(elapsed_ns=duration_ns)
    except Exception as error:
        return error
