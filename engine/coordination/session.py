"""A run of a job: checks what can be checked before anything starts, launches workers and coordinator, and answers its handle.

Every mistake that can be known beforehand is a `UserError` from `start_job`; what happens afterwards ends in `JobFailed`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from pyspark import cloudpickle

from headrace.channels.events import CheckpointMode
from headrace.recovery import assignment, catalog
from headrace.recovery.layout import CheckpointKind, checkpoint_folder
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot
from headrace.recovery.store import Store, StoreError

from ..api.errors import HeadraceError, JobFailed, StorageUnreachable, UserError
from ..api.handle import JobResult
from ..api.options import Checkpoints, RunOptions
from ..plan.execution import ExecutionPlan
from ..runtime.launch import WorkerLauncher, WorkerProgram, slots_of_worker
from ..runtime.storage import open_store
from . import decisions as d
from .compatibility import check_states
from .coordinator import Coordinator
from .driver import CoordinatorDriver, Status
from .launchers import make_launcher
from .metrics import metrics_of
from .pending import CheckpointRules, SavepointOrder
from .restarts import RestartRules
from .restore import claimed, new_tasks, resolve
from .rules import CoordinatorRules, Phase
from .storage import Sinks

#: Without a checkpoint directory only the last checkpoint exists, in memory; it may take as long as it likes.
_FOREVER_NS = 10**18
#: A smaller window would be all overhead, however slow the consumer.
_DEBLOAT_FLOOR_BYTES = 64 << 10
#: How often somebody who waits for the start looks.
_LOOK_EVERY_S = 0.005
_WORK_ROWS_MAX = 65_536
_WORK_TARGET_NS = 20_000_000


class RunningJob:
    """A started job (the `Session` behind a `JobHandle`)."""

    def __init__(self, plan: ExecutionPlan, driver: CoordinatorDriver, directory: str) -> None:
        self._plan = plan
        self._driver = driver
        #: URL of the checkpoint directory; empty: there is none.
        self._directory = directory
        self._began_ns = time.monotonic_ns()
        self._ended_ns: int | None = None

    @property
    def plan(self) -> ExecutionPlan:
        """What runs."""
        return self._plan

    def status(self) -> Status:
        """A look at the job."""
        return self._driver.status()

    def checkpoint(self) -> int:
        """Take a checkpoint now; its number. Raises UserError without a checkpoint directory, HeadraceError when it fails."""
        return self._request("checkpoint", None)

    def savepoint(self, path: str | None, mode: CheckpointMode | None) -> str:
        """Take a savepoint; its path. Raises UserError, StorageUnreachable before it begins; HeadraceError when it fails."""
        self._check_durable()
        order = SavepointOrder("", mode)
        if path is not None:
            number_min = _number_min(path, self._plan.job)
            order = SavepointOrder(path, mode, number_min)
        number = self._request("savepoint", order)
        folder = checkpoint_folder(self._plan.job, number, CheckpointKind.SAVEPOINT)
        return f"{(path or self._directory).rstrip('/')}/{folder.rstrip('/')}"

    def _check_durable(self) -> None:
        if not self._directory:
            raise UserError("the job has no checkpoint directory; give it checkpoints=DIR")

    def _request(self, what: str, order: SavepointOrder | None) -> int:
        self._check_durable()
        answer: Future[d.RequestAnswered] = Future()
        self._driver.request_checkpoint(answer.set_result, order)
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
        """Take a last checkpoint, commit what it covers, and end."""
        self._driver.post(d.StopRequested(d.StopKind.WITH_CHECKPOINT))

    def suspend(self) -> None:
        """Take an unaligned checkpoint, whatever the job's mode, commit what it covers, and end."""
        kind = d.StopKind.WITH_CHECKPOINT
        self._driver.post(d.StopRequested(kind, CheckpointMode.UNALIGNED))

    def await_start(self) -> None:
        """Wait until an attempt runs, or the job has ended well. Raises JobFailed."""
        while self._driver.status().phase is not Phase.RUNNING:
            if self._driver.ended.wait(_LOOK_EVERY_S):
                self.wait(None)
                return

    def rescaled(self, text: str) -> None:
        """Note that this session is the outcome of a rescale."""
        self._driver.note(d.NoticeKind.RESCALED, text)

    def cancel(self) -> None:
        """End at once; what no checkpoint covers is not committed."""
        self._driver.post(d.StopRequested(d.StopKind.NOW))

    def wait(self, timeout_s: float | None) -> JobResult:
        """Wait for the end. Interrupted, it cancels the job. Raises JobFailed, TimeoutError."""
        try:
            ended = self._driver.ended.wait(timeout_s)
        except KeyboardInterrupt:
            self.cancel()
            self._driver.ended.wait()
            raise
        if not ended:
            raise TimeoutError(f"job {self._plan.job!r} still runs after {timeout_s} s")
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
        )

    def metrics(self) -> Mapping[str, float]:
        """The current numbers by metric name."""
        return metrics_of(self._plan, self._driver.status(), time.time_ns())


