"""Events: what travels in a channel between the records.

An event has no rows and needs no credit. It sits at a position; the records before that position precede it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

#: Event time is an int64 of nanoseconds since 1970. A channel without a watermark stands at the one, an ended channel at the other.
MIN_WATERMARK: Final = -(2**63)
MAX_WATERMARK: Final = 2**63 - 1


class CheckpointMode(Enum):
    """How a barrier treats the data around it; see docs/design.md, "Checkpoint modes"."""

    #: A channel that delivered its barrier is blocked until all have (ABS, Algorithm 1).
    ALIGNED = "aligned"
    #: The barrier overtakes queued data, which is persisted (FLIP-76).
    UNALIGNED = "unaligned"
    #: No blocking and no persisting: records may be counted twice after a failure.
    AT_LEAST_ONCE = "at_least_once"


@dataclass(frozen=True, slots=True)
class Barrier:
    """The marker that separates the records of checkpoint `checkpoint` from those after it.

    Attributes:
        checkpoint: id of the checkpoint; ids grow within a job and are never used twice.
        mode: how channels treat the barrier.
        created_ns: the coordinator's clock when it triggered; only compared with that clock's other readings.
    """

    checkpoint: int
    mode: CheckpointMode
    created_ns: int


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """No records follow in this channel. Barriers still may: a finished channel stays open for them, so
    alignment never has to treat an ended channel as a special case (Flink needs FLIP-147 for that)."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """Event time in the channel: no record with a time up to `time_ns` is to be expected behind it.

    Only the newest counts, so one may be delayed behind records, merged with a later one, or repeated; it may never pass a record.

    Attributes:
        time_ns: nanoseconds since 1970.
        idle: the channel has nothing to say for the present, and is left out of the minimum until it speaks again.
    """

    time_ns: int
    idle: bool = False


ChannelEvent = Barrier | EndOfInput | Watermark
