"""A started job, and what a finished one leaves behind.

Users hold a `JobHandle`. Behind it stands a `Session`, the run. The handle adds knowledge of the
program: the tables of collect sinks, and the plan at another parallelism. A rescale replaces the
session: a `wait` goes on with the next session, and totals go on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from headrace.channels.events import CheckpointMode

from ..contract.errors import HeadraceError, UserError
from ..contract.execution import ExecutionPlan
from ..contract.options import RunOptions
from ..contract.outcomes import JobResult, Rescaled
from ..drivers.status import Status
from ..observation.observed import Event, Observation
from ..observation.observer import Observer
from ..observation.shown import as_html, as_text
from ..observation.watcher import Watcher, events_of
from ..plan.validate import check_parallelism
from .interrupts import end_interrupted, plain_interrupts
from .metrics import observed_metrics

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


class Session(Protocol):
    """A running job, for its handle. Methods may be called from any thread."""

    def checkpoint(self) -> int:
        """Take a checkpoint now; return its number when complete. Raises: HeadraceError."""
        ...

    def savepoint(self, path: str | None, mode: CheckpointMode | None) -> str:
        """Take a savepoint; return its path when complete. Raises: UserError; HeadraceError."""
        ...

    def stop(self) -> None:
        """Take a last checkpoint and end; `wait` then returns."""
        ...

    def stop_with_savepoint(
        self, path: str | None, mode: CheckpointMode | None, *, drain: bool
    ) -> str:
        """Take a savepoint, by which sinks commit, and end; return its path.

        Raises: UserError; HeadraceError: the job goes on.
        """
        ...

    def drain(self) -> None:
        """End the input, work on all records read to the end, and end."""
        ...

    def suspend(self) -> None:
        """Take an unaligned checkpoint, whatever the job's mode, and end."""
        ...

    def await_start(self) -> None:
        """Wait until an attempt runs, or the job has ended well. Raises: JobFailed."""
        ...

    def successor(self, plan: ExecutionPlan, options: RunOptions) -> Successor:
        """Prepare this job's successor, and start its workers if there is room.

        Raises: UserError.
        """
        ...

    def rescaled(self, text: str) -> None:
        """Note among the session's notices that a rescale started it."""
        ...

    def cancel(self) -> None:
        """End at once."""
        ...

    def wait(self, timeout_s: float | None) -> JobResult:
        """Wait for the end. Raises: JobFailed; TimeoutError."""
        ...

    def settled(self) -> JobResult:
        """Wait until all is decided and durable; workers may still be ending. Raises: JobFailed."""
        ...

    def status(self) -> Status:
        """Return a look at the job now."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Return the current numbers by metric name."""
        ...

    def observer(self, deliveries: Mapping[str, str]) -> Observer:
        """Make what computes observations of the job. `deliveries`: {sink: its promise}."""
        ...


class Page(Protocol):
    """The page of a job."""

    @property
    def link(self) -> str:
        """Its address, with the token of orders."""
        ...

    def close(self) -> None:
        """End the page; the job goes on."""
        ...


class Successor(Protocol):
    """The next session of a job, with early workers.

    Exactly one of `begin` and `discard` ends it.
    """

    def await_workers(self) -> None:
        """Wait until early workers have registered. Raises: HeadraceError when some do not."""
        ...

    def fetch_ahead(self) -> int:
        """Have early workers fetch most of the state to be restored; returns the bytes fetched."""
        ...

    def begin(self, restore: int) -> Session:
        """Start from a checkpoint of the session before.

        Raises: HeadraceError, having discarded.
        """
        ...

    def discard(self) -> None:
        """Stop all early workers: the session will not begin."""
        ...


#: Notices and checkpoints of sessions before that a status tells.
_REMEMBERED = 1000

#: How a savepoint may be taken.
SAVEPOINT_MODES = ("aligned", "unaligned")

#: (parallelism, session) to the session's successor; raises UserError without plan or room.
#: None is the parallelism of an operator that sets none, where the job sets none either.
Rescaling = Callable[[int | None, Session], Successor]


