"""Keeps idle executors ready to replace a dead worker.

An executor that has never run a Python task starts its Python daemon, and loads many of Spark's own
classes, with the first task: two seconds and more, at the very moment when a job stands still. So
each new executor with a free slot gets a task that does next to nothing. One such task for every
free slot, all under way together, makes Spark give each executor one.

Costs an idle executor the memory of one daemon. Not on local masters, whose only executor is always
in use.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator

from pyspark import InheritableThread, SparkContext

from .capacity import slots

_log = logging.getLogger(__name__)

#: How often to look for new executors.
_LOOK_S = 0.5
#: A worker that dies meanwhile waits no longer than this for its slot.
_TASK_S = 0.3


class Warmth:
    """Looks for executors without any task so far, beside the job of `workers` long tasks in the
    same context.
    """

    def __init__(self, context: SparkContext, *, workers: int, group: str) -> None:
        """Prepare; `group` names the job group of the tasks."""
        self._context = context
        self._workers = workers
        self._group = group
        self._stopping = threading.Event()
        # Inheritable: it gives its connection to the JVM back when it ends.
        self._thread = InheritableThread(target=self._look, name=group, daemon=True)

    def start(self) -> None:
        """Begin to look, unless the master is a local one."""
        if not self._context._jsc.sc().isLocal():
            self._thread.start()

    def stop(self) -> None:
        """Stop looking and wait for the tasks under way, which is not long."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(10 * _TASK_S)

    def _look(self) -> None:
        known: set[str] = set()
        while not self._stopping.wait(_LOOK_S):
            try:
                found = _executors(self._context)
                spare = slots(self._context) - self._workers
                if found - known and spare > 0:
                    self._warm(spare)
                known = found
            except Exception as error:
                # Whatever Spark is up to: this is a courtesy, and the job has its own ways to fail.
                if not self._stopping.is_set():
                    _log.info("idle executors could not be warmed: %s", error)

    def _warm(self, tasks: int) -> None:
        self._context.setJobGroup(self._group, "headrace: idle executors", interruptOnCancel=True)
        self._context.parallelize(range(tasks), tasks).mapPartitions(_idle).count()


def _executors(context: SparkContext) -> set[str]:
    """Ids of the executors there are now."""
    ids = str(context._jsc.sc().getExecutorIds().mkString(","))
    return set(filter(None, ids.split(",")))


def _idle(_: Iterable[int]) -> Iterator[int]:
    time.sleep(_TASK_S)
    return iter(())
