"""Start a job and follow it to its end: tell its events, and listen for Ctrl-C.

The first Ctrl-C (or SIGTERM) asks the job to take a last checkpoint and end; the second ends it at
once. Handlers of our own count the signals, since a KeyboardInterrupt could come up in any line,
and Spark's handler, which cancels its jobs, would take the workers away before they have taken part
in the checkpoint.

SIGTERM has an end: a supervisor kills what still runs after its patience, so what is not done is
given up before. The last checkpoint has `_PATIENCE_S`; ten seconds after the signal the process has
left, and its workers die with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Any

from ..contract.execution import ExecutionPlan
from ..contract.numbers import counted
from ..contract.options import RunOptions
from ..contract.outcomes import JobResult
from ..coordinator.coordinator_events import Notice, NoticeKind
from ..drivers.status import Status
from ..session.handle import JobHandle
from ..session.job import Job
from .reporter import Reporter
from .standing import checkpoint_fields

_LOOK_EVERY_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: After SIGTERM: how long the last checkpoint may take, and when the process leaves come what may.
_PATIENCE_S = 6.0
_LEAVE_S = 9.5

_Handler = Callable[[int, FrameType | None], Any] | int | None

#: Called with every look, to act on what it shows.
Watch = Callable[[Status], None]


class Interrupts:
    """Signals that ask the job to end, counted."""

    def __init__(self) -> None:
        self.count = 0
        #: The first one's number.
        self.signal: int | None = None
        #: Beyond so many there is no asking any more: KeyboardInterrupt.
        self._patience = 1
        self._before: dict[int, _Handler] = {}
        #: When SIGTERM came first.
        self._term_s: float | None = None

    def install(self) -> None:
        """Count signals from now on.

        Outside the main thread, where Python allows no handlers, nothing is counted.
        """
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._note)

    def started(self) -> None:
        """The job runs: there is something to ask twice."""
        self._patience = 2

    def restore(self) -> None:
        """Give signals back to their earlier handlers: the job is over."""
        if self._term_s is not None:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def is_overdue(self) -> bool:
        """SIGTERM came so long ago that the last checkpoint is waited for no more."""
        return self._term_s is not None and time.monotonic() - self._term_s > _PATIENCE_S

    @property
    def exit_code(self) -> int:
        """The exit code that a shell expects after a signal."""
        assert self.signal is not None, "nothing was interrupted"
        return 128 + self.signal

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.signal = self.signal or number
        if number == signal.SIGTERM and self._term_s is None:
            self._term_s = time.monotonic()
            # Whatever holds up the start or the end of the job.
            signal.signal(signal.SIGALRM, _leave)
            signal.setitimer(signal.ITIMER_REAL, _LEAVE_S)
        if self.count > self._patience:
            raise KeyboardInterrupt


def _leave(number: int, frame: FrameType | None) -> None:
    text = f"headrace: not over {_LEAVE_S:g} s after SIGTERM, so the process leaves as it is\n"
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
    os._exit(128 + signal.SIGTERM)


@contextlib.contextmanager
def listening() -> Iterator[Interrupts]:
    """Count interrupts instead of dying of the first."""
    interrupts = Interrupts()
    interrupts.install()
    try:
        yield interrupts
    finally:
        interrupts.restore()


def announce(job: Job, plan: ExecutionPlan, options: RunOptions, reporter: Reporter) -> None:
    """Say what is about to run: what and where, checkpoints, and what each sink promises."""
    lines = described(job, plan, options)
    reporter.event("starting", "\n".join(lines), **starting_fields(job, plan, options))


def described(job: Job, plan: ExecutionPlan, options: RunOptions) -> list[str]:
    """A run for people: lines."""
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
    return lines + [f"  sink {name}: {delivery}" for name, delivery in job.deliveries.items()]


def starting_fields(job: Job, plan: ExecutionPlan, options: RunOptions) -> dict[str, Any]:
    """A run for JSON."""
    checkpoints = options.checkpoints
    return {
        "job": job.name,
        "runner": options.runner,
        "master": options.master,
        "slots": plan.slots,
        "tasks": [task.name for task in plan.tasks],
        "checkpoint_directory": None if checkpoints is None else checkpoints.directory,
        "checkpoint_interval": None if checkpoints is None else checkpoints.interval,
        "mode": None if checkpoints is None else checkpoints.mode,
        "restore": options.restore,
        "sinks": dict(job.deliveries),
    }


def tell_page(handle: JobHandle, reporter: Reporter) -> None:
    """Say where the job's page is, if there is one."""
    if handle.page is not None:
        reporter.event("page", f"  page: {handle.page}", link=handle.page)


