"""Results of a job and of a rescale, as values.

`JobHandle` returns them, and the control endpoint sends them to other processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class JobResult:
    """The end of a job. A job that failed has no result: waiting for it raises `JobFailed`.

    Attributes:
        job: its name.
        duration_ns: from start to end, restarts included.
        checkpoints: completed ones.
        restarts: after failures.
        last_checkpoint: number of the newest completed one; None if there is none.
        collected: {name of a `write.collect` sink: its records}.
        outcome: "finished": all input (before a drain: all input read) was worked on to the end;
            "stopped": it was not.
        savepoint: path of the savepoint with which the job was stopped.
    """

    job: str
    duration_ns: int = 0
    checkpoints: int = 0
    restarts: int = 0
    last_checkpoint: int | None = None
    collected: Mapping[str, pa.Table] = field(default_factory=dict)
    outcome: Literal["finished", "stopped"] = "finished"
    savepoint: str | None = None


@dataclass(frozen=True, slots=True)
class Rescaled:
    """A rescale that worked.

    Attributes:
        parallelism: the new one.
        checkpoint: number of the checkpoint that the job went on from.
        stop_ns: from the request until the job had stopped, the checkpoint included.
        duration_ns: from the request until an attempt ran again.
        standstill_ns: from the order to stop until an attempt ran again.
        ahead_bytes: of state that the new workers had fetched and checked before that order.
        begin_ns: from the job's stop until the next coordinator had read the checkpoint and given
            it out.
    """

    parallelism: int
    checkpoint: int
    stop_ns: int
    duration_ns: int
    standstill_ns: int
    ahead_bytes: int = 0
    begin_ns: int = 0
