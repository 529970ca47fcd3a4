"""Events and effects of a subtask: what has happened to it, and what it wants done.

Order of effects is law: a driver performs them in list order. `CommitWork` comes before everything that rests on the committed
work; a barrier's `SendEvent`s come before its `TakeSnapshot`, so that the next task need not wait for this one's copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.events import MIN_WATERMARK, Barrier, ChannelEvent
from headrace.inflight.handle import ChannelStateHandle
from headrace.inflight.replay import ReadOrder
from headrace.recovery.metadata import ChannelPosition

from ..contract.operators import Transaction
from ..operators.work import Work, WorkDone


class SubtaskId(NamedTuple):
    """Parallel instance number `subtask` (from 0) of the task with index `task` in the plan."""

    task: int
    subtask: int

    def __str__(self) -> str:
        return f"t{self.task}.{self.subtask}"


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BufferArrived:
    channel: ChannelId
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class EventArrived:
    channel: ChannelId
    position: int
    event: ChannelEvent


@dataclass(frozen=True, slots=True)
class CreditGranted:
    channel: ChannelId
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class InputDrained:
    """For sources: read nothing more, as if the input had ended behind what was read."""


@dataclass(frozen=True, slots=True)
class CheckpointTriggered:
    """For sources: take the cut and let the barrier follow the records emitted so far."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class CheckpointCancelled:
    checkpoint: int


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    checkpoint: int


@dataclass(frozen=True, slots=True)
class BufferRead:
    """Order `number` was carried out: `batch` holds the records left to replay, perhaps none."""

    number: int
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """The time that `next_deadline_ns` named has come."""


SubtaskEvent = (
    BufferArrived
    | EventArrived
    | CreditGranted
    | WorkDone
    | InputDrained
    | CheckpointTriggered
    | CheckpointCancelled
    | CheckpointCompleted
    | BufferRead
    | DeadlineReached
)

# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunWork:
    """Run it in the subtask's thread; comes back as WorkDone with the same number. Never two at once."""

    subtask: SubtaskId
    work: int
    what: Work


@dataclass(frozen=True, slots=True)
class CommitWork:
    """Make the writes of the work that just ended visible to snapshots."""

    subtask: SubtaskId


@dataclass(frozen=True, slots=True)
class SendBuffer:
    channel: ChannelId
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class SendEvent:
    channel: ChannelId
    position: int
    event: ChannelEvent


@dataclass(frozen=True, slots=True)
class GrantCredit:
    """Tell the producer that it may send up to `limit_bytes` in total since the attempt began."""

    channel: ChannelId
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class LogBuffer:
    """A buffer is in flight from now on: for a log that is written continuously."""

    channel: ChannelId
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class CapturedRun:
    """In-flight records of one channel from position `first` on, in order; `side` is "input" or "output"; `ended`: its end follows.

    `watermarks`: (position, event time in nanoseconds) of those among them.
    """

    channel: ChannelId
    side: str
    first: int
    buffers: tuple[Buffer, ...]
    ended: bool
    watermarks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Hold:
    """A wait of one cut. Holds may overlap in time.

    Attributes:
        kind: "work": for the running work, or for the records before the barrier; "pre-commit":
            for the sink to flush; "barrier": from the first barrier to the last, which came over
            `channel`; "output": until the barrier had left the queue of `channel`.
        channel: None for "work" and "pre-commit".
    """

    kind: str
    channel: ChannelId | None
    held_ns: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A subtask's part of a checkpoint, complete. Durations in nanoseconds.

    Attributes:
        transactions: (sink operator, transaction): pre-committed by this or an earlier cut and not yet known to be committed.
        inflight: what has to be persisted of its channels.
        replay: what was left to replay: stored already, to be named again.
        created_ns: when the checkpoint was triggered, by the coordinator's clock.
        holds: longest first.
        watermark_ns: how far event time had come at its operators.
    """

    subtask: SubtaskId
    checkpoint: int
    finished: bool
    received: tuple[ChannelPosition, ...]
    sent: tuple[ChannelPosition, ...]
    transactions: tuple[tuple[str, Transaction], ...]
    inflight: tuple[CapturedRun, ...]
    replay: tuple[ChannelStateHandle, ...]
    start_delay_ns: int
    alignment_ns: int
    created_ns: int = 0
    holds: tuple[Hold, ...] = ()
    watermark_ns: int = MIN_WATERMARK


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Freeze the operators' committed state now, before any later effect."""

    subtask: SubtaskId
    checkpoint: int


@dataclass(frozen=True, slots=True)
class CutTaken:
    """The subtask's part is complete: snapshot frozen, every barrier in, every output overtaken or sent."""

    cut: Cut


@dataclass(frozen=True, slots=True)
class ReadBuffer:
    """Read a stored buffer; ends in BufferRead."""

    subtask: SubtaskId
    order: ReadOrder


@dataclass(frozen=True, slots=True)
class DeclineCheckpoint:
    subtask: SubtaskId
    checkpoint: int
    reason: str


@dataclass(frozen=True, slots=True)
class SubtaskFinished:
    """Its last record and the end of input are on their way; it stays to relay barriers."""

    subtask: SubtaskId


SubtaskEffect = (
    RunWork
    | CommitWork
    | LogBuffer
    | SendBuffer
    | SendEvent
    | GrantCredit
    | TakeSnapshot
    | CutTaken
    | ReadBuffer
    | DeclineCheckpoint
    | SubtaskFinished
)
