"""Workers as the tasks of one long Spark job.

Spark places the workers, ships the program, notices a dead worker and starts its task again: the
job is a plain one, not a barrier job, in which every failure restarts all tasks. Each task may fail
a limited number of times, then Spark gives the job up. A job that has run for a while is submitted
anew; a job that fails soon after its start is broken, and fails.

A worker that the coordinator has lost and Spark has not (frozen, or unreachable for the driver
alone) is killed through Spark, which then starts its task again.

Incarnation numbers are Spark's task attempt ids. Spark counts them through the whole application,
so they rise over a task's retries, a stage's retries and a new submission alike.

A cancelled task's Python process lives on for seconds. So `stop` first lets workers end by
themselves, then cancels the rest.
"""

from __future__ import annotations

import itertools
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from pyspark import InheritableThread, TaskContext
from pyspark.sql import SparkSession

from ..contract.launcher import Entry, Incarnation, OnExit, WorkerProgram
from .capacity import (
    active_tasks,
    classic_context,
    driver_address,
    grows_on_demand,
    require_slots,
    slots,
    tell_of_busy_slots,
)
from .shared import SharedSession
from .warmth import Warmth

_log = logging.getLogger(__name__)

#: A submission that lives shorter than this is not repeated: all retries of a worker that cannot
#: even be imported take less.
_BROKEN_S = 600.0
#: How long cancelled tasks may take to end.
_CANCEL_S = 15.0
_CANCEL_AGAIN_S = 0.2

_groups = itertools.count()


