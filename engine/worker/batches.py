"""Full batches for an operator that asks for a number of rows a call.

Rows that wait for a full batch stay in the gate: they are in-flight data like all others, so every
checkpoint holds them, and a rescale gives them out by their edge's partitioner. No watermark
overtakes a waiting row: the channel reaches a watermark when the rows before it are committed.

A batch is due when it is full, when its first row has waited for `linger_ns`, when an aligned
barrier waits behind its rows, and when all input has ended. A channel without credit gets another
window as long as fewer rows wait than a batch has, or a batch larger than the windows would never
fill.
"""

from __future__ import annotations

from collections import deque

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.gate import Gate, GateInput

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
        if not self._is_due(now_ns):
            return ()
        given = self._gate.next_batch(self.rule.rows)
        for each in given:
            arrivals = self._arrivals[each.channel]
            while arrivals and arrivals[0][0] <= each.buffer.end:
                arrivals.popleft()
        return given

    def next_deadline_ns(self, now_ns: int) -> int | None:
        """When the first waiting row has waited for long enough.

        None: no row waits, or rows wait for the running work or for room, not for time.
        """
        due_ns = self._lingers_until_ns()
        return due_ns if due_ns is not None and due_ns > now_ns else None

    def extensions(self) -> list[tuple[ChannelId, int]]:
        """Return the (channel, credit limit) of channels that need credit to fill a batch."""
        channels = [c for c in self._gate.channels.values() if self._may_fill(c.channel)]
        if sum(c.arrived - c.taken for c in channels) >= self.rule.rows:
            return []
        limits = [(c.channel, c.extend()) for c in channels]
        return [(channel, limit) for channel, limit in limits if limit is not None]

    def _may_fill(self, channel: ChannelId) -> bool:
        end = self._gate.channels[channel]
        return not end.blocked and not end.barriers and end.port not in self._gate.held_ports

    def _is_due(self, now_ns: int) -> bool:
        ready = self._gate.ready()
        if not ready:
            return False
        if sum(c.arrived - c.taken for c in ready) >= self.rule.rows:
            return True
        if any(c.barriers for c in ready):
            return True
        if all(c.end_arrived for c in self._gate.channels.values()):
            return True
        due_ns = self._lingers_until_ns()
        assert due_ns is not None, "a row waits that never came"
        return due_ns <= now_ns

    def _lingers_until_ns(self) -> int | None:
        came = [self._arrivals[c.channel][0][1] for c in self._gate.ready()]
        return min(came) + self.rule.linger_ns if came else None
