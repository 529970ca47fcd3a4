"""A run of a job of several regions: a session for each, behind one `Session`.

The supervisor (`coordinator/supervisor.py`) decides what concerns more than one region; a thread
here looks at the regions, performs its effects, and ends with the last region.

Every region is a job of its own in the checkpoint directory, with the folder JOB.REGION. The logs
lie in the folder JOB, as do savepoints (`region_savepoints.py`). Readers are saved before writers,
so that no reader has read beyond its writer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from headrace.channels.events import CheckpointMode

from ..connectors.edge_log import EdgeLogCommitter
from ..contract.errors import HeadraceError, JobFailed, UserError
from ..contract.execution import ExecutionPlan
from ..contract.launcher import LauncherMaker
from ..contract.options import RunOptions
from ..contract.outcomes import JobResult
from ..contract.places import absolute
from ..coordinator import supervisor as s
from ..coordinator.coordinator import CoordinatorStatistics
from ..coordinator.coordinator_events import Notice, NoticeKind, Outcome
from ..coordinator.region_choice import RegionSeen
from ..coordinator.rules import Phase
from ..drivers.status import Status
from ..observation.observer import Observer, observer_of
from . import region_savepoints
from .handle import Successor
from .metrics import metrics_of
from .outputs import committers_of, is_volatile
from .region_batches import Batches, Next
from .region_places import RegionPlaces
from .region_plan import RegionPlan, RegionsPlan
from .region_reports import Notices, Progress
from .region_starts import cut_logs, fitting, starts_of
from .session import PreparedJob, RunningJob

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.05
#: How often writers take a checkpoint for one of their readers that waits.
_COVER_EVERY_S = 0.1
#: How often it is looked whether a batch is to begin.
_BATCHES_EVERY_S = 0.2
#: How often it is looked for what logs hold in vain.
_TRIM_EVERY_S = 2.0
_PHASES = (
    Phase.RESTARTING,
    Phase.PREPARING,
    Phase.DEPLOYING,
    Phase.RUNNING,
    Phase.CLOSING,
    Phase.ENDED,
)


def start_regions(
    plan: RegionsPlan, options: RunOptions, make_launcher: LauncherMaker
) -> RegionsSession:
    """Start all regions. Raises: UserError, StorageUnreachable before anything runs."""
    volatile = _is_volatile(plan)
    starts, warnings = fitting(plan, starts_of(plan, options, volatile=volatile))
    cut_logs(plan, starts)
    running: dict[str, RunningJob] = {}
    try:
        for region in plan.regions:
            start = starts[region.name]
            prepared = PreparedJob(region.plan, region.options, make_launcher, volatile=False)
            running[region.name] = prepared.begin(start)
    except BaseException:
        for session in running.values():
            session.cancel()
        for session in running.values():
            with suppress(HeadraceError):
                session.wait(None)
        raise
    return RegionsSession(plan, running, make_launcher, options, warnings)


def _is_volatile(plan: RegionsPlan) -> bool:
    """All output of the job ends with this process."""
    logs = {log for region in plan.regions for log in region.writes}
    for region in plan.regions:
        committers = committers_of(region.plan)
        kept = {name: c for name, c in committers.items() if name not in logs}
        sinks = [o for task in region.plan.tasks for o in task.operators if o.sink is not None]
        if any(o.name not in logs for o in sinks) and not _only(region.plan, kept, logs):
            return False
    return True


def _only(plan: ExecutionPlan, committers: Mapping[str, object], logs: set[str]) -> bool:
    tasks = tuple(task for task in plan.tasks if task.operators[-1].name not in logs)
    return is_volatile(replace(plan, tasks=tasks), committers)  # type: ignore[arg-type]


def _first_workers(statuses: Mapping[str, Status]) -> dict[str, int]:
    """Number the workers of all regions: {region: the number of its first}."""
    first, total = {}, 0
    for name, status in statuses.items():
        first[name] = total
        total += max(status.workers, default=-1) + 1
    return first


def _together(parts: Sequence[CoordinatorStatistics]) -> CoordinatorStatistics:
    under_way = [each for part in parts for each in part.under_way]
    open_transactions = {k: v for part in parts for k, v in part.open_transactions.items()}
    return CoordinatorStatistics(tuple(under_way), open_transactions)


class RegionsSession:
    """A started job of several regions (a `Session`)."""

    def __init__(
        self,
        plan: RegionsPlan,
        running: Mapping[str, RunningJob],
        make_launcher: LauncherMaker,
        options: RunOptions,
        warnings: Sequence[str] = (),
    ) -> None:
        self._plan = plan
        self._options = options
        self._make_launcher = make_launcher
        self._running = dict(running)
        #: Of sessions of regions that have another one by now.
        self._past_restarts = self._past_completed = 0
        #: {region: how often in a row it went back with another one, without a checkpoint}.
        self._rolled: dict[str, int] = {}
        #: Orders so far, each with its regions, for sessions to come.
        self._orders: list[tuple[Callable[[RunningJob], None], set[str]]] = []
        self._ordering = threading.Lock()
        #: A region has failed, and the supervisor has not looked at all of them since.
        self._failed = False
        self._began_ns = time.monotonic_ns()
        self._ended = threading.Event()
        self._ended_ns = 0
        self._failure: JobFailed | None = None
        self._results: dict[str, JobResult] = {}
        self._savepoint: str | None = None
        self._supervisor = s.Supervisor(plan.specs)
        self._places = {r.name: RegionPlaces(plan.store, r.plan.job, r.reads) for r in plan.regions}
        #: Effects of the supervisor that are not performed yet.
        self._to_do: list[s.SupervisorEffect] = []
        self._progress = {r.name: Progress(r) for r in plan.regions}
        self._batches = {
            r.name: Batches(plan, r, every_ns, self._began_ns)
            for r in plan.regions
            if (every_ns := r.settings.batch_every_ns) is not None
        }
        self._look_at_batches_at_s = 0.0
        self._told = Notices([r.name for r in plan.regions])
        for text in warnings:
            _log.warning("job %r: %s", plan.job, text)
            self._told.add(Notice(NoticeKind.FAILOVER, text))
        self._thread = threading.Thread(target=self._watch, name=f"regions-{plan.job}", daemon=True)
        self._thread.start()

    @property
    def plan(self) -> RegionsPlan:
        """What runs."""
        return self._plan

    # --- what is asked ------------------------------------------------------------------------

    def checkpoint(self) -> int:
        """Take a checkpoint of each region that runs; return the highest number.

        Raises: HeadraceError.
        """
        numbers = []
        for name in self._readers_first():
            session = self._running[name]
            if session.status().phase is not Phase.ENDED:
                with self._covered(name):
                    numbers.append(session.checkpoint())
        if not numbers:
            raise HeadraceError("the job has ended")
        return max(numbers)

    def savepoint(self, path: str | None, mode: CheckpointMode | None) -> str:
        """Take a savepoint of each region, under one name. Raises: UserError, HeadraceError."""
        self._check_place(path)
        self._check_all_run()
        return self._saved(lambda session: session.savepoint(None, mode))

    def stop_with_savepoint(
        self, path: str | None, mode: CheckpointMode | None, *, drain: bool
    ) -> str:
        """Stop each region with a savepoint. Raises: UserError, HeadraceError."""
        self._check_place(path)
        if drain:
            raise UserError(
                "a job of several regions cannot drain into a savepoint: drain it, or stop it with"
                " a savepoint"
            )
        self._check_all_run()
        stopped: list[str] = []

        def save(session: RunningJob) -> str:
            path = session.stop_with_savepoint(None, mode, drain=False)
            stopped.append(path)
            return path

        try:
            self._savepoint = self._saved(save)
        except HeadraceError as error:
            if not stopped:
                raise
            self.stop()
            raise HeadraceError(
                f"{error}; other regions had stopped by then, so the whole job stops: it goes on"
                " from its checkpoints when it is started again"
            ) from error
        return self._savepoint

    def _saved(self, save: Callable[[RunningJob], str]) -> str:
        numbers: dict[str, int] = {}
        for name in self._readers_first():
            with self._covered(name):
                numbers[name] = int(save(self._running[name]).rpartition("-")[2])
        return region_savepoints.write(self._plan, numbers)

    @contextmanager
    def _covered(self, region: str) -> Iterator[None]:
        """Let regions take checkpoints while one waits for them, whose records it has read at once;
        they may have none of their own for long.
        """
        writers = self._plan.read_early_by(region)
        done = threading.Event()

        def cover() -> None:
            while not done.wait(_COVER_EVERY_S):
                for name in writers:
                    with suppress(HeadraceError):
                        self._running[name].checkpoint()

        thread = threading.Thread(target=cover, name=f"cover-{region}", daemon=True)
        if writers:
            thread.start()
        try:
            yield
        finally:
            done.set()
            if writers:
                thread.join()

    def _check_all_run(self) -> None:
        if self._batches:
            raise UserError(
                f"region {min(self._batches)!r} runs in batches, which have no savepoints: stop the"
                " job; it goes on from its checkpoints"
            )
        ended = [n for n, session in self._running.items() if session.status().phase is Phase.ENDED]
        if ended:
            raise HeadraceError(
                f"region {ended[0]!r} has ended, and the others work off what it wrote: there is no"
                " savepoint of all regions any more; stop() keeps the job's place as well"
            )

    def _check_place(self, path: str | None) -> None:
        here = absolute(self._plan.directory).rstrip("/")
        if path is not None and absolute(path).rstrip("/") != here:
            raise UserError(
                "a savepoint of a job of several regions lies in its own checkpoint directory,"
                " where the logs are: leave the path out"
            )

    def _readers_first(self) -> list[str]:
        return [region.name for region in reversed(self._plan.regions)]

    def stop(self) -> None:
        """Take a last checkpoint of each region and end."""
        self._order(RunningJob.stop)

    def _order(
        self, order: Callable[[RunningJob], None], regions: Sequence[str] | None = None
    ) -> None:
        """Give an order to these regions, or to all; also to sessions of theirs to come."""
        names = set(self._running if regions is None else regions)
        with self._ordering:
            self._orders.append((order, names))
            for name in names:
                order(self._running[name])

    def _repeat_orders(self, region: str, session: RunningJob) -> None:
        for order, names in self._orders:
            if region in names:
                order(session)

    def drain(self) -> None:
        """End the input of the regions that read no log; the others end with their logs.

        Raises: UserError for a region that reads a log and another source.
        """
        for region in self._plan.regions:
            sources = [task.operators[0].name for task in region.plan.tasks if task.is_source]
            if region.reads and set(sources) - set(region.reads):
                raise UserError(
                    f"region {region.name!r} reads a log and another source, so it cannot be"
                    " drained: stop the job instead"
                )
        first = [region.name for region in self._plan.regions if not region.reads]
        self._order(RunningJob.drain, first)

    def suspend(self) -> None:
        """Take an unaligned checkpoint of each region, and end."""
        self._order(RunningJob.suspend)

    def await_start(self) -> None:
        """Wait until every region runs. Raises: JobFailed."""
        for session in self._running.values():
            session.await_start()

    def successor(self, plan: ExecutionPlan, options: RunOptions) -> Successor:
        """Refuse: a job of several regions is stopped and started again."""
        raise UserError(
            "a job of several regions is not rescaled while it runs: stop it, and start it again"
            " with other parallelism, of the job or of hr.Region"
        )

    def rescaled(self, text: str) -> None:
        """Never called: there is no successor."""
        raise AssertionError("a job of regions has no successor")

    def cancel(self) -> None:
        """End at once."""
        self._order(RunningJob.cancel)

    # --- what is told -------------------------------------------------------------------------

    def wait(self, timeout_s: float | None) -> JobResult:
        """Wait for the end. Raises: JobFailed; TimeoutError."""
        if not self._ended.wait(timeout_s):
            raise TimeoutError(f"job {self._plan.job!r} still runs after {timeout_s} s")
        return self.settled()

    def settled(self) -> JobResult:
        """Wait for the end. Raises: JobFailed."""
        self._ended.wait()
        if self._failure is not None:
            raise self._failure
        results = self._results.values()
        numbers = [r.last_checkpoint for r in results if r.last_checkpoint is not None]
        return JobResult(
            job=self._plan.job,
            duration_ns=self._ended_ns - self._began_ns,
            checkpoints=self.status().completed,
            restarts=self.status().restarts,
            last_checkpoint=max(numbers, default=None),
            outcome="finished" if all(r.outcome == "finished" for r in results) else "stopped",
            savepoint=self._savepoint,
        )

    def status(self) -> Status:
        """Look at all regions: tasks are numbered as in the whole plan."""
        with self._ordering:
            running = dict(self._running)
            restarts, done = self._past_restarts, self._past_completed
        statuses = {name: session.status() for name, session in running.items()}
        numbers = {
            (task + self._plan.whole.regions[name][0], subtask): number
            for name, status in statuses.items()
            for (task, subtask), number in status.numbers.items()
        }
        first = _first_workers(statuses)
        completed = [c for status in statuses.values() for c in status.checkpoints]
        return Status(
            phase=self._phase(statuses),
            epoch=max(status.epoch for status in statuses.values()),
            restarts=sum(each.restarts for each in statuses.values()) + restarts,
            numbers=numbers,
            notices=self._told.of(statuses),
            checkpoints=tuple(sorted(completed, key=lambda c: c.created_ms)),
            completed=sum(each.completed for each in statuses.values()) + done,
            workers={
                worker + first[name]: pid
                for name, status in statuses.items()
                for worker, pid in status.workers.items()
            },
            seen={
                worker + first[name]: seen
                for name, status in statuses.items()
                for worker, seen in status.seen.items()
            },
            places={
                (task + self._plan.whole.regions[name][0], subtask): worker + first[name]
                for name, status in statuses.items()
                for (task, subtask), worker in status.places.items()
            },
            commits={k: v for status in statuses.values() for k, v in status.commits.items()},
            past={
                (task + self._plan.whole.regions[name][0], subtask): totals
                for name, status in statuses.items()
                for (task, subtask), totals in status.past.items()
            },
            failed=sum(status.failed for status in statuses.values()),
            coordinator=_together([status.coordinator for status in statuses.values()]),
        )

    def observer(self, deliveries: Mapping[str, str]) -> Observer:
        """Make what computes observations of the whole job. `deliveries`: {sink: its promise}."""
        return observer_of(self._plan.whole, self._options, deliveries)

    def _phase(self, statuses: Mapping[str, Status]) -> Phase:
        phase = min((status.phase for status in statuses.values()), key=_PHASES.index)
        waits = phase is Phase.ENDED and bool(self._batches) and not self._ended.is_set()
        return Phase.RUNNING if waits else phase

    def regions(self) -> Mapping[str, Status]:
        """Look at each region by itself."""
        return {name: session.status() for name, session in self._running.items()}

    def metrics(self) -> Mapping[str, float]:
        """Return the current numbers by metric name."""
        return metrics_of(self._plan.whole, self.status(), time.time_ns())

    # --- the thread of the supervisor ---------------------------------------------------------

    def _watch(self) -> None:
        left = dict(self._running)
        trim_at_s = time.monotonic() + _TRIM_EVERY_S
        while left:
            time.sleep(_LOOK_EVERY_S)
            self._perform_all()
            for name in left:
                self._look_for_restart(name)
            self._look_for_cuts()
            for name in left:
                left[name] = self._running[name]
            for name, session in list(left.items()):
                if session.has_settled and not self._goes_on(name, session):
                    del left[name]
                    self._step(s.RegionSettled(name, self._outcome(name, session)))
            if time.monotonic() >= trim_at_s:
                self._look_at_places()
                trim_at_s = time.monotonic() + _TRIM_EVERY_S
        for session in self._running.values():
            session.wait_for_workers()
        self._look_at_places()
        self._ended_ns = time.monotonic_ns()
        self._ended.set()

    def _goes_on(self, name: str, session: RunningJob) -> bool:
        """A batch has ended, and another will come, or comes now."""
        if name not in self._batches or name in self._results:
            return False
        try:
            result = session.settled()
        except JobFailed:
            return False
        if result.outcome != "finished" or self._is_stopping(name):
            self._results[name] = replace(result, outcome="stopped")
            return False
        if time.monotonic() < self._look_at_batches_at_s:
            return True
        self._look_at_batches_at_s = time.monotonic() + _BATCHES_EVERY_S
        try:
            following = self._batches[name].next(time.monotonic_ns())
            if following is Next.BEGIN:
                session.wait_for_workers()
                region = next(each for each in self._plan.regions if each.name == name)
                self._start_again(region, "auto", before=None)
        except Exception as error:
            _log.warning("the next batch of region %r does not begin: %s", name, error)
            return True
        return following is not Next.OVER

    def _is_stopping(self, region: str) -> bool:
        with self._ordering:
            return any(region in names for _, names in self._orders)

    def _outcome(self, name: str, session: RunningJob) -> Outcome:
        try:
            self._results.setdefault(name, session.settled())
        except JobFailed as failure:
            if self._failure is None:
                self._failure = JobFailed(f"region {name!r} failed: {failure}")
            return Outcome.FAILED
        done = self._results[name].outcome == "finished"
        return Outcome.FINISHED if done else Outcome.STOPPED

    def _look_for_restart(self, name: str) -> None:
        restarted = self._progress[name].looked(self._running[name].status())
        if restarted is not None:
            self._failed = True
            self._step(restarted)

    def _look_for_cuts(self) -> None:
        """After a failure: see which regions have read what a log has lost."""
        if not self._failed:
            return
        try:
            # Readers first: their writers have completed what they have read.
            regions = {
                region.name: RegionSeen(self._places[region.name].kept(), runs=True)
                for region in reversed(self._plan.regions)
            }
            seen = s.RegionsSeen(regions, self._plan.logs())
        except Exception as error:
            _log.warning("what job %r has lost is not known: %s", self._plan.job, error)
            return
        self._failed = False
        self._step(seen)

    def _roll_back(self, checkpoints: Mapping[str, int]) -> None:
        """Stop regions, cut their logs, and start them again."""
        sessions = {name: self._running[name] for name in checkpoints}
        self._count(sessions)
        for session in sessions.values():
            session.cancel()
        for session in sessions.values():
            with suppress(JobFailed):
                session.wait(None)
        cut_logs(self._plan, checkpoints)
        for region in self._plan.regions:
            if region.name in checkpoints:
                self._past_restarts += 1
                before = self._running[region.name]
                self._start_again(region, checkpoints[region.name], before)

    def _count(self, sessions: Mapping[str, RunningJob]) -> None:
        """Raises: HeadraceError for a region that goes back again and again."""
        limits = {each.name: each.options.restart.attempts for each in self._plan.regions}
        for name, session in sessions.items():
            self._rolled[name] = 0 if session.status().completed else self._rolled.get(name, 0) + 1
            if self._rolled[name] > limits[name]:
                raise HeadraceError(
                    f"region {name!r} went back {self._rolled[name]} times in a row without a"
                    " checkpoint in between"
                )

    def _give_up(self, reason: str) -> None:
        """Fail, and end all regions at once: one that cannot run takes no last checkpoint."""
        self._failure = self._failure or JobFailed(reason)
        self.cancel()

    def _start_again(
        self, region: RegionPlan, restore: str | int, before: RunningJob | None
    ) -> None:
        """Begin another session of a region.

        Args:
            before: the session that was to run on; None: it has ended as it should.
        """
        past = self._running[region.name].status()
        self._told.of({region.name: past})
        prepared = PreparedJob(
            region.plan,
            region.options,
            self._make_launcher,
            before,
            volatile=None if before else False,
        )
        session = prepared.begin(restore)
        with self._ordering:
            self._past_restarts += past.restarts
            self._past_completed += past.completed
            self._running[region.name] = session
            self._progress[region.name] = Progress(region)
            self._told.begin(region.name)
            self._repeat_orders(region.name, session)

    def _look_at_places(self) -> None:
        for name, places in self._places.items():
            if not self._plan.specs[name].reads:
                continue
            try:
                self._step(s.CheckpointsKept(name, places.needs()))
            except Exception as error:
                _log.warning("what region %r needs of its logs is not known: %s", name, error)

    def _step(self, event: s.SupervisorEvent) -> None:
        self._to_do += self._supervisor.step(event)
        self._supervisor.check()
        self._perform_all()

    def _perform_all(self) -> None:
        """Perform effects in order; one that storage refuses is tried again at the next look."""
        while self._to_do:
            try:
                self._perform(self._to_do[0])
            except Exception as error:
                _log.warning("job %r: %r is tried again: %s", self._plan.job, self._to_do[0], error)
                return
            del self._to_do[0]

    def _perform(self, effect: s.SupervisorEffect) -> None:
        match effect:
            case s.EndLog(log):
                EdgeLogCommitter(self._plan.files(log)).finish()
            case s.TrimLog(log, below):
                self._plan.files(log).trim(below)
            case s.StopRegion(region):
                self._running[region].stop()
            case s.RollBack(checkpoints):
                try:
                    self._roll_back(checkpoints)
                except HeadraceError as error:
                    names = ", ".join(checkpoints)
                    self._give_up(f"regions {names} could not be started again: {error}")
            case s.GiveUp(reason):
                self._give_up(reason)
            case s.ReportFailover(text):
                _log.info("job %r: %s", self._plan.job, text)
                self._told.add(Notice(NoticeKind.FAILOVER, text))
