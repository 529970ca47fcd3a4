"""A run of a job of several regions: a session for each, behind one `Session`.

The supervisor (`coordinator/supervisor.py`) decides what concerns more than one region; a thread
here looks at the regions, performs its effects, and ends with the last region.

Every region is a job of its own in the checkpoint directory, with the folder JOB.REGION. The logs
lie in the folder JOB, as does the vector of a savepoint: JOB/regions/sav-N names a savepoint of
each region. Readers are saved before writers, so that no reader has read beyond its writer.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from headrace.channels.events import CheckpointMode
from headrace.recovery.edge_log import CorruptEntry
from headrace.recovery.edge_log_files import EdgeLogFiles
from headrace.recovery.frontiers.fixed_point import NoConsistentChoice
from headrace.recovery.layout import job_folder
from headrace.recovery.store import AlreadyExists, NotFound, Store, StoreError

from ..connectors.edge_log import EdgeLogCommitter
from ..contract.errors import HeadraceError, JobFailed, StorageUnreachable, UserError
from ..contract.execution import ExecutionPlan
from ..contract.launcher import LauncherMaker
from ..contract.options import RunOptions
from ..contract.outcomes import JobResult
from ..contract.places import absolute
from ..coordinator import supervisor as s
from ..coordinator.coordinator_events import Notice, NoticeKind, Outcome
from ..coordinator.region_choice import LogSeen, RegionSeen, RegionSpec, going_back
from ..coordinator.rules import Phase
from ..drivers.restore import resolve
from ..drivers.status import Status
from ..storage.checkpoint_storage import open_store
from .handle import Successor
from .metrics import metrics_of
from .outputs import committers_of, is_volatile
from .region_places import RegionPlaces
from .session import PreparedJob, RunningJob

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.05
#: How often it is looked for what logs hold in vain.
_TRIM_EVERY_S = 2.0
_NOTICES_MAX = 1000
_VECTOR_BYTES_MAX = 1024**2
_VECTOR = re.compile(r".*/regions/sav-(?P<number>[0-9]{1,18})/?")
_PHASES = (
    Phase.RESTARTING,
    Phase.PREPARING,
    Phase.DEPLOYING,
    Phase.RUNNING,
    Phase.CLOSING,
    Phase.ENDED,
)


@dataclass(frozen=True)
class RegionPlan:
    """One region, ready to run.

    Attributes:
        plan: whose job is JOB.REGION.
        options: the region's.
        writes, reads: names of logs.
    """

    name: str
    plan: ExecutionPlan
    options: RunOptions
    writes: Sequence[str]
    reads: Sequence[str]


@dataclass(frozen=True)
class RegionsPlan:
    """A job of several regions.

    Attributes:
        regions: those that write a log before those that read it.
        whole: all regions as one plan, to be shown.
    """

    job: str
    regions: Sequence[RegionPlan]
    whole: ExecutionPlan
    directory: str

    @cached_property
    def store(self) -> Store:
        """The checkpoint directory."""
        return open_store(self.directory)

    def files(self, log: str) -> EdgeLogFiles:
        """The files of a log."""
        return EdgeLogFiles(self.store, self.job, log)

    @cached_property
    def specs(self) -> Mapping[str, RegionSpec]:
        """The logs and sinks of each region."""
        return {
            r.name: RegionSpec(
                tuple(r.writes),
                tuple(r.reads),
                tuple(
                    o.name
                    for task in r.plan.tasks
                    for o in task.operators
                    if o.sink is not None and o.name not in r.writes
                ),
            )
            for r in self.regions
        }

    def logs(self) -> dict[str, LogSeen]:
        """Read the entries of all logs. Raises: StoreError, CorruptEntry."""
        return {
            log: LogSeen(list(self.files(log).newest_first())[::-1])
            for region in self.regions
            for log in region.writes
        }


def region_job(job: str, region: str) -> str:
    """Name the job that a region is in the checkpoint directory. Format, never change."""
    return f"{job}.{region}"


class _Vector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A savepoint of a job: {region: number of its savepoint}."""

    regions: dict[str, int]


