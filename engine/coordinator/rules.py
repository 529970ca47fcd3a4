"""What a coordinator is told, and where a job stands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.channels.events import CheckpointMode

from .pending import CheckpointRules
from .restarts import RestartRules


class Phase(Enum):
    """Where the job stands."""

    #: An epoch is claimed, sinks recovered, workers waited for.
    PREPARING = "preparing"
    DEPLOYING = "deploying"
    RUNNING = "running"
    #: The attempt has failed; storage is being waited for, then the back-off.
    RESTARTING = "restarting"
    #: The last commits are under way.
    CLOSING = "closing"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class CoordinatorRules:
    """All that can be set. Times in nanoseconds.

    Attributes:
        mode: how barriers travel.
        heartbeat_timeout_ns: a worker that is silent for longer is lost.
        register_timeout_ns: how long to wait for all workers before giving up the job.
    """

    mode: CheckpointMode
    checkpoints: CheckpointRules
    restarts: RestartRules
    heartbeat_timeout_ns: int
    register_timeout_ns: int
