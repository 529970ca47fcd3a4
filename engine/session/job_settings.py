"""What a run's options mean to the coordinator and to the workers, as the plain values that they take."""

from __future__ import annotations

from headrace.channels.events import CheckpointMode

from ..contract.options import Checkpoints, RunOptions
from ..coordinator.rules import CheckpointRules, CoordinatorRules, RestartRules

#: Without a checkpoint directory only the last checkpoint exists, in memory; it may take as long as it likes.
_FOREVER_NS = 10**18
#: A smaller window would be all overhead, however slow the consumer.
_DEBLOAT_FLOOR_BYTES = 64 << 10
_WORK_ROWS_MAX = 65_536
_WORK_TARGET_NS = 20_000_000


def worker_settings(options: RunOptions) -> dict[str, int | str | float]:
    """Settings of a `WorkerProgram`."""
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


def coordinator_rules(options: RunOptions) -> CoordinatorRules:
    """Rules of the coordinator machine."""
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