def start_regions(
    plan: RegionsPlan, options: RunOptions, make_launcher: LauncherMaker
) -> RegionsSession:
    """Start all regions. Raises: UserError, StorageUnreachable before anything runs."""
    volatile = _is_volatile(plan)
    starts, warnings = _fitting(plan, _starts(plan, options, volatile=volatile))
    _cut_logs(plan, starts)
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
    return RegionsSession(plan, running, make_launcher, warnings)


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


def _starts(
    plan: RegionsPlan, options: RunOptions, *, volatile: bool
) -> dict[str, str | int | None]:
    """Where each region starts; None: anew. Raises: UserError, StorageUnreachable."""
    restore = None if options.fresh else options.restore
    if restore is None or (restore == "auto" and volatile):
        return dict.fromkeys((region.name for region in plan.regions), None)
    if restore == "auto":
        return dict.fromkeys((region.name for region in plan.regions), "auto")
    if restore == "latest":
        return _latest(plan)
    return dict(_vector(plan, restore).regions)


def _latest(plan: RegionsPlan) -> dict[str, str | int | None]:
    found = {region.name: _number(plan, region, "auto") for region in plan.regions}
    if not any(found.values()):
        raise UserError(
            f"restore='latest': no region of job {plan.job!r} has a complete checkpoint in"
            f" {plan.directory}; leave restore out to begin anew"
        )
    return {name: "auto" if number else None for name, number in found.items()}


def _number(plan: RegionsPlan, region: RegionPlan, restore: str | int | None) -> int:
    """Number of the checkpoint from which a region starts; 0: anew."""
    found = resolve(plan.store, region.plan.job, restore, plan.directory)
    return 0 if found.metadata is None else found.metadata.checkpoint


def _vector(plan: RegionsPlan, restore: str | int) -> _Vector:
    """Read the savepoint of all regions that `restore` names. Raises: UserError."""
    match = _VECTOR.fullmatch(str(restore))
    known = None if match is None else f"{plan.directory.rstrip('/')}/{_vector_path(plan, 0)[:-1]}"
    if match is None or not str(restore).startswith(str(known)):
        raise UserError(
            f"restore={restore!r}: a job of several regions starts from 'auto', 'latest' or one of"
            f" its savepoints, {plan.directory.rstrip('/')}/{_vector_path(plan, 0)[:-1]}N"
        )
    try:
        data = plan.store.get(_vector_path(plan, int(match["number"])), bytes_max=_VECTOR_BYTES_MAX)
        vector = msgspec.json.decode(data, type=_Vector)
    except NotFound:
        raise UserError(f"restore={restore!r}: there is no such savepoint") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UserError(f"restore={restore!r}: it is damaged ({error})") from None
    except StoreError as error:
        raise StorageUnreachable(f"the checkpoint directory cannot be read: {error}") from error
    if vector.regions.keys() != {region.name for region in plan.regions}:
        raise UserError(
            f"restore={restore!r} holds the regions {', '.join(sorted(vector.regions))}, and the"
            f" job has {', '.join(sorted(region.name for region in plan.regions))}"
        )
    return vector


def _vector_path(plan: RegionsPlan, number: int) -> str:
    return f"{job_folder(plan.job)}/regions/sav-{number}"


def _fitting(
    plan: RegionsPlan, starts: dict[str, str | int | None]
) -> tuple[dict[str, str | int | None], list[str]]:
    """Let regions go back whose newest checkpoint has read more than its writer starts with.

    Returns the starts, and a sentence about each of these regions.

    Raises: UserError, StorageUnreachable.
    """
    if set(starts.values()) != {"auto"}:
        return starts, []
    try:
        seen = {
            region.name: RegionSeen(
                RegionPlaces(plan.store, region.plan.job, region.reads).kept(
                    _number(plan, region, starts[region.name])
                ),
                runs=False,
            )
            for region in reversed(plan.regions)
        }
        back = going_back(plan.specs, seen, plan.logs())
    except NoConsistentChoice as none:
        raise UserError(s.cannot_go_back(none)) from none
    except StoreError as error:
        raise StorageUnreachable(f"the checkpoint directory cannot be read: {error}") from error
    except CorruptEntry as error:
        raise UserError(f"{error}; fresh=True begins the job anew") from error
    numbers = {each.region: each.checkpoint for each in back}
    return starts | numbers, [s.went_back(each, plan.specs[each.region]) for each in back]


