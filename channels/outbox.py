"""Frames that wait for one connection, and the order in which they leave.

Control messages, credit, and events of channels without waiting data leave first. Channels with
waiting data take turns, a frame at a time. Within a channel nothing overtakes: an event sits at a
position, and the records before that position leave before the event.

Deviation from one queue for all: a barrier waits for the data of its own channel alone, and not for
the data of all channels.
"""

from __future__ import annotations

from collections import deque
from typing import assert_never

from .buffer import ChannelId
from .wire import BufferFrame, ControlFrame, CreditFrame, EventFrame, Frame


class Outbox:
    """Frames of one direction of a connection, from `put` to `take`."""

    def __init__(self) -> None:
        #: Frames that wait for no data.
        self._first: deque[Frame] = deque()
        #: {channel: its frames in order, data first}; no queue is empty.
        self._waiting: dict[ChannelId, deque[BufferFrame | EventFrame]] = {}
        #: The keys of `_waiting`, next to leave first.
        self._turn: deque[ChannelId] = deque()
        self._frames = 0

    def __len__(self) -> int:
        return self._frames

    def put(self, frame: Frame) -> None:
        """Add a frame."""
        self._frames += 1
        match frame:
            case BufferFrame(channel):
                queue = self._waiting.get(channel)
                if queue is None:
                    queue = self._waiting[channel] = deque()
                    self._turn.append(channel)
                queue.append(frame)
            case EventFrame(channel):
                self._waiting.get(channel, self._first).append(frame)
            case CreditFrame() | ControlFrame():
                self._first.append(frame)
            case _:
                assert_never(frame)

    def take(self) -> Frame | None:
        """Remove the frame that leaves next; None: no frame waits."""
        if not self._frames:
            return None
        self._frames -= 1
        if self._first:
            return self._first.popleft()
        channel = self._turn.popleft()
        queue = self._waiting[channel]
        frame = queue.popleft()
        if queue:
            self._turn.append(channel)
        else:
            del self._waiting[channel]
        return frame

    def check(self) -> None:
        """Assert every invariant."""
        assert sorted(self._turn) == sorted(self._waiting), f"{self._turn} take turns"
        for channel, queue in self._waiting.items():
            assert queue, f"{channel}: an empty queue"
            assert all(frame.channel == channel for frame in queue), f"{channel}: another's frame"
        frames = len(self._first) + sum(len(queue) for queue in self._waiting.values())
        assert frames == self._frames, f"{frames} frames, not {self._frames}"
