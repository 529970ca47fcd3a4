"""Events and effects of a subtask.

Order of effects is law: a driver performs them in list order. `CommitWork` comes before every
effect that rests on the committed work; a barrier's `SendEvent`s come before its `TakeSnapshot`, so
that the next task need not wait for a copy of state.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.events import MIN_WATERMARK, Barrier, ChannelEvent
from headrace.channels.spilled import Records
from headrace.inflight.handle import ChannelStateHandle
from headrace.inflight.replay import ReadOrder
from headrace.inflight.replay_ledger import ReplayCount
from headrace.inflight.spill import SpillOrder, SpillOutcome
from headrace.recovery.metadata import ChannelPosition

from ..contract.execution import SubtaskId
from ..contract.operators import Transaction
from ..operators.work import Work, WorkDone

# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BufferArrived:
    """Records came in over an input channel."""

    channel: ChannelId
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class EventArrived:
    """A barrier, a watermark or the end of input came in, behind the record at `position`."""

    channel: ChannelId
    position: int
    event: ChannelEvent


@dataclass(frozen=True, slots=True)
class CreditGranted:
    """The consumer of an output channel permits `limit_bytes` in total since the attempt began."""

    channel: ChannelId
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class RoomReturned:
    """A connection has room again for an output channel of the subtask."""


@dataclass(frozen=True, slots=True)
class InputDrained:
    """A source is to end behind the records that it has read."""


@dataclass(frozen=True, slots=True)
class EndLoop:
    """The loop of a head has ended: its entries have, and no record of it is anywhere any more.

    The back-edges count as ended from now on; their own end of input follows when the head's end
    has gone round. Whoever sends it must be certain; a head that has finished already ignores it.
    """


@dataclass(frozen=True, slots=True)
class CheckpointTriggered:
    """A source is to take the cut, and let the barrier follow the records emitted so far."""

    barrier: Barrier


@dataclass(frozen=True, slots=True)
class CheckpointCancelled:
    """The coordinator gave the checkpoint up."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    """The checkpoint is complete, and the transactions in it are committed."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class BufferRead:
    """Order `number` was carried out: `batch` holds the records left to replay, perhaps none."""

    number: int
    batch: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class PartStored:
    """The worker has stored its part of the checkpoint, and needs nothing more for it."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class DiskUsed:
    """An order to the local disk was carried out, or failed."""

    outcome: SpillOutcome


@dataclass(frozen=True, slots=True)
class WaveBegan:
    """The job has worked on all records of earlier waves (`recovery/waves.py`)."""

    wave: int


@dataclass(frozen=True, slots=True)
class DeadlineReached:
    """The time that `next_deadline_ns` named has come."""


SubtaskEvent = (
    BufferArrived
    | EventArrived
    | CreditGranted
    | RoomReturned
    | WorkDone
    | InputDrained
    | EndLoop
    | CheckpointTriggered
    | CheckpointCancelled
    | CheckpointCompleted
    | PartStored
    | BufferRead
    | DiskUsed
    | WaveBegan
    | DeadlineReached
)

# --- effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunWork:
    """Run work in the subtask's thread; WorkDone with the number follows. Never two at once."""

    subtask: SubtaskId
    work: int
    what: Work


@dataclass(frozen=True, slots=True)
class CommitWork:
    """Make the writes of the last work visible to snapshots."""

    subtask: SubtaskId


@dataclass(frozen=True, slots=True)
class SendBuffer:
    """Send records to the consumer of an output channel."""

    channel: ChannelId
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class SendEvent:
    """Send an event to the consumer of an output channel, behind the record at `position`."""

    channel: ChannelId
    position: int
    event: ChannelEvent


@dataclass(frozen=True, slots=True)
class GrantCredit:
    """Permit the producer `limit_bytes` in total since the attempt began."""

    channel: ChannelId
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class LogBuffer:
    """Hand a buffer, in flight from now on, to a log that is written continuously."""

    channel: ChannelId
    buffer: Buffer


@dataclass(frozen=True, slots=True)
class CapturedRun:
    """In-flight records of one channel, in order, from position `first` on.

    Attributes:
        side: "input" or "output".
        ended: the end of input follows the records.
        watermarks: (position, event time in nanoseconds) of watermarks among the records.
    """

    channel: ChannelId
    side: str
    first: int
    buffers: tuple[Records, ...]
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
        transactions: (sink operator, transaction): pre-committed by this or an earlier cut, not
            known to be committed.
        inflight: records of the channels that have to be persisted.
        replay: records left to replay: stored already, to be named again.
        replayed: counts of the records that are replayed.
        created_ns: time of the trigger, by the coordinator's clock.
        holds: longest first.
        watermark_ns: event time at the operators.
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
    replayed: tuple[ReplayCount, ...] = ()


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Freeze the operators' committed state now, before any later effect."""

    subtask: SubtaskId
    checkpoint: int


@dataclass(frozen=True, slots=True)
class CutTaken:
    """The subtask's part is complete: state frozen, all barriers in, all outputs passed."""

    cut: Cut


@dataclass(frozen=True, slots=True)
class ReadBuffer:
    """Read a stored buffer for the replay; BufferRead follows."""

    subtask: SubtaskId
    order: ReadOrder


@dataclass(frozen=True, slots=True)
class UseDisk:
    """Use the local disk for spilled records; DiskUsed follows, except after a deletion.

    The orders of a worker are carried out one after the other.
    """

    subtask: SubtaskId
    order: SpillOrder


@dataclass(frozen=True, slots=True)
class DiskExceeded:
    """A loop holds more than memory and the limit of disk take: the job cannot go on."""

    subtask: SubtaskId
    reason: str


@dataclass(frozen=True, slots=True)
class DeclineCheckpoint:
    """Tell the coordinator that the subtask will not complete the checkpoint."""

    subtask: SubtaskId
    checkpoint: int
    reason: str


@dataclass(frozen=True, slots=True)
class SubtaskFinished:
    """The last record and the end of input are under way; the subtask stays for barriers."""

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
    | UseDisk
    | DiskExceeded
    | DeclineCheckpoint
    | SubtaskFinished
)