def _cut_logs(plan: RegionsPlan, starts: Mapping[str, str | int | None]) -> None:
    """Cut each log to where its writing region starts, before a reader looks at it.

    Raises: UserError, StorageUnreachable.
    """
    for region in (each for each in plan.regions if each.name in starts):
        number = _number(plan, region, starts[region.name])
        for log in region.writes:
            files = plan.files(log)
            try:
                last = files.last()
                if last is not None:
                    EdgeLogCommitter(files).cut(number, last.epoch)
            except StoreError as error:
                raise StorageUnreachable(f"log {log!r} cannot be read: {error}") from error
            except (CorruptEntry, HeadraceError) as error:
                raise UserError(f"log {log!r}: {error}") from error


class RegionsSession:
    """A started job of several regions (a `Session`)."""

    def __init__(
        self,
        plan: RegionsPlan,
        running: Mapping[str, RunningJob],
        make_launcher: LauncherMaker,
        warnings: Sequence[str] = (),
    ) -> None:
        self._plan = plan
        self._make_launcher = make_launcher
        self._running = dict(running)
        #: Sessions of regions that went back with another one.
        self._past: list[RunningJob] = []
        #: Orders so far, for sessions to come.
        self._orders: list[Callable[[RunningJob], None]] = []
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
        self._progress = {r.name: _Progress(r) for r in plan.regions}
        self._told = _Notices([r.name for r in plan.regions])
        for text in warnings:
            _log.warning("job %r: %s", plan.job, text)
            self._told.add(Notice(NoticeKind.FAILOVER, text))
        self._thread = threading.Thread(target=self._watch, name=f"regions-{plan.job}", daemon=True)
        self._thread.start()

    # --- what is asked ------------------------------------------------------------------------

    def checkpoint(self) -> int:
        """Take a checkpoint of each region; return the highest number."""
        return max(self._running[name].checkpoint() for name in self._readers_first())

    def savepoint(self, path: str | None, mode: CheckpointMode | None) -> str:
        """Take a savepoint of each region, under one name. Raises: UserError, HeadraceError."""
        self._check_place(path)
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
        self._savepoint = self._saved(
            lambda session: session.stop_with_savepoint(None, mode, drain=False)
        )
        return self._savepoint

    def _saved(self, save: Callable[[RunningJob], str]) -> str:
        numbers: dict[str, int] = {}
        for name in self._readers_first():
            numbers[name] = int(save(self._running[name]).rpartition("-")[2])
        number, data = 1, msgspec.json.encode(_Vector(numbers))
        while True:
            path = _vector_path(self._plan, number)
            try:
                self._plan.store.create(path, data)
            except AlreadyExists:
                number += 1
            except StoreError as error:
                raise StorageUnreachable(f"the savepoint cannot be written: {error}") from error
            else:
                return f"{self._plan.directory.rstrip('/')}/{path}"

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

    def _order(self, order: Callable[[RunningJob], None]) -> None:
        with self._ordering:
            self._orders.append(order)
            for session in self._running.values():
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
        for region in self._plan.regions:
            if not region.reads:
                self._running[region.name].drain()

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
        """Wait for the end. Interrupted, it cancels the job. Raises: JobFailed; TimeoutError."""
        try:
            ended = self._ended.wait(timeout_s)
        except KeyboardInterrupt:
            self.cancel()
            self._ended.wait()
            raise
        if not ended:
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
            running, past = dict(self._running), list(self._past)
        statuses = {name: session.status() for name, session in running.items()}
        each_status = [*statuses.values(), *(session.status() for session in past)]
        numbers = {
            (task + self._plan.whole.regions[name][0], subtask): number
            for name, status in statuses.items()
            for (task, subtask), number in status.numbers.items()
        }
        pids = [pid for status in statuses.values() for _, pid in sorted(status.workers.items())]
        completed = [c for status in statuses.values() for c in status.checkpoints]
        return Status(
            phase=min((status.phase for status in statuses.values()), key=_PHASES.index),
            epoch=max(status.epoch for status in statuses.values()),
            restarts=sum(each.restarts for each in each_status) + len(past),
            numbers=numbers,
            notices=self._told.of(statuses),
            checkpoints=tuple(sorted(completed, key=lambda c: c.created_ms)),
            completed=sum(each.completed for each in each_status),
            workers=dict(enumerate(pids)),
        )

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
                if session.has_settled:
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

    def _outcome(self, name: str, session: RunningJob) -> Outcome:
        try:
            self._results[name] = session.settled()
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
        for session in sessions.values():
            session.cancel()
        for session in sessions.values():
            with suppress(JobFailed):
                session.wait(None)
        _cut_logs(self._plan, checkpoints)
        for region in self._plan.regions:
            if region.name in checkpoints:
                self._start_again(region, checkpoints[region.name])

    def _give_up(self, reason: str) -> None:
        """Fail, and end all regions at once: one that cannot run takes no last checkpoint."""
        self._failure = self._failure or JobFailed(reason)
        self.cancel()

    def _start_again(self, region: RegionPlan, checkpoint: int) -> None:
        before = self._running[region.name]
        self._told.of({region.name: before.status()})
        prepared = PreparedJob(region.plan, region.options, self._make_launcher, before)
        session = prepared.begin(checkpoint)
        with self._ordering:
            self._past.append(before)
            self._running[region.name] = session
            self._progress[region.name] = _Progress(region)
            self._told.begin(region.name)
            for order in self._orders:
                order(session)

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


