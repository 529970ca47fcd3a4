"""Settings of a user's job in virtual time, drawn by a seed: how records are cut and queued."""

from __future__ import annotations

import random

from headrace.channels.events import CheckpointMode

from ..session.job import Job
from ..simulation.campaign.environment import Settings
from ..simulation.scheduler import MILLISECOND_NS, SECOND_NS
from ..worker.subtask_spec import Limits

#: No checkpoint but those asked for, and the last.
NEVER_NS = 1 << 60


def mode_of(job: Job) -> CheckpointMode:
    """The mode of checkpoints that the job states, or the usual one."""
    stated = job.options.checkpoints
    return CheckpointMode.ALIGNED if stated is None else stated.barrier_mode


def draw_settings(
    rng: random.Random,
    mode: CheckpointMode,
    *,
    workers: int,
    interval_ns: int = NEVER_NS,
    work_rows: int = 4,
) -> Settings:
    """Draw what users do not see: sizes of buffers and of pieces of work, and their durations.

    Args:
        workers: most workers.
        interval_ns: from checkpoint to checkpoint.
        work_rows: about the rows of a piece of work.
    """
    return Settings(
        mode=mode,
        limits=Limits(
            buffer_bytes=rng.choice((100, 400, 4000)),
            window_bytes=rng.choice((100, 400, 4000)),
            queue_bytes_max=rng.choice((100, 400, 4000)),
            work_rows_max=max(1, rng.choice((work_rows // 2, work_rows, 2 * work_rows))),
            work_target_ns=20 * MILLISECOND_NS,
        ),
        workers=workers,
        heartbeat_ns=50 * MILLISECOND_NS,
        heartbeat_timeout_ns=200 * MILLISECOND_NS,
        checkpoint_interval_ns=interval_ns,
        checkpoint_timeout_ns=30 * SECOND_NS,
        tolerable_failures=1_000_000,
        retain=1,
        concurrent=1,
        work_ns=(MILLISECOND_NS // 10, rng.choice((1, 3)) * MILLISECOND_NS),
        slow_tasks=frozenset(),
    )