class JobHandle:
    """A started job. Its methods may be called from any thread."""

    __slots__ = (
        "_before",
        "_collected",
        "_deliveries",
        "_durable",
        "_earlier",
        "_ending",
        "_name",
        "_page",
        "_parallelism",
        "_rescales",
        "_rescaling",
        "_session",
        "_swap",
        "_totals",
        "_watcher",
    )

    def __init__(
        self,
        name: str,
        session: Session,
        *,
        collected: Mapping[str, Callable[[], pa.Table]],
        rescaling: Rescaling,
        parallelism: int | None = None,
        deliveries: Mapping[str, str] | None = None,
        durable: bool = True,
    ) -> None:
        """Hold a session that has been started.

        Args:
            deliveries: {sink: its promise}.
            collected: {name of a collect sink: reads its table}.
            rescaling: see `Rescaling`.
            parallelism: of the session at its start.
            durable: the job keeps checkpoints.
        """
        self._name = name
        self._session = session
        self._collected = collected
        self._rescaling = rescaling
        self._parallelism = parallelism
        #: Results of the sessions before this one, each ended by a rescale.
        self._earlier: list[JobResult] = []
        #: The last look at them all together.
        self._before: Status | None = None
        self._rescales: list[Rescaled] = []
        #: Counters of the sessions before this one.
        self._totals: dict[str, float] = {}
        #: The requested end of the job: a session that a rescale under way starts is to end like
        #: that.
        self._ending: Callable[[Session], None] | None = None
        # Held while one session replaces another, so that an observer of the first one's end can
        # tell a rescale from the job's end.
        self._swap = threading.Lock()
        self._watcher = Watcher()
        self._page: Page | None = None
        self._deliveries = deliveries or {}
        self._durable = durable

    def __repr__(self) -> str:
        """Say how the job stands, what holds it back, and the rates of its tasks."""
        return as_text(self.observe())

    def _repr_html_(self) -> str:
        """The same for a notebook."""
        return as_html(self.observe())

    @property
    def name(self) -> str:
        """Name of the job."""
        return self._name

    @property
    def page(self) -> str | None:
        """Link to the job's page, with the token of its orders; None: there is no page."""
        return None if self._page is None else self._page.link

    def close_page(self) -> None:
        """End the job's page, once clients have got their last message; the job goes on.

        A page ends by itself soon after its job.
        """
        if self._page is not None:
            self._page.close()

    def shown_on(self, page: Page) -> None:
        """Name the page that shows the job."""
        self._page = page

    def show(self) -> None:
        """Show how the job stands in a notebook, again each second until the job has ended.

        Returns at once. Outside a notebook: print it once.
        """
        from .notebook import show

        show(self)

    @property
    def parallelism(self) -> int | None:
        """The job's parallelism at the start, or since the last rescale; None: one subtask per
        CPU.
        """
        return self._parallelism

    def checkpoint(self) -> int:
        """Take a checkpoint now.

        Returns its number when it is complete. Raises: HeadraceError when it fails.
        """
        return self._session.checkpoint()

    def savepoint(self, path: str | None = None, mode: str | None = None) -> str:
        """Take a savepoint: a checkpoint that needs no other files and belongs to you.

        The job goes on, and never deletes it.

        The savepoint is complete when everything that sinks had written before it is committed, by
        a later checkpoint.

        Args:
            path: its directory, a path or any fsspec URL; None: the job's checkpoint directory.
            mode: "aligned" or "unaligned"; None: as the job's checkpoints. An unaligned one does
                not wait for backpressure.

        Returns: its path, DIRECTORY/JOB/sav-N, which `restore=` takes.

        Raises: UserError when the job keeps no checkpoints, or there is no such mode or directory;
        HeadraceError when it fails.
        """
        return self._session.savepoint(path, _mode(mode))

    def rescale(self, parallelism: int) -> Rescaled:
        """Go on at another parallelism: take an unaligned checkpoint, stop, start from it.
        Operators with their own keep it.

        Returns when the job runs again. When it cannot be started at the new parallelism it goes on
        at the old one.

        Raises: UserError before anything stops, when the job keeps no checkpoints, `parallelism` is
            the present one or above its max parallelism, or there is no room for it; JobFailed when
            the job failed before it had stopped; HeadraceError, which says whether the job runs,
            otherwise.
        """
        check_parallelism(parallelism, where="rescale: parallelism")
        with self._swap:
            if parallelism == self._parallelism:
                raise UserError(f"job {self._name!r} runs at parallelism {parallelism} already")
            began_ns = time.monotonic_ns()
            successor = self._rescaling(parallelism, self._session)
            try:
                # The processes start while this session still works; after its end only the state
                # is left to load.
                successor.await_workers()
                ahead_bytes = successor.fetch_ahead()
                stopping_ns = time.monotonic_ns()
                checkpoint = self._suspended()
            except BaseException:
                successor.discard()
                raise
            stopped_ns = time.monotonic_ns()
            try:
                begun_ns = self._go_on(successor, checkpoint)
            except Exception as failure:
                raise self._gone_on(checkpoint, parallelism, failure) from failure
            now_ns = time.monotonic_ns()
            rescaled = Rescaled(
                parallelism,
                checkpoint,
                stopped_ns - began_ns,
                now_ns - began_ns,
                now_ns - stopping_ns,
                ahead_bytes,
                begun_ns - stopped_ns,
            )
            before, self._parallelism = self._parallelism, parallelism
            self._rescales.append(rescaled)
            self._session.rescaled(
                f"rescaled from {before or 'the default'} to {parallelism} in"
                f" {rescaled.duration_ns / 1e9:.2f} s,"
                f" standing still for {rescaled.standstill_ns / 1e9:.2f} s of it, from"
                f" chk-{checkpoint}"
            )
            return rescaled

    def _suspended(self) -> int:
        """Stop with a checkpoint; return its number.

        Raises: HeadraceError when there is none, or the job is to end.
        """
        self._session.suspend()
        ended = self._session.settled()
        if self._ending is not None:
            raise HeadraceError(f"job {self._name!r} was stopped, so it is not rescaled")
        if ended.last_checkpoint is None:
            raise HeadraceError(f"job {self._name!r} ended without a checkpoint to go on from")
        self._earlier.append(ended)
        return ended.last_checkpoint

    def _go_on(self, successor: Successor, checkpoint: int) -> int:
        """Start from the checkpoint.

        Returns the time (`monotonic_ns`) when the next session had begun; an attempt now runs.
        """
        # A job that reached its end meanwhile is started too: its sources find nothing more, and it
        # ends again.
        before, totals = self.status(), self._totals_now()
        session = successor.begin(checkpoint)
        begun_ns = time.monotonic_ns()
        session.await_start()
        # In this order, the reverse of `status`: a look in between must not count the old session
        # twice.
        self._session = session
        self._before, self._totals = before, totals
        if self._ending is not None:
            self._ending(session)
        return begun_ns

    def _gone_on(self, checkpoint: int, parallelism: int, failure: Exception) -> HeadraceError:
        """Go on at the old parallelism, and return the sentence for the caller."""
        what = f"job {self._name!r} could not be rescaled to {parallelism} ({failure})"
        try:
            self._go_on(self._rescaling(self._parallelism, self._session), checkpoint)
        except Exception as worse:
            return HeadraceError(
                f"{what} nor started again as it was ({worse}); it has stopped: start it with"
                f" restore={checkpoint}"
            )
        return HeadraceError(f"{what}; it goes on as it was, from chk-{checkpoint}")

    def stop(self) -> None:
        """Take a last checkpoint and end the job; `wait` then returns."""
        self._end(lambda session: session.stop())

    def stop_with_savepoint(
        self, path: str | None = None, mode: str | None = None, *, drain: bool = False
    ) -> str:
        """Take a savepoint and end the job exactly there: sinks commit everything before it and
        nothing after; `wait` then returns.

        A later run from the savepoint goes on where this job ended, in this folder
        (`restore="latest"` finds it) or elsewhere.

        Args:
            path: as of `savepoint`.
            mode: as of `savepoint`.
            drain: end the input first, as `drain` does.

        Returns: its path, DIRECTORY/JOB/sav-N, when it is complete.

        Raises: UserError as `savepoint`, before anything happens; HeadraceError when it fails: the
        job then goes on.
        """
        chosen = _mode(mode)
        # A rescale under way is waited for; none begins while the job ends.
        with self._swap:
            session, before = self._session, self._ending
            self._ending = lambda session: session.stop()
            try:
                return session.stop_with_savepoint(path, chosen, drain=drain)
            except HeadraceError:
                self._ending = before
                raise

    def drain(self) -> None:
        """Read nothing more, work on all records read to the end, commit, and end the job; `wait`
        then returns.

        Event time comes to its end: all windows and timers fire. So drain a job that is over: a run
        from its last checkpoint has nothing left to do. To go on later, use `stop`.
        """
        self._end(lambda session: session.drain())

    def cancel(self) -> None:
        """End the job at once; records that no checkpoint covers are not committed."""
        self._end(lambda session: session.cancel())

    def wait(self, timeout_s: float | None = None) -> JobResult:
        """Wait until the job has ended.

        Args:
            timeout_s: seconds; None waits for ever.

        An interrupt (Ctrl-C, a notebook's stop button) stops the job with a last checkpoint, a
        second one at once.

        Raises: JobFailed when it ended in failure; TimeoutError when it still runs, which leaves it
        running; KeyboardInterrupt when an interrupt has ended it.
        """
        with plain_interrupts():
            try:
                return self._await_end(timeout_s)
            except KeyboardInterrupt:
                end_interrupted(
                    self,
                    lambda: self._await_end(None),
                    durable=self._durable,
                    ends=self._ending is not None,
                )
                raise

    def _await_end(self, timeout_s: float | None) -> JobResult:
        """Wait until the job has ended. Raises: JobFailed; TimeoutError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            session = self._session
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            result = session.wait(left)
            left = -1 if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._swap.acquire(timeout=left):
                raise TimeoutError(f"job {self._name!r} is being rescaled after {timeout_s} s")
            try:
                if session is self._session:
                    return self._whole(result)
            finally:
                self._swap.release()

    def status(self) -> Status:
        """Return a look at the job now: phase, attempt, numbers of each subtask, latest notices and
        checkpoints.
        """
        before = self._before
        status = self._session.status()
        return status if before is None else _continued(before, status)

    def metrics(self) -> Mapping[str, float]:
        """Return the current numbers by metric name."""
        before = self._totals
        metrics = dict(self._session.metrics())
        for name, value in before.items():
            metrics[name] = metrics.get(name, 0.0) + value
        return metrics | observed_metrics(self.observe()) | rescale_metrics(self._rescales)

    def observe(self) -> Observation:
        """Look at the job: its tasks, edges, checkpoints and sinks, and the sentence that says what
        holds the job back.

        Cheap: callers within half a second share a look.
        """
        session, deliveries = self._session, self._deliveries
        return self._watcher.look(session, lambda: session.observer(deliveries), self.status)

    def events(self, since: int = 0) -> list[Event]:
        """Return what has happened to the job after event number `since`, oldest first.

        The job remembers the latest 1,000 events.
        """
        return events_of(self.status(), since)

    def trace(self, tracer: Tracer | None = None) -> None:
        """Make an OpenTelemetry trace of each checkpoint and each recovery, until the job ends.

        Args:
            tracer: None: that of the program's tracer provider.

        Raises: UserError without the library: `pip install 'headrace[otel]'`.
        """
        from .traces import follow

        follow(self, tracer)

    def _totals_now(self) -> dict[str, float]:
        """Counters of all sessions so far, by metric name."""
        found = {n: v for n, v in self.metrics().items() if "_total" in n}
        return {name: value for name, value in found.items() if "_rescales_" not in name}

    def _end(self, how: Callable[[Session], None]) -> None:
        self._ending = how
        how(self._session)

    def _whole(self, last: JobResult) -> JobResult:
        """The result of all sessions together."""
        sessions = [*self._earlier, last]
        return replace(
            last,
            duration_ns=sum(session.duration_ns for session in sessions),
            checkpoints=sum(session.checkpoints for session in sessions),
            restarts=sum(session.restarts for session in sessions),
            collected={name: read() for name, read in self._collected.items()},
        )


def _mode(mode: str | None) -> CheckpointMode | None:
    """How a savepoint is to be taken. Raises: UserError."""
    if mode is not None and mode not in SAVEPOINT_MODES:
        raise UserError(f"savepoint: mode={mode!r} is neither 'aligned' nor 'unaligned'")
    return None if mode is None else CheckpointMode(mode)


def rescale_metrics(rescales: Sequence[Rescaled]) -> dict[str, float]:
    """Return a job's rescales in numbers."""
    metrics: dict[str, float] = {"headrace_rescales_total": len(rescales)}
    if rescales:
        metrics["headrace_rescale_seconds"] = rescales[-1].duration_ns / 1e9
    return metrics


def _continued(before: Status, status: Status) -> Status:
    """Return a look at a session as the continuation of the session before: notices are numbered
    on, totals go on.
    """
    told = before.notices[-1][0] if before.notices else 0
    notices = tuple((told + number, notice) for number, notice in status.notices)
    return replace(
        status,
        restarts=before.restarts + status.restarts,
        failed=before.failed + status.failed,
        notices=(*before.notices, *notices)[-_REMEMBERED:],
        checkpoints=(*before.checkpoints, *status.checkpoints)[-_REMEMBERED:],
        completed=before.completed + status.completed,
    )