class _Progress:
    """How far a region has come since its newest checkpoint, by the looks at it."""

    def __init__(self, region: RegionPlan) -> None:
        self._region = region
        self._sources = {task.index for task in region.plan.tasks if task.is_source}
        self._restarts = self._completed = 0
        #: Records of the sources in this attempt: at the newest checkpoint, and now.
        self._covered = self._rows = 0

    def looked(self, status: Status) -> s.RegionRestarted | None:
        """Compare with the look before; a restart in between is returned."""
        restarted = None
        if status.restarts > self._restarts:
            self._restarts = status.restarts
            newest = status.checkpoints[-1].checkpoint if status.checkpoints else 0
            repeated = max(0, self._rows - self._covered)
            restarted = s.RegionRestarted(self._region.name, newest, repeated, _reason(status))
            self._covered = self._rows = 0
        rows = sum(n.rows_out for (task, _), n in status.numbers.items() if task in self._sources)
        if status.completed > self._completed:
            self._completed, self._covered = status.completed, rows
        self._rows = rows
        return restarted


def _reason(status: Status) -> str:
    """Why the last attempt failed."""
    failures = (NoticeKind.WORKER_LOST, NoticeKind.ATTEMPT_FAILED)
    texts = [notice.text for _, notice in status.notices if notice.kind in failures]
    return texts[-1].partition("\n")[0] if texts else "an attempt failed"


class _Notices:
    """The notices of all regions under one numbering, each with its region's name."""

    def __init__(self, regions: Sequence[str]) -> None:
        self._seen = dict.fromkeys(regions, 0)
        self._notices: list[tuple[int, Notice]] = []
        self._lock = threading.Lock()

    def of(self, statuses: Mapping[str, Status]) -> tuple[tuple[int, Notice], ...]:
        """All notices so far."""
        with self._lock:
            for region, status in statuses.items():
                for number, notice in status.notices:
                    if number > self._seen[region]:
                        self._seen[region] = number
                        self._append(replace(notice, text=f"{region}: {notice.text}"))
            return tuple(self._notices)

    def add(self, notice: Notice) -> None:
        """Add a notice about the job."""
        with self._lock:
            self._append(notice)

    def begin(self, region: str) -> None:
        """The region has a new session, whose notices are numbered from 1."""
        with self._lock:
            self._seen[region] = 0

    def _append(self, notice: Notice) -> None:
        number = self._notices[-1][0] + 1 if self._notices else 1
        self._notices = [*self._notices[1 - _NOTICES_MAX :], (number, notice)]