def _place(options: RunOptions) -> str:
    if options.runner != "spark":
        return f"as {options.runner} of this machine"
    return (
        f"on Spark at {options.master}" if options.master else "on Spark embedded in this process"
    )


def start(job: Job, options: RunOptions) -> JobHandle:
    """Start the job in a thread: in the main one Spark would put its own signal handler in the
    place of ours.

    Raises: UserError, StorageUnreachable; KeyboardInterrupt at the second interrupt, for which the
    start does not wait.
    """
    outcome: Future[JobHandle] = Future()

    def run() -> None:
        try:
            outcome.set_result(job.start_with(options))
        except BaseException as error:  # raised again by whoever waits for it
            outcome.set_exception(error)

    threading.Thread(target=run, name="headrace-start", daemon=True).start()
    return outcome.result()


def follow(
    handle: JobHandle,
    reporter: Reporter,
    interrupts: Interrupts,
    *,
    durable: bool,
    watch: Watch | None = None,
) -> JobResult:
    """Wait for the end and report on the way there.

    Args:
        durable: the job has a checkpoint directory.
        watch: called with every look.

    Raises: JobFailed.
    """
    interrupts.started()
    told = _Told(reporter)
    acted = 0
    try:
        while True:
            try:
                return handle.wait(_LOOK_EVERY_S)
            except TimeoutError:
                status = handle.status()
            told.tell(status)
            reporter.look(handle.observe(), time.monotonic_ns())
            if watch is not None:
                watch(status)
            if interrupts.count > acted:
                acted = interrupts.count
                _end(handle, reporter, at_once=acted > 1, durable=durable)
            elif acted == 1 and interrupts.is_overdue:
                acted += 1
                _end(handle, reporter, at_once=True, durable=durable)
    finally:
        told.tell(handle.status())
        reporter.close()


def _end(handle: JobHandle, reporter: Reporter, *, at_once: bool, durable: bool) -> None:
    if at_once:
        reporter.event("cancelling", "stopping at once")
        handle.cancel()
        return
    how = "taking a final checkpoint, then stopping; Ctrl-C again stops at once"
    if not durable:
        how = "stopping at once"
    reporter.event("stopping", f"interrupted: {how}")
    handle.stop()


class _Told:
    """Passes each of the job's notices on once."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._newest = 0

    def tell(self, status: Status) -> None:
        for number, notice in status.notices:
            if number > self._newest:
                self._newest = number
                self._notice(notice)

    def _notice(self, notice: Notice) -> None:
        if notice.checkpoint is not None:
            # Every second, perhaps: part of the progress, not a line of its own.
            self._reporter.event(notice.kind.value, None, **checkpoint_fields(notice.checkpoint))
            return
        text = _LINES[notice.kind].format(notice.text)
        self._reporter.event(notice.kind.value, text, message=notice.text)


_LINES = {
    NoticeKind.RUNNING: "{}",
    NoticeKind.CHECKPOINT: "{}",
    NoticeKind.CHECKPOINT_FAILED: "checkpoint failed: {}",
    NoticeKind.SAVEPOINT: "{}",
    NoticeKind.ATTEMPT_FAILED: "attempt failed: {}",
    NoticeKind.WORKER_LOST: "worker lost: {}",
    NoticeKind.RESCALED: "{}",
    NoticeKind.FAILOVER: "failover: {}",
    NoticeKind.FINISHED: "{}",
    NoticeKind.WARNING: "warning: {}",
}
