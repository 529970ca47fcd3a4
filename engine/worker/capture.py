"""What one cut of a subtask captured, from the moment it was taken until nothing of it is missing.

Records before a barrier that came earlier are in it at once; where the barrier has not come, all that the channel holds and still brings
until then. At the outputs: what the barrier passed, at once if it overtakes, at the deadline if it was aligned until then. So a capture
is complete when the operators' snapshot was taken and no barrier is missing, neither in nor out.

Source: FLIP-76, "unaligned checkpoints".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.events import MIN_WATERMARK, Barrier, CheckpointMode, Watermark
from headrace.channels.gate import BarrierPlace, InputChannel
from headrace.channels.subpartition import Overtaken, Subpartition
from headrace.inflight.handle import ChannelStateHandle
from headrace.recovery.metadata import ChannelPosition

from ..contract.operators import Transaction
from .subtask_events import CapturedRun, Cut, SubtaskId, Waited


@dataclass(frozen=True, slots=True)
class Due:
    """A cut that should be taken as soon as it can be. `since_ns`: from then on only the subtask's own work is in its way."""

    barrier: Barrier
    since_ns: int
    alignment_ns: int = 0


@dataclass(slots=True)
class Capture:
    """A cut that was taken and is not yet complete.

    Attributes:
        frozen_ns: when the operators' snapshot was taken; None: it was not yet.
        pending: inputs whose barrier has not come; what they bring belongs to the checkpoint.
        outgoing: outputs in which the (aligned) barrier may still be made to overtake.
        inputs: {channel: records before its barrier, from the cut on}.
        input_ends: channels whose end of input came before their barrier and after the cut's position.
        arrived_ns: {channel: when its barrier came in}.
        left: the output that the barrier was the last to leave, and when.
        watermarks: {channel: (position, event time) of those before its barrier, from the cut on}.
        watermark_ns: how far event time had come at the operators.
    """

    due: Due
    taken_ns: int
    received: tuple[ChannelPosition, ...]
    sent: tuple[ChannelPosition, ...]
    replay: tuple[ChannelStateHandle, ...]
    finished: bool
    watermark_ns: int
    frozen_ns: int | None = None
    transactions: tuple[tuple[str, Transaction], ...] = ()
    pending: set[ChannelId] = field(default_factory=set)
    outgoing: set[ChannelId] = field(default_factory=set)
    inputs: dict[ChannelId, list[Buffer]] = field(default_factory=dict)
    input_ends: set[ChannelId] = field(default_factory=set)
    watermarks: dict[ChannelId, list[tuple[int, int]]] = field(default_factory=dict)
    outputs: dict[ChannelId, Overtaken] = field(default_factory=dict)
    arrived_ns: dict[ChannelId, int] = field(default_factory=dict)
    left: tuple[ChannelId, int] | None = None

    @property
    def complete(self) -> bool:
        """Nothing that belongs to it can come any more."""
        return self.frozen_ns is not None and not self.pending and not self.outgoing

    def barrier_was_there(self, channel: InputChannel, place: BarrierPlace) -> None:
        """The barrier of `channel` was there before the cut: the records before it belong to the checkpoint."""
        id = channel.channel
        self.inputs[id] = list(channel.captured(place.position))
        self.watermarks[id] = list(place.watermarks)
        if place.ended and not channel.ended:
            self.input_ends.add(id)

    def barrier_is_missing(self, channel: InputChannel) -> None:
        """All that `channel` holds belongs to the checkpoint, and what it brings until its barrier comes."""
        id = channel.channel
        self.pending.add(id)
        self.inputs[id] = list(channel.captured(channel.arrived))
        self.watermarks[id] = list(channel.queued_watermarks)

    def barrier_arrived(self, channel: InputChannel, now_ns: int) -> None:
        """The missing barrier of `channel` has come: what follows it is not of this checkpoint."""
        assert channel.channel in self.pending, f"{channel.channel}: a second barrier"
        self.arrived_ns[channel.channel] = now_ns
        self.pending.discard(channel.channel)
        ended = {ChannelId(p.edge, p.producer, p.consumer) for p in self.received if p.ended}
        if channel.end_arrived and channel.channel not in ended:
            self.input_ends.add(channel.channel)

    def buffer_arrived(self, channel: ChannelId, buffer: Buffer) -> None:
        """Records came in over `channel`."""
        if channel in self.pending:
            self.inputs[channel].append(buffer)

    def watermark_arrived(self, channel: ChannelId, position: int, watermark: Watermark) -> None:
        """A watermark came in over `channel`. That it is idle is not kept: its producer will say so again."""
        if channel in self.pending and watermark.time_ns > MIN_WATERMARK:
            self.watermarks[channel].append((position, watermark.time_ns))

    def barrier_left(self, channel: ChannelId, now_ns: int) -> None:
        """The (aligned) barrier has left the output `channel`; it can overtake nothing there any more."""
        if channel in self.outgoing:
            self.outgoing.discard(channel)
            self.left = (channel, now_ns)

    def hasten(self, subpartitions: Mapping[ChannelId, Subpartition], now_ns: int) -> None:
        """Let the (aligned) barrier overtake wherever it still stands behind data."""
        for channel in sorted(self.outgoing):
            overtaken = subpartitions[channel].hasten(self.due.barrier.checkpoint)
            if overtaken is not None:
                self.outputs[channel] = overtaken
                self.left = (channel, now_ns)
        self.outgoing.clear()

    def cut(self, subtask: SubtaskId, now_ns: int) -> Cut:
        """What is handed over of a complete one."""
        barrier = self.due.barrier
        first = {ChannelId(p.edge, p.producer, p.consumer): p.position for p in self.received}
        runs = [
            CapturedRun(
                channel,
                "input",
                first[channel],
                tuple(buffers),
                channel in self.input_ends,
                tuple(self.watermarks[channel]),
            )
            for channel, buffers in sorted(self.inputs.items())
        ]
        runs += [
            CapturedRun(
                channel, "output", passed.first, passed.buffers, passed.ended, passed.watermarks
            )
            for channel, passed in sorted(self.outputs.items())
        ]
        alignment_ns = self.due.alignment_ns
        if barrier.mode is CheckpointMode.UNALIGNED:
            alignment_ns = now_ns - self.taken_ns
        return Cut(
            subtask=subtask,
            checkpoint=barrier.checkpoint,
            finished=self.finished,
            received=self.received,
            sent=self.sent,
            transactions=self.transactions,
            inflight=tuple(run for run in runs if run.buffers or run.ended or run.watermarks),
            replay=self.replay,
            start_delay_ns=max(0, self.taken_ns - self.due.alignment_ns - barrier.created_ns),
            alignment_ns=alignment_ns,
            created_ns=barrier.created_ns,
            waited=self._waited(),
            watermark_ns=self.watermark_ns,
        )

    def _waited(self) -> tuple[Waited, ...]:
        """What the cut waited for, longest first; what took no time is left out."""
        taken_ns = self.taken_ns
        waited = [Waited("work", None, taken_ns - self.due.since_ns)]
        if self.frozen_ns is not None:
            waited.append(Waited("pre-commit", None, self.frozen_ns - taken_ns))
        if self.arrived_ns:
            last_ns, last = max((ns, channel) for channel, ns in self.arrived_ns.items())
            waited.append(Waited("barrier", last, last_ns - min(self.arrived_ns.values())))
        if self.left is not None:
            channel, left_ns = self.left
            waited.append(Waited("output", channel, left_ns - taken_ns))
        return tuple(sorted((w for w in waited if w.held_ns > 0), key=lambda w: -w.held_ns))
