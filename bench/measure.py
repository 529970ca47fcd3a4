"""Running a job and timing it: what the benchmarks of this folder share."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import headrace as hr
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.contract.operators import OperatorContext, SourceStatus
from headrace.engine.contract.options import Runner
from headrace.engine.coordinator.rules import Phase
from headrace.recovery.metadata import CheckpointMetadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S = 0.002
#: The end is looked for more seldom: looks take processor time from the driver while it works.
_END_POLL_S = 0.01
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Measured:
    """A finished run.

    Attributes:
        running_s: from the moment all workers ran to the end of the job, its last commit included;
            the end of the workers, or of a Spark session, takes up to a second more.
        starting_s: of `Job.start`, in which sources are prepared; workers may come later.
        processor_s: of this process and all below it, the workers', in that time.
        completed: its checkpoints, the last one at the end of input included.
    """

    result: hr.JobResult
    running_s: float
    starting_s: float
    processor_s: float
    completed: Sequence[CheckpointMetadata]

    def checkpoints(self, interval: str | None) -> dict[str, Any]:
        """How many periodic checkpoints completed and how long they took, in milliseconds."""
        periodic = sorted(c.duration_ns / 1e6 for c in self.completed[:-1])
        return {
            "checkpoint_interval": interval,
            "checkpoints": len(periodic),
            "checkpoint_p50_ms": percentile(periodic, 50),
            "checkpoint_p99_ms": percentile(periodic, 99),
        }


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Nearest-rank percentile of sorted values, rounded to microseconds; None of too few."""
    rank = rank_of(percent, len(ordered))
    return None if rank is None else round(ordered[rank], 3)


def rank_of(percent: int, count: int) -> int | None:
    """The index of a percentile among `count` sorted values.

    None if there are too few: a percentile above the median needs at least one value above it, so
    p99 needs 100 values. Of fewer it would be the largest value under another name; 100 asks for
    that.
    """
    fewest = 100 // (100 - percent) if 50 < percent < 100 else 1
    return None if count < fewest else -(-count * percent // 100) - 1


def run_and_measure(job: hr.Job, runner: Runner, *, spark: SparkSession | None = None) -> Measured:
    """Run to the end."""
    asked = time.monotonic()
    handle = job.start(runner, spark=spark)
    starting_s = time.monotonic() - asked
    while handle.status().phase not in (Phase.RUNNING, Phase.ENDED):
        time.sleep(_POLL_S)
    began, used_s = time.monotonic(), processor_s()
    while handle.status().phase is not Phase.ENDED:
        time.sleep(_END_POLL_S)
    running_s, spent_s = time.monotonic() - began, processor_s() - used_s
    result = handle.wait()
    return Measured(result, running_s, starting_s, spent_s, handle.status().checkpoints)


def all_batches(source: SequenceSource) -> Iterator[pa.RecordBatch]:
    """Every batch of a source, read by one subtask."""
    reader = source.reader()
    reader.open(OperatorContext("bench", "source", 0, 1, 1, 1))
    while True:
        polled = reader.poll(1 << 20)
        reader.commit()
        yield from polled.batches
        if polled.status is SourceStatus.END:
            return


def processes() -> dict[int, tuple[int, float]]:
    """Every process of this machine: {process: (parent, processor time in seconds)} (Linux).

    Children that have ended count for their parent.
    """
    found = {}
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError):  # no process, or one that has just ended
            text = Path(f"/proc/{int(entry)}/stat").read_text()
            # Behind the name in parentheses: state, parent, ..., user and system time, own and of
            # ended children.
            fields = text.rpartition(")")[2].split()
            ticks = sum(int(field) for field in fields[11:15])
            found[int(entry)] = int(fields[1]), ticks / _TICKS_PER_S
    return found


def processor_s() -> float:
    """Processor time of this process and of all below it."""
    known = processes()

    def is_below(process: int) -> bool:
        while process in known and process != os.getpid():
            process = known[process][0]
        return process == os.getpid()

    return sum(used_s for process, (_, used_s) in known.items() if is_below(process))