class SparkLauncher:
    """Runs each worker as a task of a Spark job (a `WorkerLauncher`)."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        workers: int,
        entry: Entry,
        stops_session: bool = False,
        embedded: bool = False,
        registration_timeout_s: float = 30.0,
        session: SharedSession | None = None,
    ) -> None:
        """Prepare `workers` tasks.

        Args:
            spark: the session; its settings decide how often a failed worker is started again.
            workers: number of tasks, each of which takes one of Spark's slots.
            entry: runs in each task.
            stops_session: the session is this launcher's own, and ends with it and its successors.
            embedded: a larger session can be made when this one has ended.
            registration_timeout_s: how long `start` waits for a cluster's executors.
            session: of the launcher before.

        Raises:
            UserError: the session is one of Spark Connect.
        """
        assert workers >= 1, f"{workers} workers"
        self._spark = spark
        self._context = classic_context(spark)
        self._workers = workers
        self._entry = entry
        self._succeeds = session is not None
        self._session = session or SharedSession(spark, stops=stops_session, embedded=embedded)
        self._session.enter()
        self._left = False
        self._registration_timeout_s = registration_timeout_s
        self._coordinator_host = driver_address(self._context)
        self._group = f"headrace-{next(_groups)}"
        self._warmth = Warmth(self._context, workers=workers, group=f"{self._group}-spare")
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    @property
    def workers(self) -> int:
        """Number of tasks."""
        return self._workers

    @property
    def coordinator_host(self) -> str:
        """The address on which executors reach the driver."""
        return self._coordinator_host

    def start(
        self,
        program: WorkerProgram,
        on_failure: Callable[[str], None],
        on_exit: OnExit | None = None,
    ) -> None:
        """Submit the job; waits only for a cluster's executors, and only if there are too few yet.

        Raises:
            UserError: Spark has too few slots, or settings under which workers cannot live.
        """
        assert self._thread is None, "a launcher serves one start"
        require_slots(self._context, self._workers, timeout_s=self._registration_timeout_s)
        if not self._succeeds:  # the predecessor's tasks may be counted for a moment yet
            tell_of_busy_slots(self._context, self._workers)
        # Inheritable: it gives its connection to the JVM back when it ends.
        self._thread = InheritableThread(
            target=self._keep_submitting,
            args=(program, on_failure),
            name=f"{self._group}-spark-job",
            daemon=True,
        )
        self._thread.start()
        self._warmth.start()

    def has_room_beside(self, workers: int) -> bool:
        """So many slots are free, of those that this launcher's own workers and other jobs of the
        session leave.
        """
        busy = max(self._workers, active_tasks(self._context))
        return slots(self._context) >= busy + workers

    def successor(self, slots: int) -> SparkLauncher | None:
        """Make a launcher of a worker for each slot on the same session, which then ends with the
        later of the two.

        None: the session is this launcher's own and has ended, or has to be made anew with more
        slots.

        Raises:
            UserError: Spark has too few slots, even without this launcher's own workers.
        """
        if not self._session.is_open:
            return None
        if self._session.embedded and not self._can_hold(slots):
            return None
        require_slots(self._context, slots, timeout_s=0.0)
        return SparkLauncher(
            self._spark,
            workers=slots,
            entry=self._entry,
            registration_timeout_s=self._registration_timeout_s,
            session=self._session,
        )

    def _can_hold(self, workers: int) -> bool:
        """Spark has as many slots, or may get them."""
        return grows_on_demand(self._context) or slots(self._context) >= workers

    def replace(self, worker: int, number: int, lost: int = -1) -> None:
        """Have Spark end the lost task attempt, so that Spark starts the task again, with a new
        attempt id.

        Spark knows of a worker that has died, and has started the task again. A worker that is
        frozen, or cut off from the driver alone, is a running task to Spark, which would never
        start another. A killed attempt does not count as a failure.
        """
        if lost >= 0 and not self._stopping.is_set():
            # In a thread: it asks the JVM, and the coordinator must not wait for that.
            InheritableThread(
                target=self._end_attempt,
                args=(lost,),
                name=f"{self._group}-lost-{lost}",
                daemon=True,
            ).start()

    def _end_attempt(self, attempt: int) -> None:
        try:
            self._context._jsc.sc().killTaskAttempt(attempt, True, "the job has lost this worker")
        except Exception as error:
            # The session may be ending; the coordinator fails the job when no worker comes.
            _log.info("task attempt %d could not be ended: %s", attempt, error)

    def stop(self, timeout_s: float) -> None:
        """Wait for the job up to `timeout_s`, then cancel the job and wait for its end."""
        self._stopping.set()
        self._warmth.stop()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(timeout_s)
            self._cancel_until_ended(thread)
        if not self._left:
            self._left = True
            self._session.leave()

    def _cancel_until_ended(self, thread: threading.Thread) -> None:
        deadline_s = time.monotonic() + _CANCEL_S
        while thread.is_alive() and time.monotonic() < deadline_s:
            # Again and again: a job that is only just being submitted is not found by the first.
            self._context.cancelJobGroup(self._group)
            thread.join(_CANCEL_AGAIN_S)
        if thread.is_alive():
            _log.warning("Spark has not ended job group %s within %.0f s", self._group, _CANCEL_S)

    def _keep_submitting(self, program: WorkerProgram, on_failure: Callable[[str], None]) -> None:
        while not self._stopping.is_set():
            started_s = time.monotonic()
            try:
                self._submit(program)
            except Exception as error:
                if self._stopping.is_set():
                    return
                reason = failure_reason(str(error))
                if time.monotonic() - started_s < _BROKEN_S:
                    on_failure(reason)
                    return
                _log.warning("%s; submitting the workers again", reason)
            else:
                return

    def _submit(self, program: WorkerProgram) -> None:
        """Run the job to its end. Spark keeps the job group per thread; its page shows the
        description beside the job and its stage.
        """
        what = f"headrace: {program.job} ({self._workers} workers, until the job ends)"
        self._context.setJobGroup(self._group, what, interruptOnCancel=True)
        tasks = self._context.parallelize(range(self._workers), self._workers)
        tasks.mapPartitionsWithIndex(_task(program, self._entry)).count()


def _task(program: WorkerProgram, entry: Entry) -> Callable[[int, Iterable[int]], Iterator[int]]:
    """Return the function that Spark runs in each partition."""

    def run(worker: int, _: Iterable[int]) -> Iterator[int]:
        context = TaskContext.get()
        assert context is not None, "runs inside a Spark task"
        incarnation = Incarnation(worker, context.taskAttemptId())
        entry(program, incarnation, address_towards(program.coordinator))
        return iter(())

    return run


def address_towards(coordinator: tuple[str, int]) -> str:
    """Return this machine's address on the network where `coordinator` is.

    The name of the machine may resolve to loopback or to another network; the route does not lie.
    Nothing is sent.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(*coordinator, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def failure_reason(text: str) -> str:
    """Return one sentence from Spark's pages about a failed job.

    It is the worker's exception, else Spark's reason for the task, else the first line.
    """
    _, raised, traceback = text.rpartition("Traceback (most recent call last):\n")
    lost = re.search(r"\(TID \d+\) \([^)]*\): (?:[\w.]+Exception: )?(.+)", text)
    if raised:
        # The frames are indented; the exception's own line is the first that is not.
        story = next(
            (line for line in traceback.splitlines() if line[:1].strip()), "no reason given"
        )
    elif lost:
        story = lost[1]
    else:
        story = text.strip().partition("\n")[0]
    return f"Spark gave up the workers: {story.strip(' :')}"