def start_job(plan: ExecutionPlan, options: RunOptions) -> RunningJob:
    """Start a job. Raises UserError, StorageUnreachable before anything runs."""
    checkpoints = options.checkpoints
    store = None if checkpoints is None else open_store(checkpoints.directory)
    directory = "" if checkpoints is None else checkpoints.directory
    restore = resolve(store, plan.job, options.restore, directory)
    tasks = new_tasks(plan)

    def assign(metadata: CheckpointMetadata) -> list[SubtaskSnapshot]:
        return assignment.assign(
            metadata, tasks, plan.max_parallelism, allow_unclaimed=options.allow_unclaimed_state
        )

    if restore.metadata is not None:
        try:
            assign(restore.metadata)
        except assignment.Incompatible as reason:
            raise UserError(str(reason)) from None
        origin = open_store(restore.origin) if restore.origin else store
        assert origin is not None, "a checkpoint lies somewhere"
        check_states(plan, origin, restore.metadata)
    launcher, exits = make_launcher(plan.job, options, plan.slots)
    # All that can be the user's mistake has been looked at. From here on no older coordinator of the job completes a checkpoint; it may have
    # completed one since we looked, so we look again.
    epoch = _claim(store, plan.job)
    restore = claimed(resolve(store, plan.job, options.restore, directory), tasks)
    slots = [
        list(slots_of_worker(worker, workers=launcher.workers, slots=plan.slots))
        for worker in range(launcher.workers)
    ]
    machine = Coordinator(
        plan,
        slots,
        _rules(options),
        restore=restore.metadata,
        origin=restore.origin,
        checkpoint_next=restore.checkpoint_next,
        assign=assign,
        epoch=epoch,
    )
    driver = _drive(plan, options, machine, launcher, store)
    exits.append(driver.post)
    for warning in restore.warnings:
        driver.warn(warning)
    driver.start()
    return RunningJob(plan, driver, directory)


def _number_min(directory: str, job: str) -> int:
    """A number that is free in the directory of a savepoint. Raises UserError, StorageUnreachable."""
    try:
        return catalog.next_checkpoint_number(open_store(directory), job)
    except StoreError as error:
        raise StorageUnreachable(
            f"the directory of the savepoint cannot be read: {error}"
        ) from error


def _claim(store: Store | None, job: str) -> int:
    try:
        return 1 if store is None else catalog.claim_epoch(store, job)
    except StoreError as error:
        raise StorageUnreachable(
            f"an epoch of job {job!r} could not be claimed: {error}"
        ) from error


def _drive(
    plan: ExecutionPlan,
    options: RunOptions,
    machine: Coordinator,
    launcher: WorkerLauncher,
    store: Store | None,
) -> CoordinatorDriver:
    """Open the server and launch the workers."""
    secret = secrets.token_bytes(32)
    committers = {
        operator.name: operator.committer()
        for task in plan.tasks
        for operator in task.operators
        if operator.committer is not None
    }
    sinks = Sinks({name: c for name, c in committers.items() if c is not None})
    driver = CoordinatorDriver(plan.job, secret, machine, launcher, store, sinks)
    try:
        host = options.workers.advertise_host or launcher.coordinator_host
        address = driver.listen(host)
        program = WorkerProgram(
            job=plan.job,
            coordinator=address,
            secret=secret,
            plan=cloudpickle.dumps(plan),  # type: ignore[no-untyped-call]  # pyspark's copy has no types
            slots=plan.slots,
            settings=_settings(options),
        )
        launcher.start(program, lambda reason: driver.post(d.LauncherFailed(reason)))
    except BaseException:
        driver.abort()
        launcher.stop(timeout_s=0.0)
        raise
    return driver


def _settings(options: RunOptions) -> dict[str, int | str | float]:
    network, checkpoints = options.network, options.checkpoints
    return {
        "buffer_bytes": network.buffer_bytes,
        "window_bytes": network.window_bytes,
        "queue_bytes_max": network.buffer_bytes,
        "work_rows_max": _WORK_ROWS_MAX,
        "work_target_ns": _WORK_TARGET_NS,
        "debloat_target_ns": network.debloat_target_ns,
        "debloat_floor_bytes": _DEBLOAT_FLOOR_BYTES,
        "alignment_timeout_ns": _alignment_timeout_ns(checkpoints),
        "inflight": "ad_hoc" if checkpoints is None else checkpoints.inflight,
        "compression": "none" if checkpoints is None else checkpoints.compression,
        "heartbeat_ns": network.heartbeat_ns,
        "state_backend": options.state.backend,
        "state_directory": options.state.directory or "",
        "state_write_buffer_bytes": options.state.write_buffer_bytes,
        "state_block_cache_bytes": options.state.block_cache_bytes,
        "checkpoints": "" if checkpoints is None else checkpoints.directory,
    }


def _alignment_timeout_ns(checkpoints: Checkpoints | None) -> int:
    """-1: never; settings are plain numbers and texts."""
    timeout_ns = None if checkpoints is None else checkpoints.alignment_timeout_ns
    return -1 if timeout_ns is None else timeout_ns


def _rules(options: RunOptions) -> CoordinatorRules:
    checkpoints = options.checkpoints
    return CoordinatorRules(
        mode=CheckpointMode.ALIGNED if checkpoints is None else checkpoints.barrier_mode,
        checkpoints=CheckpointRules(
            interval_ns=None if checkpoints is None else checkpoints.interval_ns,
            min_pause_ns=0 if checkpoints is None else checkpoints.min_pause_ns,
            timeout_ns=_FOREVER_NS if checkpoints is None else checkpoints.timeout_ns,
            tolerable_failures=0 if checkpoints is None else checkpoints.tolerable_failures,
            retain=1 if checkpoints is None else checkpoints.retain,
            concurrent=1 if checkpoints is None else checkpoints.max_concurrent,
        ),
        restarts=RestartRules(
            options.restart.attempts, options.restart.backoff_ns, options.restart.max_backoff_ns
        ),
        heartbeat_timeout_ns=options.network.heartbeat_timeout_ns,
        register_timeout_ns=options.workers.start_timeout_ns,
    )
