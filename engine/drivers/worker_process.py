"""The entry of a worker: launchers call it in the worker's process or thread."""

from __future__ import annotations

import os
import threading

from pyspark import cloudpickle

from headrace.channels.credit import Debloat
from headrace.channels.handshake import Identity

from ..contract.execution import ExecutionPlan
from ..contract.launcher import Incarnation, WorkerProgram
from ..contract.operators import StateBackend
from ..storage.checkpoint_storage import open_store
from ..worker.subtask_spec import Limits
from .interpreter import freeze_loaded, hand_over_soon
from .worker_driver import WorkerDriver, WorkerSettings


class WorkerStopped(Exception):
    """The worker ended because its coordinator was gone, not because the coordinator said so."""


def run_worker(program: WorkerProgram, incarnation: Incarnation, host: str) -> None:
    """Run one worker until the coordinator ends it. `host`: this machine's address, for peers.

    Raises WorkerStopped when the coordinator is lost, so that the launcher may start the worker
    again.
    """
    hand_over_soon()
    # The program came through the launcher's own channel (a pipe of the parent, or Spark), never
    # over our network.
    plan: ExecutionPlan = cloudpickle.loads(program.plan)
    if threading.current_thread() is threading.main_thread():
        # The process is this worker's own, and not the user's.
        freeze_loaded()
    settings = program.settings
    timeout_ns = int(settings["alignment_timeout_ns"])
    target_ns = int(settings["debloat_target_ns"])
    limits = Limits(
        buffer_bytes=int(settings["buffer_bytes"]),
        window_bytes=int(settings["window_bytes"]),
        queue_bytes_max=int(settings["queue_bytes_max"]),
        work_rows_max=int(settings["work_rows_max"]),
        work_target_ns=int(settings["work_target_ns"]),
        debloat=Debloat(target_ns, int(settings["debloat_floor_bytes"])) if target_ns else None,
        alignment_timeout_ns=None if timeout_ns < 0 else timeout_ns,
        logs=settings["inflight"] == "continuous",
        compresses=settings["compression"] == "lz4",
    )
    checkpoints = str(settings["checkpoints"])
    driver = WorkerDriver(
        plan,
        Identity(program.job, "worker", incarnation.worker, incarnation.number, 0),
        program.secret,
        WorkerSettings(
            limits,
            int(settings["heartbeat_ns"]),
            backend=StateBackend(
                str(settings["state_backend"]),
                int(settings["state_write_buffer_bytes"]),
                int(settings["state_block_cache_bytes"]),
            ),
            state_directory=str(settings["state_directory"]) or None,
        ),
        open_store(checkpoints) if checkpoints else None,
        dial=program.coordinator,
        host=host,
        pid=os.getpid(),
    )
    ended = driver.run()
    if not ended.clean:
        raise WorkerStopped(ended.reason)
