"""A run of a job: checks, launches workers and coordinator, and answers the job's handle.

Mistakes that can be known beforehand are a `UserError` from `start_job`; later failures end in
`JobFailed`.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import replace
from typing import get_args

import cloudpickle

from headrace.channels.events import CheckpointMode
from headrace.recovery import assignment, catalog, redistribution
from headrace.recovery.catalog import owner_token
from headrace.recovery.layout import CheckpointKind, checkpoint_folder
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot
from headrace.recovery.renaming import NoSuchName, renamed
from headrace.recovery.store import Store, StoreError

from ..contract.errors import HeadraceError, JobFailed, StorageUnreachable, UserError
from ..contract.execution import ExecutionPlan
from ..contract.launcher import Incarnation, LauncherMaker, WorkerLauncher, WorkerProgram
from ..contract.operators import KeepsNotes
from ..contract.options import Fresh, RunOptions
from ..contract.outcomes import JobResult
from ..contract.places import absolute
from ..coordinator import coordinator_events as d
from ..coordinator.coordinator_events import SavepointOrder
from ..coordinator.rules import Phase
from ..drivers.checkpoint_directory import CheckpointDirectory
from ..drivers.coordinator_driver import CoordinatorDriver
from ..drivers.coordinator_performer import Sinks
from ..drivers.early_workers import files_by_worker
from ..drivers.restore import (
    Restore,
    claimed,
    in_new_names,
    new_tasks,
    resolve,
    told_of_displaced,
)
from ..drivers.start import prepare
from ..drivers.status import Status
from ..drivers.worker_process import run_worker
from ..local.threads import ThreadLauncher
from ..observation.observer import Observer, observer_of
from ..storage.checkpoint_storage import open_store
from .compatibility import check_in_flight, check_states
from .coordinator_rules import coordinator_rules
from .growth import had_finished, has_grown, reopened
from .inputs import Inputs, state_holder
from .metrics import metrics_of
from .outputs import committers_of, give_folders, is_volatile, refuse_output, take_over

_NOTHING_NEW = "job {} had finished, and its sources have nothing new: there is nothing to do"
_DRAINED = "job {} had been drained, so it is over: there is nothing to do"

#: How often somebody who waits for the start looks.
_LOOK_EVERY_S = 0.005


class RunningJob:
    """A started job (the `Session` behind a `JobHandle`)."""

    def __init__(
        self,
        plan: ExecutionPlan,
        driver: CoordinatorDriver,
        launcher: WorkerLauncher,
        directory: str,
        make_launcher: LauncherMaker,
        inputs: Inputs,
        options: RunOptions,
    ) -> None:
        self._plan = plan
        self._options = options
        self._inputs = inputs
        inputs.watch(driver.settled, self._has_finished)
        self._make_launcher = make_launcher
        self._driver = driver
        self._launcher = launcher
        #: URL of the checkpoint directory; empty: there is none.
        self._directory = directory
        self._began_ns = time.monotonic_ns()
        self._ended_ns: int | None = None
        #: Path of the savepoint with which the job was stopped.
        self._savepoint: str | None = None

    @property
    def launcher(self) -> WorkerLauncher:
        """The launcher of its workers."""
        return self._launcher

    @property
    def plan(self) -> ExecutionPlan:
        """The running plan."""
        return self._plan

    @property
    def has_settled(self) -> bool:
        """The end is decided and durable."""
        return self._driver.settled.is_set()

    def status(self) -> Status:
        """A look at the job."""
        return self._driver.status()

    def observer(self, deliveries: Mapping[str, str]) -> Observer:
        """Make what computes observations of the job. `deliveries`: {sink: its promise}."""
        return observer_of(self._plan, self._options, deliveries)

    def checkpoint(self) -> int:
        """Take a checkpoint now; returns its number.

        Raises: UserError without a checkpoint directory; HeadraceError when the checkpoint fails.
        """
        return self._request("checkpoint", self._driver.request_checkpoint)

    def savepoint(self, path: str | None, mode: CheckpointMode | None) -> str:
        """Take a savepoint; returns its path.

        Raises: UserError, StorageUnreachable before it begins; HeadraceError when it fails.
        """
        order = self._order(path, mode)
        number = self._request(
            "savepoint", lambda answer: self._driver.request_checkpoint(answer, order)
        )
        return self._savepoint_path(path, number)

    def stop_with_savepoint(
        self, path: str | None, mode: CheckpointMode | None, *, drain: bool
    ) -> str:
        """Take a savepoint, commit everything before it and no more, and end; return its path.

        Raises: UserError, StorageUnreachable before it begins; HeadraceError when the savepoint
        fails, which leaves the job running.
        """
        order = self._order(None if path is None else absolute(path), mode)
        kind = d.StopKind.DRAIN if drain else d.StopKind.WITH_CHECKPOINT

        def ask(answer: Callable[[d.RequestAnswered], None]) -> None:
            def answered(said: d.RequestAnswered) -> None:
                # Before the job's end, which somebody else may be waiting for.
                if said.checkpoint is not None:
                    self._savepoint = self._savepoint_path(path, said.checkpoint)
                answer(said)

            self._driver.request_stop(answered, kind, order)

        return self._savepoint_path(path, self._request("savepoint", ask))

    def _order(self, path: str | None, mode: CheckpointMode | None) -> SavepointOrder:
        self._check_durable()
        if path is None:
            return SavepointOrder("", mode)
        return SavepointOrder(path, mode, _number_min(path, self._plan.job))

    def _savepoint_path(self, path: str | None, number: int) -> str:
        folder = checkpoint_folder(self._plan.job, number, CheckpointKind.SAVEPOINT)
        return f"{(path or self._directory).rstrip('/')}/{folder.rstrip('/')}"

    def _check_durable(self) -> None:
        if not self._directory:
            raise UserError("the job has no checkpoint directory; give it checkpoints=DIR")

    def _request(
        self, what: str, ask: Callable[[Callable[[d.RequestAnswered], None]], None]
    ) -> int:
        self._check_durable()
        answer: Future[d.RequestAnswered] = Future()
        ask(answer.set_result)
        while True:
            try:
                answered = answer.result(timeout=0.5)
                break
            except FutureTimeout:
                if self._driver.ended.is_set() and not answer.done():
                    raise HeadraceError(f"the job ended before the {what} was taken") from None
        if answered.checkpoint is None:
            raise HeadraceError(f"the {what} failed: {answered.failure}")
        return answered.checkpoint

    def stop(self) -> None:
        """Take a last checkpoint, commit everything before it, and end.

        The checkpoint overtakes queued records when they hold it up for long. Without a directory
        for it the job ends at once.
        """
        if self._directory:
            self._driver.post(d.StopRequested(d.StopKind.WITH_CHECKPOINT))
            return
        self._driver.warn(
            f"job {self._plan.job!r} keeps no checkpoints, so it stops at once: sinks that commit"
            " show nothing of this run, and the next one begins anew"
        )
        self.cancel()

    def drain(self) -> None:
        """End the input, work on all records read to the end, commit, and end."""
        self._driver.post(d.StopRequested(d.StopKind.DRAIN))

    def suspend(self) -> None:
        """Take an unaligned checkpoint, whatever the job's mode, commit everything before it, and
        end.
        """
        kind = d.StopKind.WITH_CHECKPOINT
        self._driver.post(d.StopRequested(kind, CheckpointMode.UNALIGNED))

    def await_start(self) -> None:
        """Wait until an attempt runs, or the job has ended well. Raises JobFailed."""
        while self._driver.status().phase is not Phase.RUNNING:
            if self._driver.ended.wait(_LOOK_EVERY_S):
                self.wait(None)
                return

    def successor(self, plan: ExecutionPlan, options: RunOptions) -> PreparedJob:
        """Prepare this job's successor, and start the workers now if there is room beside this
        job's.

        Raises: UserError, StorageUnreachable, when it could not run; nothing has changed then.
        """
        if self._driver.settled.is_set():
            # The launcher's session, shared with a successor, may be about to end with it.
            self.wait_for_workers()
        prepared = PreparedJob(plan, options, self._make_launcher, self)
        try:
            prepared.launch_beside()
        except BaseException:
            prepared.discard()
            raise
        return prepared

    def rescaled(self, text: str) -> None:
        """Note that a rescale started this session."""
        self._driver.note(d.NoticeKind.RESCALED, text)

    def cancel(self) -> None:
        """End at once; records that no checkpoint covers are not committed."""
        self._driver.post(d.StopRequested(d.StopKind.NOW))

    def wait(self, timeout_s: float | None) -> JobResult:
        """Wait for the end. Raises: JobFailed; TimeoutError."""
        if not self._driver.ended.wait(timeout_s):
            raise TimeoutError(f"job {self._plan.job!r} still runs after {timeout_s} s")
        self._inputs.await_end()
        return self._result()

    def wait_for_workers(self) -> None:
        """Wait until the workers of a job that has settled have ended."""
        self._driver.ended.wait()

    def settled(self) -> JobResult:
        """Wait until the end is decided and durable; workers may still be ending.

        Raises JobFailed.
        """
        self._driver.settled.wait()
        self._inputs.await_end()
        return self._result()

    def _has_finished(self) -> bool:
        result = self._driver.result
        return result is not None and result.outcome is d.Outcome.FINISHED

    def _result(self) -> JobResult:
        if self._ended_ns is None:
            self._ended_ns = time.monotonic_ns()
        result = self._driver.result
        assert result is not None, "ended without a result"
        if result.outcome is d.Outcome.FAILED:
            raise JobFailed("\n".join(part for part in (result.reason, result.details) if part))
        status = self._driver.status()
        return JobResult(
            job=self._plan.job,
            duration_ns=self._ended_ns - self._began_ns,
            checkpoints=status.completed,
            restarts=status.restarts,
            last_checkpoint=status.checkpoints[-1].checkpoint if status.checkpoints else None,
            outcome="finished" if result.outcome is d.Outcome.FINISHED else "stopped",
            savepoint=self._savepoint,
        )

    def metrics(self) -> Mapping[str, float]:
        """The current numbers by metric name."""
        return metrics_of(self._plan, self._driver.status(), time.time_ns())


class PreparedJob:
    """A job that has yet to begin, with or without early workers (the `Successor` of a `Session`).

    Args:
        before: the job to be succeeded; None: there is none.
        volatile: all output of the job ends with this process; None: its sinks tell.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        options: RunOptions,
        make_launcher: LauncherMaker,
        before: RunningJob | None = None,
        *,
        volatile: bool | None = None,
    ) -> None:
        self._make_launcher = make_launcher
        self._volatile = volatile
        checkpoints = options.checkpoints
        self._plan = plan
        self._options = options
        self._directory = "" if checkpoints is None else checkpoints.directory
        self._store = None if checkpoints is None else open_store(self._directory)
        self._tasks = new_tasks(plan)
        self._committers = committers_of(plan)
        self._inputs = Inputs(plan.job, self._directory, fresh=bool(options.fresh))
        self._token = ""
        #: {checkpoint of a job that had finished: its sources have more}.
        self._grown: dict[int, bool] = {}
        self._before = before
        self._launcher: WorkerLauncher | None = None
        if before is not None:
            self._launcher = before.launcher.successor(plan.slots)
        #: There from the moment when the workers are started.
        self._driver: CoordinatorDriver | None = None

    def launch_beside(self) -> None:
        """Start the workers if there is room for them beside the other job's."""
        before, launcher = self._before, self._launcher
        if before is None or launcher is None:
            return
        if before.launcher.has_room_beside(launcher.workers):
            # The checkpoint of the running job will hold the state of each source.
            self._plan = self._inputs.prepare(self._plan, lambda source: True)
            self._launch(launcher)

    def await_workers(self) -> None:
        """Wait until early workers have registered. Raises: HeadraceError when some do not."""
        if self._driver is None:
            return
        reason = self._driver.await_workers(self._options.workers.start_timeout_ns / 1e9)
        if reason:
            raise HeadraceError(reason)

    def fetch_ahead(self) -> int:
        """Have early workers fetch most of the state to be restored; returns the bytes fetched.

        The files are those of databases in the running job's last complete checkpoint: the next
        checkpoint will name most of them again.
        """
        checkpoints = self._before.status().checkpoints if self._before is not None else ()
        if self._driver is None or self._launcher is None or not checkpoints:
            return 0
        try:
            subtasks = self._assign(self._adapt(checkpoints[-1]))
        except redistribution.Incompatible:
            return 0  # which `begin` says of the checkpoint that counts
        wanted = files_by_worker(subtasks, workers=self._launcher.workers, slots=self._plan.slots)
        return self._driver.fetch_ahead(wanted, self._options.workers.start_timeout_ns / 1e9)

    def begin(self, restore: str | int | None) -> RunningJob:
        """Go on from `restore`, see `RunOptions`.

        Raises: UserError, StorageUnreachable; nothing is left running then.
        """
        try:
            return self._begin(restore)
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Stop all early workers: the job will not begin."""
        self._inputs.end(finished=False)
        if self._driver is not None:
            self._driver.discard()
        elif self._launcher is not None:
            self._launcher.stop(timeout_s=0.0)
        self._driver = self._launcher = None

    def _begin(self, restore: str | int | None) -> RunningJob:
        over = self._check(restore)
        if self._driver is None and self._before is not None:
            self._before.wait_for_workers()
        if self._launcher is None:
            self._launcher = self._some_launcher(over=over)
        launcher = self._launcher
        # All that can be the user's mistake has been looked at.
        start = prepare(
            CheckpointDirectory(self._plan.job, self._store, self._directory),
            lambda: claimed(self._find(restore), self._tasks),
        )
        machine = start.coordinator(
            self._plan,
            launcher.workers,
            coordinator_rules(self._options),
            self._assign,
            self._adapt,
        )
        anew = start.restore.metadata is None
        remove = anew and self._options.fresh == "replace"
        give_folders(self._committers, self._plan.job, self._directory)
        take_over(self._committers, self._owner(), anew=anew, remove=remove)
        if not over:
            holds_state = state_holder(start.restore.metadata)
            self._plan = self._inputs.prepare(self._plan, holds_state)
            self._inputs.begin()
        driver = self._driver or self._launch(launcher, idle=over)
        for warning in (*start.restore.warnings, *start.earlier.warnings):
            driver.warn(warning)
        if over:
            assert start.restore.metadata is not None, "a job that had finished"
            text = _DRAINED if start.restore.metadata.drained else _NOTHING_NEW
            driver.note(d.NoticeKind.FINISHED, text.format(self._plan.job))
        driver.start(machine)
        return RunningJob(
            self._plan,
            driver,
            launcher,
            self._directory,
            self._make_launcher,
            self._inputs,
            self._options,
        )

    def _some_launcher(self, *, over: bool) -> WorkerLauncher:
        slots = self._plan.slots
        if over:
            # Nothing runs, and nobody waits for Spark to say so.
            return ThreadLauncher(workers=slots, entry=run_worker)
        return self._make_launcher(self._plan.job, self._options, slots)

    def _check(self, restore: str | int | None) -> bool:
        """Find mistakes of the user's before anything starts. Returns whether the job had finished,
        and its sources have nothing new.
        """
        found = self._find(restore)
        if found.metadata is None:
            self._refuse_output(restore)
            return False
        origin = self._origin(found)
        try:
            self._assign(found.metadata)
            check_in_flight(self._plan, origin, found.metadata)
        except redistribution.Incompatible as reason:
            raise UserError(str(reason)) from None
        check_states(self._plan, origin, found.metadata)
        return self._before is None and had_finished(found.metadata)

    def _origin(self, found: Restore) -> Store:
        """The directory of the checkpoint."""
        origin = open_store(found.origin) if found.origin else self._store
        assert origin is not None, "a checkpoint lies somewhere"
        return origin

    def _refuse_output(self, restore: str | int | None) -> None:
        if self._options.fresh in get_args(Fresh):
            return
        if self._store is None:
            why = "without checkpoints the job begins anew"
        elif restore is None:
            why = "fresh begins the job anew"
        else:
            why = f"no complete checkpoint in {self._directory} says how far it has come"
        refuse_output(self._committers, self._plan.job, why)

    def _owner(self) -> str:
        """The token of the job in its checkpoint directory; without one, of this run.

        Raises: StorageUnreachable.
        """
        if not self._token:
            self._token = secrets.token_hex(4)
            if self._store is not None:
                try:
                    self._token = owner_token(self._store, self._plan.job, self._token)
                except StoreError as error:
                    raise StorageUnreachable(
                        f"the checkpoint directory does not answer: {error}"
                    ) from error
        return self._token

    def _find(self, restore: str | int | None) -> Restore:
        claim = self._options.claim and restore is not None
        found = resolve(self._store, self._plan.job, restore, self._directory, claim=claim)
        if restore in ("auto", "latest"):
            found = told_of_displaced(found, self._store, self._plan.job)
        keeping = [n for n, c in self._committers.items() if isinstance(c, KeepsNotes)]
        found = in_new_names(found, self._options.renames, self._tasks, keeping)
        metadata = found.metadata
        if metadata is None or self._before is not None:
            return found
        volatile = self._volatile
        if volatile is None:
            volatile = is_volatile(self._plan, self._committers)
        if restore == "auto" and volatile:
            return self._anew(metadata)
        return reopened(found) if had_finished(metadata) and self._has_grown(found) else found

    def _has_grown(self, found: Restore) -> bool:
        """Asked once for each checkpoint: all steps of the start go by one answer."""
        metadata = found.metadata
        assert metadata is not None, "nothing is restored"
        if metadata.checkpoint not in self._grown:
            grown = has_grown(self._plan, self._origin(found), metadata)
            self._grown[metadata.checkpoint] = grown
        return self._grown[metadata.checkpoint]

    def _anew(self, passed_over: CheckpointMetadata) -> Restore:
        """Begin anew in spite of a checkpoint: output before it went with another process."""
        number = passed_over.checkpoint
        text = (
            f"job {self._plan.job!r} begins anew, since what it had collected until chk-{number}"
            f" went with its process; restore={number} goes on from there"
        )
        found = resolve(self._store, self._plan.job, None, self._directory)
        return replace(found, warnings=(*found.warnings, text))

    def _adapt(self, metadata: CheckpointMetadata) -> CheckpointMetadata:
        """Rename operators of an older checkpoint to which the job falls back, if it has them."""
        with suppress(NoSuchName):
            return renamed(metadata, self._options.renames)
        return metadata

    def _assign(self, metadata: CheckpointMetadata) -> list[SubtaskSnapshot]:
        unclaimed = self._options.allow_unclaimed_state
        return assignment.assign(
            metadata, self._tasks, self._plan.max_parallelism, allow_unclaimed=unclaimed
        )

    def _launch(self, launcher: WorkerLauncher, *, idle: bool = False) -> CoordinatorDriver:
        """Open the server and launch the workers, unless there is nothing for them to do."""
        plan, options = self._plan, self._options
        secret = secrets.token_bytes(32)
        driver = CoordinatorDriver(
            CheckpointDirectory(plan.job, self._store, self._directory),
            secret,
            launcher,
            Sinks(self._committers),
        )
        self._driver = driver
        host = options.workers.advertise_host or launcher.coordinator_host
        program = WorkerProgram(
            job=plan.job,
            coordinator=driver.listen(host),
            secret=secret,
            plan=cloudpickle.dumps(plan),
            slots=plan.slots,
            checkpoints=options.checkpoints,
            network=options.network,
            state=options.state,
            owner=self._owner(),
        )
        if idle:
            return driver
        launcher.start(
            program,
            lambda reason: driver.post(d.LauncherFailed(reason)),
            lambda incarnation, code: driver.post(worker_exited(incarnation, code)),
        )
        return driver


def start_job(plan: ExecutionPlan, options: RunOptions, make_launcher: LauncherMaker) -> RunningJob:
    """Start a job. Raises UserError, StorageUnreachable before anything runs."""
    if options.claim and options.restore == "auto":
        raise UserError("claim has nothing to claim: give restore=, or leave claim out")
    folder = options.state.directory
    if folder is not None and os.path.lexists(folder) and not os.path.isdir(folder):
        raise UserError(f"state.directory={folder!r} is not a folder; name one, or leave it out")
    return PreparedJob(plan, options, make_launcher).begin(
        None if options.fresh else options.restore
    )


def _number_min(directory: str, job: str) -> int:
    """Find a free number in a savepoint's directory. Raises UserError, StorageUnreachable."""
    try:
        return catalog.next_checkpoint_number(open_store(directory), job)
    except StoreError as error:
        raise StorageUnreachable(
            f"the directory of the savepoint cannot be read: {error}"
        ) from error


def worker_exited(incarnation: Incarnation, code: int) -> d.WorkerExited:
    """Say to the coordinator how a worker ended."""
    reason = f"its process was killed by signal {-code}" if code < 0 else f"exit code {code}"
    return d.WorkerExited(incarnation.worker, incarnation.number, reason)
