"""The specification of a subtask, and the ends of channels made from a specification."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.channels.buffer import ChannelId
from headrace.channels.connection_room import RoomLimits
from headrace.channels.credit import Budget, Debloat, Window
from headrace.channels.events import MIN_WATERMARK
from headrace.channels.gate import InputChannel
from headrace.channels.subpartition import Subpartition
from headrace.inflight.handle import ChannelStateHandle
from headrace.inflight.spill import SpillLimits
from headrace.recovery.metadata import ChannelPosition

from ..contract.execution import BatchRule, EventTimeRole, SubtaskId


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one subtask. All are soft by one buffer or one piece of work.

    Attributes:
        buffer_bytes: queued slices are merged up to this size when they are sent.
        window_bytes: the largest credit per channel.
        budget_bytes: what all windows and queues of a worker may come to.
        queue_bytes_max: a subpartition with this much takes the room for new work away.
        work_rows_max: rows of one piece of work.
        work_target_ns: time that a piece should take.
        debloat: how windows and queues follow the drain rate; None: they stay as they are.
        alignment_timeout_ns: age at which an aligned checkpoint becomes unaligned; None: never.
        logs, compresses: buffers are told to the in-flight writer (`LogBuffer`), which compresses
            them.
        spill: memory and local disk for records of blocked channels; None: no channel spills.
        connection: room for data in the connection to each other worker; None: without limit.
    """

    buffer_bytes: int
    window_bytes: int
    queue_bytes_max: int
    work_rows_max: int
    work_target_ns: int
    debloat: Debloat | None = None
    alignment_timeout_ns: int | None = None
    logs: bool = False
    compresses: bool = False
    budget_bytes: int = 1 << 62
    connection: RoomLimits | None = None
    spill: SpillLimits | None = None


@dataclass(frozen=True, slots=True)
class EventTimeSpec:
    """Event time of a subtask, as specified.

    Attributes:
        idle_after_ns: where the chain makes watermarks: time without records after which the chain
            is idle; None: never.
        restored: the operators were given state back.
        watermark_ns: event time in the restored state.
    """

    role: EventTimeRole = EventTimeRole.PASSES
    idle_after_ns: int | None = None
    restored: bool = False
    watermark_ns: int = MIN_WATERMARK


#: A subtask that starts afresh, and whose operators do not look at event time.
NO_EVENT_TIME: Final = EventTimeSpec()


@dataclass(frozen=True, slots=True)
class SubtaskSpec:
    """All that a subtask is built from.

    Attributes:
        inputs: channels by input port.
        outputs: by output edge, the channels to its consumers, in the partitioner's order of
            targets.
        received, sent: restored positions by channel; other channels start at 0.
        replay: in-flight data to work on before anything new.
        wave: of the replay (`recovery/waves.py`).
        time: event time of its operators.
        batch: the batches that its operators ask for; None: records are handed out as they come.
        feedback: the input ports that are back-edges of a loop; the subtask is the loop's head.
        hears: the source hears of complete checkpoints.
    """

    id: SubtaskId
    is_source: bool
    is_sink: bool
    inputs: Sequence[Sequence[ChannelId]]
    outputs: Sequence[Sequence[ChannelId]]
    limits: Limits
    finished: bool
    received: Mapping[ChannelId, ChannelPosition]
    sent: Mapping[ChannelId, ChannelPosition]
    replay: Sequence[ChannelStateHandle] = ()
    wave: int = 0
    time: EventTimeSpec = NO_EVENT_TIME
    batch: BatchRule | None = None
    feedback: frozenset[int] = frozenset()
    hears: bool = False


def _position(positions: Mapping[ChannelId, ChannelPosition], channel: ChannelId) -> int:
    return positions[channel].position if channel in positions else 0


def output_end(spec: SubtaskSpec, channel: ChannelId, budget: Budget | None) -> Subpartition:
    """Make the producer's end of an output, at its restored position."""
    return Subpartition(
        channel,
        position=_position(spec.sent, channel),
        room=Window(spec.limits.queue_bytes_max, spec.limits.debloat, budget),
    )


def input_end(
    spec: SubtaskSpec, channel: ChannelId, port: int, budget: Budget | None
) -> InputChannel:
    """Make the consumer's end of an input, at its restored position."""
    restored = spec.received.get(channel)
    return InputChannel(
        channel,
        port,
        position=_position(spec.received, channel),
        ended=restored is not None and restored.ended,
        window=Window(spec.limits.window_bytes, spec.limits.debloat, budget),
        watermark_ns=MIN_WATERMARK if restored is None else restored.watermark,
        # With records to replay it is not silent.
        idle=restored is not None and restored.idle and not spec.replay,
        feedback=port in spec.feedback,
    )
