"""Room in a connection: how much data may lie between the subpartitions and the socket.

A barrier overtakes records in a subpartition, not records behind it. So a connection gets as much
data as its socket takes in a target time, and no more. While data waits the room follows rate x
target time. When the socket has taken everything although a channel was refused, the room may hold
the flow back, and doubles.

The channels of a connection share its room. Refused channels have their turns in the order in which
they were refused.

Source: FLIP-183 (aim and target time), here for a connection, in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from .buffer import ChannelId


@dataclass(frozen=True, slots=True)
class RoomLimits:
    """How much room a connection has: what it takes in `target_ns`, within bounds in bytes."""

    target_ns: int
    floor_bytes: int
    ceiling_bytes: int


class ConnectionRoom:
    """Room of one direction of a connection.

    Attributes:
        size_bytes: the room now, soft by one buffer.
        waiting_bytes: handed to the connection, and not known to have gone to the socket.
    """

    def __init__(self, limits: RoomLimits) -> None:
        self._limits = limits
        self.size_bytes = limits.floor_bytes
        self.waiting_bytes = 0
        #: Channels that have data and credit, and were refused; the longest wait first.
        self._refused: dict[ChannelId, None] = {}
        #: The channel that goes before the refused ones.
        self._turn: ChannelId | None = None
        #: Since when data has been waiting without a break, and how much of it was sent; None: the
        #: socket took everything.
        self._since_ns: int | None = None
        self._counted_bytes = 0

    @property
    def is_left(self) -> bool:
        """More data may be handed to the connection."""
        return self.waiting_bytes < self.size_bytes

    def admit(self, channel: ChannelId) -> int:
        """Return the size in bytes of the largest buffer that a channel may send now.

        0: the channel waits for its turn (`next_turn`). Half of the room at most, so that the
        socket has something to do when the other half is asked for.
        """
        if self.is_left and (channel == self._turn or not self._refused):
            return max(1, self.size_bytes // 2)
        if channel == self._turn:
            self._turn = None
        self._refused[channel] = None
        return 0

    def handed(self, size_bytes: int) -> None:
        """A buffer was handed to the connection."""
        self.waiting_bytes += size_bytes

    def taken(self, size_bytes: int, now_ns: int, *, dry: bool) -> None:
        """The socket took data; `dry`: all of it, and waits for more."""
        assert size_bytes <= self.waiting_bytes, f"took {size_bytes} of {self.waiting_bytes} bytes"
        self.waiting_bytes -= size_bytes
        if dry:
            self._since_ns = None
            if self._refused:
                self._resize(2 * self.size_bytes)
        elif self._since_ns is None:
            self._since_ns, self._counted_bytes = now_ns, 0
        else:
            self._counted_bytes += size_bytes
            elapsed_ns = now_ns - self._since_ns
            # A shorter look would see the bursts of the kernel.
            if elapsed_ns >= self._limits.target_ns // 4:
                self._resize(self._counted_bytes * self._limits.target_ns // max(1, elapsed_ns))
                self._since_ns, self._counted_bytes = now_ns, 0

    def next_turn(self) -> ChannelId | None:
        """Give a refused channel its turn; None: no room is left, or no channel waits.

        To be called until None, each time followed by a step of the channel's producer.
        """
        self._turn = None
        if self._refused and self.is_left:
            self._turn = next(iter(self._refused))
            del self._refused[self._turn]
        return self._turn

    def check(self) -> None:
        """Assert every invariant; between steps."""
        assert self.waiting_bytes >= 0, f"{self.waiting_bytes} bytes wait"
        assert not (self._refused and self.is_left), f"{list(self._refused)} wait beside room"

    def _resize(self, size_bytes: int) -> None:
        limits = self._limits
        self.size_bytes = min(max(size_bytes, limits.floor_bytes), limits.ceiling_bytes)


#: Channels whose connections have room without limit.
NO_ROOMS: Final[Mapping[ChannelId, ConnectionRoom]] = MappingProxyType({})
