"""Full batches for an operator that asks for a number of rows a call.

Rows that wait for a full batch stay in the gate: they are in-flight data like all others, so every
checkpoint holds them, and a rescale gives them out by their edge's partitioner. No watermark
overtakes a waiting row: the channel reaches a watermark when the rows before it are committed.

A batch has rows of one port. It is due when it is full, when its first row has waited for
`linger_ns`, when an aligned barrier waits behind its rows, and when the port's input has ended. A
channel without credit gets another window as long as fewer rows wait than a batch has, or a batch
larger than the windows would never fill.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.gate import Gate, GateInput, InputChannel

from ..contract.execution import BatchRule


class Batches:
    """The batches of one subtask, made of the records in its gate."""

    def __init__(self, gate: Gate, rule: BatchRule) -> None:
        self._gate = gate
        self.rule = rule
        #: {channel: (position behind the records, when they came) of what waits}, in order.
        self._arrivals: dict[ChannelId, deque[tuple[int, int]]] = {
            c: deque() for c in gate.channels
        }

    def arrived(self, channel: ChannelId, buffer: Buffer, now_ns: int) -> None:
        """Records came in."""
        self._arrivals[channel].append((buffer.end, now_ns))

    def next_batch(self, now_ns: int) -> tuple[GateInput, ...]:
        """Hand out a batch if one is due; its rows count as in flight until they are committed."""
        for port, ready in self._ready().items():
            if self._is_due(port, ready, now_ns):
                return self._gate.next_batch(port, self.rule.rows, now_ns)
        return ()

    def next_deadline_ns(self, now_ns: int) -> int | None:
        """When the first waiting row has waited for long enough.

        None: no row waits, or rows wait for the running work or for room, not for time.
        """
        lingers = [self._lingers_until_ns(ready) for ready in self._ready().values()]
        return min((due_ns for due_ns in lingers if due_ns > now_ns), default=None)

    def extensions(self) -> list[tuple[ChannelId, int]]:
        """Return the (channel, credit limit) of channels that need credit to fill a batch."""
        limits: list[tuple[ChannelId, int | None]] = []
        for channels in self._by_port(self._gate.channels.values()).values():
            fills = [c for c in channels if self._may_fill(c)]
            if sum(c.arrived - c.taken for c in fills) < self.rule.rows:
                limits += [(c.channel, c.extend()) for c in fills]
        return [(channel, limit) for channel, limit in limits if limit is not None]

    def _may_fill(self, channel: InputChannel) -> bool:
        held = channel.port in self._gate.held_ports
        return not channel.blocked and not channel.barriers and not held

    def _is_due(self, port: int, ready: Sequence[InputChannel], now_ns: int) -> bool:
        if sum(c.rows_at_hand for c in ready) >= self.rule.rows or any(c.barriers for c in ready):
            return True
        if any(c.spilled_bytes for c in ready):
            return False  # more is being read
        if self._lingers_until_ns(ready) <= now_ns:
            return True
        return all(c.end_arrived for c in self._gate.channels.values() if c.port == port)

    def _lingers_until_ns(self, ready: Sequence[InputChannel]) -> int:
        for channel in ready:
            arrivals = self._arrivals[channel.channel]
            while arrivals[0][0] <= channel.taken:
                arrivals.popleft()
        return min(self._arrivals[c.channel][0][1] for c in ready) + self.rule.linger_ns

    def _ready(self) -> dict[int, list[InputChannel]]:
        return self._by_port(self._gate.ready())

    def _by_port(self, channels: Iterable[InputChannel]) -> dict[int, list[InputChannel]]:
        """By port, the port of the first channel first."""
        found: dict[int, list[InputChannel]] = {}
        for channel in channels:
            found.setdefault(channel.port, []).append(channel)
        return found
