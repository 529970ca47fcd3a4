"""Settings of a coordinator, and the phases of a job. All times are in nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.channels.events import CheckpointMode


class Phase(Enum):
    """Where the job stands."""

    #: An epoch is claimed, sinks are recovered, workers register.
    PREPARING = "preparing"
    DEPLOYING = "deploying"
    RUNNING = "running"
    #: The attempt has failed; the coordinator waits for storage, then for the back-off.
    RESTARTING = "restarting"
    #: The last commits are under way.
    CLOSING = "closing"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class CheckpointRules:
    """When checkpoints are taken and given up.

    Attributes:
        interval_ns: from trigger to trigger; None: only on request and at the end.
        min_pause_ns: from the end of one to the trigger of the next.
        timeout_ns: a checkpoint that takes longer is given up.
        tolerable_failures: failures in a row that an attempt survives.
        retain: number of complete checkpoints to keep.
        concurrent: number of checkpoints that may be under way at once.
        full_every: one complete checkpoint in so many shares no file with older ones; 0: none.
        last_aligned_ns: the checkpoint with which a stopped job ends becomes unaligned when it is
            not complete so long after the stop; None: never.
    """

    interval_ns: int | None
    min_pause_ns: int
    timeout_ns: int
    tolerable_failures: int
    retain: int
    concurrent: int
    last_aligned_ns: int | None = None
    full_every: int = 0


@dataclass(frozen=True, slots=True)
class RestartRules:
    """Exponential back-off with a limit.

    Attributes:
        attempts_max: restarts in a row, without a completed checkpoint in between, before the job
            fails.
        backoff_ns: wait before the first restart; doubles with each one in a row.
        backoff_max_ns: longest wait.
    """

    attempts_max: int
    backoff_ns: int
    backoff_max_ns: int


@dataclass(frozen=True, slots=True)
class CoordinatorRules:
    """All settings of a coordinator.

    Attributes:
        mode: how barriers travel.
        heartbeat_timeout_ns: a worker that is silent for longer is lost.
        register_timeout_ns: how long all workers may take to register before the job fails.
    """

    mode: CheckpointMode
    checkpoints: CheckpointRules
    restarts: RestartRules
    heartbeat_timeout_ns: int
    register_timeout_ns: int
