"""Results of a job and of a rescale, as values.

`JobHandle` returns them, and the control endpoint sends them to other processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from .numbers import counted, seconds


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

    def __repr__(self) -> str:
        """Say how the job ended, and how many rows each sink has collected."""
        parts = [f"{self.outcome} in {seconds(self.duration_ns)}"]
        parts.append(counted(self.checkpoints, "checkpoint"))
        if self.last_checkpoint is not None:
            parts[-1] += f" (newest: chk-{self.last_checkpoint})"
        if self.restarts:
            parts.append(counted(self.restarts, "restart"))
        if self.savepoint is not None:
            parts.append(f"savepoint {self.savepoint}")
        rows = [f"{counted(t.num_rows, 'row')} in {n!r}" for n, t in self.collected.items()]
        collected = f"; {', '.join(rows)}" if rows else ""
        return f"<JobResult of {self.job!r}: {', '.join(parts)}{collected}>"


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
