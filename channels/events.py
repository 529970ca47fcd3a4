"""Events: barriers, watermarks and the end, between the records of a channel.

An event has no rows and needs no credit. It sits at a position: the records before the position
precede the event.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

#: Event time is an int64 of nanoseconds since 1970. A channel without a watermark stands at the
#: minimum, an ended channel at the maximum.
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
    """The marker between the records of checkpoint `checkpoint` and later records.

    Attributes:
        checkpoint: id of the checkpoint; ids grow within a job and are never used twice.
        mode: how channels treat the barrier.
        created_ns: the coordinator's clock at the trigger; comparable with readings of that clock
            only.
    """

    checkpoint: int
    mode: CheckpointMode
    created_ns: int


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """No records follow in this channel. Barriers still may: a finished channel stays open for
    them, so alignment never has to treat an ended channel as a special case (Flink needs FLIP-147
    for that)."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """Event time in the channel: no record with a time up to `time_ns` is expected behind it.

    Only the newest counts, so a watermark may be delayed behind records, merged with a later
    watermark, or repeated; it may never pass a record.

    Attributes:
        time_ns: nanoseconds since 1970.
        idle: the channel has no records for the present, and is left out of the minimum until more
            come.
    """

    time_ns: int
    idle: bool = False


ChannelEvent = Barrier | EndOfInput | Watermark
