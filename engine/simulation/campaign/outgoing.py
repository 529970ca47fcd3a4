"""Frames that wait for the sockets of a simulated worker, where connections have little room.

The product's outbox orders the frames. The socket takes some of them at random times, and the
worker hears of data that was taken as late as the product tells (`FrameWriter.tell`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.channels.connection_room import RoomLimits
from headrace.channels.outbox import Outbox
from headrace.channels.wire import BufferFrame, Frame

from ..scheduler import MICROSECOND_NS
from .environment import Environment


@dataclass(slots=True)
class _Waiting:
    """One connection: what waits, and the size of buffers sent and not told of."""

    outbox: Outbox = field(default_factory=Outbox)
    untold_bytes: int = 0


class Outgoing:
    """The outboxes of a process.

    Args:
        send: puts a frame on its way.
        tell: a socket took buffers of so many bytes; whether it waits for more.
    """

    def __init__(
        self,
        env: Environment,
        limits: RoomLimits,
        send: Callable[[int, Frame], None],
        tell: Callable[[int, int, bool], None],
    ) -> None:
        self._env = env
        self._told_bytes_min = max(1, limits.floor_bytes // 2)
        self._send = send
        self._tell = tell
        self._connections: dict[int, _Waiting] = {}

    def put(self, connection: int, frame: Frame) -> None:
        """Let a frame wait for the socket."""
        waiting = self._connections.setdefault(connection, _Waiting())
        waiting.outbox.put(frame)
        if len(waiting.outbox) == 1:
            self._flush_later(connection, waiting)

    def drop(self, connection: int) -> None:
        """The connection has ended: frames that wait go nowhere."""
        self._connections.pop(connection, None)

    def _flush_later(self, connection: int, waiting: _Waiting) -> None:
        high_ns = self._env.faults.network_delay_ns
        delay_ns = self._env.scheduler.delay_ns(20 * MICROSECOND_NS, high_ns)
        self._env.scheduler.after(delay_ns, lambda: self._flush(connection, waiting))

    def _flush(self, connection: int, waiting: _Waiting) -> None:
        if self._connections.get(connection) is not waiting:
            return
        for _ in range(self._env.scheduler.rng.randint(1, len(waiting.outbox))):
            frame = waiting.outbox.take()
            assert frame is not None, "so many frames wait"
            if isinstance(frame, BufferFrame):
                waiting.untold_bytes += frame.buffer.size_bytes
            self._send(connection, frame)
        waiting.outbox.check()
        left = len(waiting.outbox) > 0
        if left:
            self._env.coverage.count("sockets that took a part of what waited")
            self._flush_later(connection, waiting)
        if waiting.untold_bytes >= self._told_bytes_min:
            told_bytes, waiting.untold_bytes = waiting.untold_bytes, 0
            self._tell(connection, told_bytes, not left)
