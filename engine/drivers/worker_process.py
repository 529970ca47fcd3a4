"""The entry of a worker: launchers call it in the worker's process or thread."""

from __future__ import annotations

import os
import sys
import threading

import cloudpickle

from headrace.channels.connection_room import RoomLimits
from headrace.channels.credit import Debloat
from headrace.channels.handshake import Identity
from headrace.inflight.spill import SpillLimits

from ..contract.execution import ExecutionPlan
from ..contract.launcher import Incarnation, WorkerProgram
from ..contract.operators import StateBackend
from ..contract.options import Checkpoints, Network
from ..network.connection import REPORT_BYTES
from ..storage.checkpoint_storage import open_store
from ..worker.subtask_spec import Limits
from .companion import Companion
from .interpreter import freeze_loaded, hand_over_soon, keep_freed_memory
from .isolated_process import SpawnedProcess
from .user_output import redirected, speaking
from .worker_driver import WorkerDriver, WorkerSettings

#: A smaller window would be all overhead, however slow the consumer.
_DEBLOAT_FLOOR_BYTES = 4 << 10
#: What a socket takes while its thread and the owner thread take turns, with much to spare.
_CONNECTION = RoomLimits(20_000_000, 2 * REPORT_BYTES, 2 << 20)
_WORK_ROWS_MAX = 65_536
_WORK_TARGET_NS = 20_000_000


class WorkerStopped(Exception):
    """The worker ended because its coordinator was gone, not because the coordinator said so."""


def run_worker(program: WorkerProgram, incarnation: Incarnation, host: str) -> None:
    """Run one worker until the coordinator ends it. `host`: this machine's address, for peers.

    Raises WorkerStopped when the coordinator is lost, so that the launcher may start the worker
    again.
    """
    hand_over_soon()
    # Otherwise the process is the user's.
    owns_process = threading.current_thread() is threading.main_thread()
    companion: Companion | None = None
    if owns_process:
        keep_freed_memory()
    if owns_process and sys.platform == "linux":
        # Before the program is loaded, whose modules may start threads.
        companion = Companion(program, incarnation)
    try:
        # The program came through the launcher's own channel (a pipe of the parent, or Spark),
        # never over our network.
        plan: ExecutionPlan = cloudpickle.loads(program.plan)
        if owns_process:
            freeze_loaded()
        driver = _driver(plan, program, incarnation, host, companion)
        with redirected(), speaking(lambda _: f"worker {incarnation.worker}"):
            ended = driver.run()
    finally:
        if companion is not None:
            companion.stop()
    if not ended.clean:
        raise WorkerStopped(ended.reason)


def _driver(
    plan: ExecutionPlan,
    program: WorkerProgram,
    incarnation: Incarnation,
    host: str,
    companion: Companion | None,
) -> WorkerDriver:
    checkpoints = program.checkpoints
    return WorkerDriver(
        plan,
        Identity(program.job, "worker", incarnation.worker, incarnation.number, 0),
        program.secret,
        worker_settings(program, plan),
        None if checkpoints is None else open_store(checkpoints.directory),
        dial=program.coordinator,
        host=host,
        pid=os.getpid(),
        calls=None if companion is None else companion.calls,
        processes=SpawnedProcess if companion is None else companion.process,
    )


def worker_settings(program: WorkerProgram, plan: ExecutionPlan) -> WorkerSettings:
    """The program's options as the worker counts them."""
    network, state = program.network, program.state
    return WorkerSettings(
        limits=_limits(program.checkpoints, network, plan.hops),
        heartbeat_ns=network.heartbeat_ns,
        backend=StateBackend(
            state.backend,
            state.write_buffer_bytes,
            state.block_cache_bytes,
            cache_bytes=state.cache_bytes,
        ),
        state_directory=state.directory,
        owner=program.owner,
        directory="" if program.checkpoints is None else program.checkpoints.directory,
    )


def _limits(checkpoints: Checkpoints | None, network: Network, hops: int) -> Limits:
    # A record waits in two queues a hop: its producer's, and its consumer's with the running work.
    target_ns = network.debloat_target_ns // (2 * max(1, hops))
    return Limits(
        buffer_bytes=network.buffer_bytes,
        window_bytes=network.window_bytes,
        queue_bytes_max=network.buffer_bytes,
        work_rows_max=_WORK_ROWS_MAX,
        work_target_ns=_WORK_TARGET_NS,
        debloat=Debloat(target_ns, _DEBLOAT_FLOOR_BYTES) if target_ns else None,
        connection=_CONNECTION,
        budget_bytes=network.memory_bytes,
        alignment_timeout_ns=None if checkpoints is None else checkpoints.alignment_timeout_ns,
        logs=checkpoints is not None and checkpoints.inflight == "continuous",
        compresses=checkpoints is not None and checkpoints.compression == "lz4",
        spill=SpillLimits(
            network.spill_memory_bytes,
            network.spill_disk_bytes,
            blocked=checkpoints is not None and checkpoints.spill_blocked,
        ),
    )
