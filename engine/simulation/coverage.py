"""Coverage: counts of a run's events, so that a campaign can fail if some fault never happened.

A test without crashes proves nothing about crashes. Every fault and every event that an oracle
lives on counts itself here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

#: What unaligned checkpoints are for.
IN_FLIGHT: tuple[str, ...] = (
    "records persisted in flight, input",
    "records persisted in flight, output",
)
#: Events that at least one seed of a campaign must meet. Crash points carry the names of
#: docs/design.md's protocol.
REQUIRED: tuple[str, ...] = (
    "checkpoints completed",
    "checkpoints given up",
    "jobs drained before their end",
    "savepoints completed",
    "savepoints started from",
    "restarts",
    "rounds of deletion",
    "rounds in which a deletion was refused",
    "restored from a checkpoint",
    "events fenced by workers",
    "messages fenced by the coordinator",
    "bytes in flight at a cut",
    *IN_FLIGHT,
    "records persisted in flight, replay",
    "records named in a log",
    "records named that a given-up checkpoint stored",
    "records stored compressed",
    "log pieces lost",
    "spilled runs written",
    "spilled runs not written",
    "log pieces deleted",
    "channels blocked by backpressure",
    "worker crashed",
    "worker crashed with its host",
    "coordinator crashed",
    "connection severed",
    "sockets that took a part of what waited",
    "link half open",
    "links partitioned",
    "clock jumped",
    "zombie messages",
    "storage slow",
    "storage rejected",
    "storage uncertain, applied",
    "storage uncertain, not applied",
    "deletion refused",
    "storage full",
    "write torn by a crash",
    "commit failed",
    "commit applied, reply lost",
    "rescales, stop",
    "rescales, rescale",
    "rescales given up",
    "rescales that took over",
    "files restored that were fetched ahead",
    "rescales, savepoint",
    "checkpoints claimed",
    "claims released",
    "rescales, cancel",
    "rescales, kill",
    "rescaled restores",
    "restores by other partitioners",
    "records in flight given out by another partitioner",
    "tasks run to their end, asks",
    "tasks run to their end, routes",
    "tasks run to their end, skips",
    "tasks run to their end, session join",
    "tasks run to their end, co-process",
    "tasks run to their end, lives",
    "tasks run to their end, expiring",
    "full batches",
    "batches in part",
    "records re-filtered",
    "replays in waves",
    "restores amid the waves of a replay",
    "filters stacked twice",
    "full checkpoints that share no file",
)


class Coverage:
    """Counters by name."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def count(self, what: str, times: int = 1) -> None:
        """Count the event `what`."""
        self.counts[what] += times

    def merge(self, counts: dict[str, int]) -> None:
        """Add another run's counters."""
        self.counts.update(counts)

    def missing(self, required: Iterable[str]) -> list[str]:
        """Return mandatory events that never happened."""
        return [what for what in required if not self.counts[what]]
