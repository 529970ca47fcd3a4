"""The simulated network: connections that are FIFO each way, and their faults.

Messages of a direction arrive in order, each after a delay of its own; across connections any
message may overtake. A connection can be severed (both ends learn of it, messages under way are
lost), be half open (one direction falls silent, its end learns much later), be held up by a
partition that heals (messages arrive late, in order), or be left by a dead host (no end is told).

As with TCP, a connection never loses, repeats or reorders within itself: other tests cover the
wire's own checks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..scheduler import MICROSECOND_NS, MILLISECOND_NS
from .faults import Faults

#: How long until the operating system gives up on a silent peer.
_SILENCE_NS = (100 * MILLISECOND_NS, 1500 * MILLISECOND_NS)

_FOREVER_NS = 1 << 62


class Endpoint(Protocol):
    """A process, for the network."""

    @property
    def alive(self) -> bool:
        """Messages to a dead process are dropped."""
        ...

    def connected(self, connection: int, greeting: Any) -> None:
        """A connection is open; `greeting` identifies the other side."""
        ...

    def received(self, connection: int, message: Any) -> None:
        """A message arrived."""
        ...

    def disconnected(self, connection: int, reason: str) -> None:
        """The connection ended, by the other side or by itself."""
        ...


class _Close:
    """Travels behind the last message of an orderly end."""


@dataclass(slots=True)
class _Direction:
    """One direction of a connection: towards `receiver`."""

    receiver: Endpoint
    queue: deque[Any] = field(default_factory=deque)
    last_ns: int = 0
    #: Until then nothing is delivered.
    stalled_until_ns: int = 0
    #: Nothing is delivered any more.
    ended: bool = False


class Network:
    """All listeners and connections of a run."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._scheduler = faults.scheduler
        self._listeners: dict[tuple[str, int], Endpoint] = {}
        #: {connection: (towards the initiator, towards the listener)}
        self.connections: dict[int, tuple[_Direction, _Direction]] = {}
        self._numbers = 0

    def listen(self, address: tuple[str, int], endpoint: Endpoint) -> None:
        """Be reached at `address`."""
        self._listeners[address] = endpoint

    def connect(self, address: tuple[str, int], initiator: Endpoint, mine: Any, theirs: Any) -> int:
        """Open a connection; both sides hear `connected`, or the initiator `disconnected`.

        Messages may be sent at once.
        """
        self._numbers += 1
        number = self._numbers
        listener = self._listeners.get(address)
        if listener is None or not listener.alive:
            self._scheduler.after(self._delay_ns(), lambda: _refuse(initiator, number))
            return number
        self.connections[number] = (_Direction(initiator), _Direction(listener))
        self._enqueue(number, 1, ("connected", mine))
        self._enqueue(number, 0, ("connected", theirs))
        return number

    def send(self, number: int, sender: Endpoint, message: Any) -> None:
        """Send to the other side; into an ended connection, nowhere."""
        if number in self.connections:
            self._enqueue(number, self._towards_other(number, sender), message)

    def close(self, number: int, closer: Endpoint) -> None:
        """End a connection in order: earlier messages still arrive.

        The closer hears no more messages.
        """
        if number not in self.connections:
            return
        side = self._towards_other(number, closer)
        self.connections[number][1 - side].ended = True
        self._enqueue(number, side, _Close())

    def vanish(self, endpoint: Endpoint, *, host: bool) -> None:
        """Remove a dead process.

        Its host tells the peers, unless the host died too; then the peers learn much later.
        """
        for number, directions in list(self.connections.items()):
            for side in (0, 1):
                if directions[1 - side].receiver is endpoint and not directions[side].ended:
                    self._abandoned(number, side, host=host)

    def sever(self, number: int) -> None:
        """Tell both ends, each in its time, that the connection is gone; messages under way are
        lost.
        """
        for side in (0, 1):
            self._end_later(number, side, "connection reset", self._delay_ns())

    def half_open(self, number: int, side: int) -> None:
        """Silence one direction; both ends learn of it when their operating system gives up."""
        self.connections[number][side].stalled_until_ns = _FOREVER_NS
        for each in (0, 1):
            delay_ns = self._scheduler.rng.randint(*_SILENCE_NS)
            self._end_later(number, each, "timed out", delay_ns)

    def partition(self, number: int, until_ns: int) -> None:
        """Hold all messages until the partition heals."""
        for direction in self.connections[number]:
            direction.stalled_until_ns = max(direction.stalled_until_ns, until_ns)

    @property
    def open_connections(self) -> list[int]:
        """Return the numbers of working connections, in order."""
        return [
            number
            for number, (a, b) in self.connections.items()
            if not a.ended and not b.ended and a.receiver.alive and b.receiver.alive
        ]

    # --- inside -----------------------------------------------------------------------------------

    def _towards_other(self, number: int, sender: Endpoint) -> int:
        return 1 if self.connections[number][0].receiver is sender else 0

    def _delay_ns(self) -> int:
        return self._scheduler.delay_ns(20 * MICROSECOND_NS, self._faults.network_delay_ns)

    def _enqueue(self, number: int, side: int, message: Any) -> None:
        direction = self.connections[number][side]
        if direction.ended:
            return
        direction.queue.append(message)
        due_ns = max(direction.last_ns + 1, self._scheduler.now_ns + self._delay_ns())
        if direction.stalled_until_ns >= _FOREVER_NS:
            return
        direction.last_ns = max(due_ns, direction.stalled_until_ns)
        self._scheduler.at(direction.last_ns, lambda: self._deliver(number, direction))

    def _deliver(self, number: int, direction: _Direction) -> None:
        if direction.ended or not direction.queue:
            return
        if direction.stalled_until_ns > self._scheduler.now_ns:
            if direction.stalled_until_ns < _FOREVER_NS:
                direction.last_ns = max(direction.last_ns, direction.stalled_until_ns) + 1
                self._scheduler.at(direction.last_ns, lambda: self._deliver(number, direction))
            return
        message = direction.queue.popleft()
        if isinstance(message, _Close):
            self._end(number, direction, "closed by the other side")
        elif not direction.receiver.alive:
            direction.ended = True
        elif isinstance(message, tuple) and message[0] == "connected":
            direction.receiver.connected(number, message[1])
        else:
            direction.receiver.received(number, message)

    def _abandoned(self, number: int, side: int, *, host: bool) -> None:
        direction = self.connections[number][side]
        if host:
            delay_ns = self._scheduler.rng.randint(*_SILENCE_NS)
            self._end_later(number, side, "timed out", delay_ns)
        elif self._scheduler.rng.random() < 0.5:
            self._end_later(number, side, "connection reset", self._delay_ns())
        else:
            self._enqueue(number, side, _Close())
        if host:
            direction.queue.clear()

    def _end_later(self, number: int, side: int, reason: str, delay_ns: int) -> None:
        direction = self.connections[number][side]
        self._scheduler.after(delay_ns, lambda: self._end(number, direction, reason))

    def _end(self, number: int, direction: _Direction, reason: str) -> None:
        if direction.ended:
            return
        direction.ended = True
        direction.queue.clear()
        if direction.receiver.alive:
            direction.receiver.disconnected(number, reason)


def _refuse(initiator: Endpoint, number: int) -> None:
    if initiator.alive:
        initiator.disconnected(number, "refused")
