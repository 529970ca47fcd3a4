"""Options of a run as the rules of its coordinator."""

from __future__ import annotations

from headrace.channels.events import CheckpointMode

from ..contract.options import RunOptions
from ..coordinator.rules import CheckpointRules, CoordinatorRules, RestartRules

#: Without a checkpoint directory the only checkpoint is the last, in memory; time does not matter.
_FOREVER_NS = 10**18
#: A stop does not wait for full queues any longer.
_LAST_ALIGNED_NS = 10**9


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
            last_aligned_ns=_LAST_ALIGNED_NS,
            full_every=0 if checkpoints is None else checkpoints.full_every,
        ),
        restarts=RestartRules(
            options.restart.attempts, options.restart.backoff_ns, options.restart.max_backoff_ns
        ),
        heartbeat_timeout_ns=options.network.heartbeat_timeout_ns,
        register_timeout_ns=options.workers.start_timeout_ns,
    )
