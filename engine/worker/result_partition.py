"""A result partition: all outgoing channels of one subtask, edge by edge.

The output of a piece of work is appended whole, so the queues' bound is soft by that much; new work
begins only while every queue has room. Events go to every channel: barriers, watermarks and the end
of input concern all consumers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.connection_room import NO_ROOMS, ConnectionRoom
from headrace.channels.events import ChannelEvent
from headrace.channels.subpartition import QueuedEvent, Subpartition

from ..operators.work import Outputs


class ResultPartition:
    """The subpartitions of one subtask.

    Attributes:
        subpartitions: {channel: its queue}.
    """

    def __init__(
        self,
        edges: Sequence[Sequence[Subpartition]],
        room_bytes: int,
        rooms: Mapping[ChannelId, ConnectionRoom] = NO_ROOMS,
    ) -> None:
        """Join the edges.

        Args:
            edges: by output edge, in the partitioner's order of targets.
            room_bytes: room of a subtask without any edge.
            rooms: of the connections that channels to other workers share.
        """
        self._edges = edges
        self._room_bytes = room_bytes
        self.subpartitions: dict[ChannelId, Subpartition] = {
            s.channel: s for edge in edges for s in edge
        }
        self._rooms = dict(rooms)

    def append(
        self, outputs: Outputs, now_ns: int = 0
    ) -> tuple[int, list[tuple[ChannelId, Buffer]]]:
        """Queue the output of work; return bytes of the largest edge, and all buffers."""
        assert not outputs or len(outputs) == len(self._edges), "outputs for other edges"
        most_bytes = 0
        queued: list[tuple[ChannelId, Buffer]] = []
        for edge, batches in zip(self._edges, outputs, strict=False):
            for target, batch, size_bytes in batches:
                subpartition = edge[target]
                queued.append(
                    (subpartition.channel, subpartition.append(batch, size_bytes, now_ns))
                )
            most_bytes = max(most_bytes, sum(size_bytes for _, _, size_bytes in batches))
        return most_bytes, queued

    def append_event(self, event: ChannelEvent) -> None:
        """Queue an event behind everything in every channel."""
        for subpartition in self.subpartitions.values():
            subpartition.append_event(event)

    @property
    def has_room(self) -> bool:
        """New work may begin."""
        for subpartition in self.subpartitions.values():  # noqa: SIM110  # `all` takes twice as long
            if not subpartition.has_room:
                return False
        return True

    @property
    def room_bytes(self) -> int:
        """Bytes that one piece of work may put in: the room of the tightest edge."""
        edges = [sum([s.room_bytes for s in edge]) for edge in self._edges if edge]
        return min(edges, default=self._room_bytes)

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait in all queues, as charged to credit."""
        return sum([s.queued_bytes for s in self.subpartitions.values()])

    def edges(self) -> dict[int, tuple[int, int, int]]:
        """Return {edge: (bytes that wait, bytes that may wait, rows that wait)}."""
        return {
            edge[0].channel.edge: (
                sum([s.queued_bytes for s in edge]),
                sum([s.room_bytes for s in edge]),
                sum([s.tail - s.sent for s in edge]),
            )
            for edge in self._edges
            if edge
        }

    def drain(
        self, buffer_bytes: int, now_ns: int
    ) -> Iterator[tuple[ChannelId, Buffer | QueuedEvent]]:
        """Take all that may be sent now, channel by channel.

        Data waits for credit and for room in the connection, events for neither.
        """
        for channel, subpartition in self.subpartitions.items():
            if subpartition.is_empty:
                continue
            room, piece_bytes = self._rooms.get(channel), buffer_bytes
            while True:
                if room is not None and subpartition.has_data_due:
                    piece_bytes = min(buffer_bytes, room.admit(channel))
                    if not piece_bytes:
                        break
                item = subpartition.take(piece_bytes, now_ns)
                if item is None:
                    break
                if room is not None and isinstance(item, Buffer):
                    room.handed(item.size_bytes)
                yield channel, item
