"""Barrier alignment: when has a subtask seen a checkpoint's barrier on every input channel?

Aligned (ABS, Algorithm 1): a channel that delivered the barrier is to be blocked until all have. At
least once: no channel is blocked, and several checkpoints may be counted side by side. The machine
knows channels only as members of a fixed set; the subtask blocks and unblocks.

A back-edge brings the barrier only after the subtask has let it into the loop, so alignment does
not wait for back-edges: on a cycle Algorithm 1 never ends. A back-edge that delivers early, from
where the barrier went another way round, is blocked like other channels.

Late barriers are harmless in any order: the machine ignores a barrier of a checkpoint that was
completed, cancelled or overtaken by a newer checkpoint.

Source: ABS (Carbone et al. 2015), Algorithms 1 and 2; the cases of late and newer barriers follow
Flink's barrier handlers (behaviour, not code).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from .buffer import ChannelId
from .events import Barrier, CheckpointMode


@dataclass(frozen=True, slots=True)
class Aligned:
    """The barrier came on every channel: take the cut now.

    Attributes:
        alignment_ns: from the first of the barrier's arrivals to the last.
        early: back-edges whose barrier has come as well.
    """

    barrier: Barrier
    alignment_ns: int
    early: frozenset[ChannelId] = frozenset()


@dataclass(frozen=True, slots=True)
class AlignmentOutcome:
    """Consequences of a barrier, to be carried out in the order of the fields.

    Attributes:
        subsumed: older checkpoints that can no longer be aligned here; to be declined.
        unblock: channels to hand out from again.
        block: the channel to block, if any.
        aligned: set when the barrier was the last one missing, back-edges left out.
    """

    subsumed: tuple[int, ...] = ()
    unblock: tuple[ChannelId, ...] = ()
    block: ChannelId | None = None
    aligned: Aligned | None = None


@dataclass(slots=True)
class _Pending:
    barrier: Barrier
    began_ns: int
    delivered: set[ChannelId]


class Alignment:
    """Alignment of one subtask with at least one input channel.

    Args:
        feedback: the channels of back-edges, among `channels`.
    """

    def __init__(self, channels: Iterable[ChannelId], feedback: Collection[ChannelId] = ()) -> None:
        self._channels = frozenset(channels)
        self._awaited = self._channels.difference(feedback)
        assert self._awaited, "a subtask without inputs has nothing to align"
        #: {checkpoint: channels so far}; several only while no channel is blocked.
        self._pending: dict[int, _Pending] = {}
        #: Barriers up to and including this checkpoint are history.
        self._settled = 0
        #: Checkpoints above `_settled` that were given up before all their barriers came.
        self._cancelled: set[int] = set()

    def barrier(self, channel: ChannelId, barrier: Barrier, now_ns: int) -> AlignmentOutcome:
        """The barrier reached the head of `channel` and everything before it is committed."""
        assert channel in self._channels, f"unknown channel {channel}"
        checkpoint = barrier.checkpoint
        if checkpoint <= self._settled or checkpoint in self._cancelled:
            return AlignmentOutcome()
        subsumed, unblock = self._subsume_older(barrier)
        if barrier.mode is CheckpointMode.ALIGNED:
            # An older barrier that comes now has been overtaken: blocking for it too would wait for
            # records behind this barrier.
            self._settle(checkpoint - 1)
        pending = self._pending.setdefault(checkpoint, _Pending(barrier, now_ns, set()))
        assert channel not in pending.delivered, f"{channel}: barrier {checkpoint} twice"
        pending.delivered.add(channel)
        if not pending.delivered >= self._awaited:
            block = channel if barrier.mode is CheckpointMode.ALIGNED else None
            return AlignmentOutcome(subsumed, unblock, block)
        blocked = sorted(pending.delivered - {channel}) if self._blocks(pending) else []
        for older in [number for number in self._pending if number <= checkpoint]:
            del self._pending[older]
        self._settle(checkpoint)
        early = frozenset(pending.delivered) - self._awaited
        aligned = Aligned(barrier, now_ns - pending.began_ns, early)
        return AlignmentOutcome(subsumed, (*unblock, *blocked), None, aligned)

    def cancel(self, checkpoint: int) -> tuple[ChannelId, ...]:
        """The coordinator gave the checkpoint up. Returns the channels to unblock."""
        pending = self._pending.pop(checkpoint, None)
        if checkpoint > self._settled:
            self._cancelled.add(checkpoint)
        if pending is None or not self._blocks(pending):
            return ()
        return tuple(sorted(pending.delivered))

    def delivered(self, checkpoint: int) -> frozenset[ChannelId]:
        """Channels that have brought the checkpoint's barrier so far."""
        pending = self._pending.get(checkpoint)
        return frozenset() if pending is None else frozenset(pending.delivered)

    def describe(self) -> str:
        """The whole state as stable text."""
        pending = " ".join(
            f"{number}:{len(self._awaited & p.delivered)}/{len(self._awaited)}"
            for number, p in sorted(self._pending.items())
        )
        return f"settled={self._settled} pending=[{pending}]"

    def _subsume_older(self, barrier: Barrier) -> tuple[tuple[int, ...], tuple[ChannelId, ...]]:
        """A newer checkpoint's barrier on a channel without the older barrier ends the older."""
        older = [
            number
            for number, pending in sorted(self._pending.items())
            if number < barrier.checkpoint and self._blocks(pending)
        ]
        unblock = {channel for number in older for channel in self._pending.pop(number).delivered}
        return tuple(older), tuple(sorted(unblock))

    def _settle(self, checkpoint: int) -> None:
        self._settled = max(self._settled, checkpoint)
        self._cancelled = {number for number in self._cancelled if number > self._settled}

    @staticmethod
    def _blocks(pending: _Pending) -> bool:
        return pending.barrier.mode is CheckpointMode.ALIGNED
