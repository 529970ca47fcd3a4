"""The continuous way of writing in-flight data: a log of every buffer, written beside the stream, of which a checkpoint names ranges.

Buffers are logged as they are queued for a channel, or as they come in from another worker; inside a worker the producer's log serves both
ends, since a position means the same record at either. They are gathered to pieces, one piece is written at a time, and what is durable
when a checkpoint asks is named. What is not, the checkpoint writes itself: so a log that storage cannot follow costs nothing but its
advantage. The owner thread never waits, and memory is bounded: what exceeds the backlog is not logged at all.

A piece is a file in the folder of the *next* checkpoint, and shares its fate, as if that checkpoint had written it early. So the rule of the
confirmed index is enough here, too: a checkpoint may name what itself has written, and what belongs to a complete one. Of a checkpoint
that was given up nothing is ever named again, pieces included. Before the first checkpoint of an attempt there is no next one
that anybody knows, and nothing is logged. A checkpoint asks (`index`) when no piece is under way, so when it is acknowledged no
write of this attempt with its number or a lower one can come late. A worker that is cut off goes on
logging under the number that the next attempt begins with: files of that checkpoint are deleted
twice (`recovery/registry.py`).

Pieces of no checkpoint yet, all of whose records were worked on, are deleted (`trim`): the log holds about what is in flight.

Source: FLIP-76, continuous persistence. Deviations: one log a worker, not one a channel; positions, not buffers, are named.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.channels.buffer import Buffer, ChannelId

from .confirmed import Confirmed
from .handle import ChannelStateHandle
from .writer import Piece, Stored

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Sizes of the log, in bytes as charged to credit.

    Attributes:
        piece_bytes: a piece is begun when so much is waiting.
        piece_bytes_max: soft limit of a piece, by one buffer: a checkpoint may have to wait for one.
        backlog_bytes_max: buffers that would make more wait than this are not logged.
    """

    piece_bytes: int = 4 * MIB
    piece_bytes_max: int = 8 * MIB
    backlog_bytes_max: int = 32 * MIB


#: What a log is like unless somebody knows better.
USUAL = LogLimits()


class Continuous:
    """An `InflightWriter` that keeps a log. One attempt at one worker; owner thread only."""

    def __init__(self, limits: LogLimits) -> None:
        self._limits = limits
        #: The checkpoint that pieces belong to now: above all that have asked. None: none has.
        self._following: int | None = None
        self._waiting: deque[tuple[ChannelId, Buffer]] = deque()
        self._waiting_bytes = 0
        self._under_way: Piece | None = None
        self._number = 0
        #: {checkpoint: {piece's number: what it holds}}: durable, of checkpoints that are not confirmed.
        self._pieces: dict[int, dict[int, Sequence[ChannelStateHandle]]] = {}
        self._stored = Stored()
        #: Pieces that belong to the newest complete checkpoint.
        self._kept: list[ChannelStateHandle] = []

    def log(self, channel: ChannelId, buffer: Buffer) -> None:
        """See `InflightWriter`."""
        size_bytes = self._waiting_bytes + buffer.size_bytes
        if self._following is None or size_bytes > self._limits.backlog_bytes_max:
            return
        self._waiting.append((channel, buffer))
        self._waiting_bytes = size_bytes

    def next_piece(self) -> Piece | None:
        """See `InflightWriter`."""
        if self._under_way is not None or self._waiting_bytes < self._limits.piece_bytes:
            return None
        assert self._following is not None, "logged for no checkpoint"
        runs: dict[ChannelId, list[list[Buffer]]] = {}
        size_bytes = 0
        while self._waiting and size_bytes < self._limits.piece_bytes_max:
            channel, buffer = self._waiting.popleft()
            size_bytes += buffer.size_bytes
            neighbours = runs.setdefault(channel, [[]])
            if neighbours[-1] and neighbours[-1][-1].end != buffer.first:
                neighbours.append([])  # behind what was not logged
            neighbours[-1].append(buffer)
        self._waiting_bytes -= size_bytes
        flat = ((channel, tuple(run)) for channel, found in runs.items() for run in found)
        self._under_way = Piece(self._following, self._number, tuple(flat))
        self._number += 1
        return self._under_way

    def piece_written(self, piece: Piece, handles: Sequence[ChannelStateHandle]) -> None:
        """See `InflightWriter`."""
        assert piece is self._under_way, f"piece {piece.number} is not under way"
        self._under_way = None
        if handles:
            self._pieces.setdefault(piece.checkpoint, {})[piece.number] = handles

    def index(self, checkpoint: int) -> Confirmed | None:
        """See `InflightWriter`."""
        if self._under_way is not None:
            return None
        self._following = max(self._following or 0, checkpoint + 1)
        # What waits would be late for this checkpoint, and most of it is worked on before the next.
        self._waiting.clear()
        self._waiting_bytes = 0
        return Confirmed([*self._stored.usable, *self._kept, *self._handles(checkpoint)])

    def stored(self, checkpoint: int, handles: Sequence[ChannelStateHandle]) -> None:
        """See `InflightWriter`."""
        self._stored.stored(checkpoint, handles)

    def confirmed(self, checkpoint: int) -> None:
        """See `InflightWriter`."""
        self._kept = self._handles(checkpoint)
        self._stored.confirmed(checkpoint)
        self._pieces = {n: pieces for n, pieces in self._pieces.items() if n > checkpoint}

    def given_up(self, checkpoint: int) -> None:
        """See `InflightWriter`."""
        self._stored.given_up(checkpoint)

    def trim(self, floors: Mapping[ChannelId, int]) -> list[Piece]:
        """See `InflightWriter`."""
        pieces = self._pieces.get(self._following or 0, {})
        over = [
            number
            for number, handles in pieces.items()
            if all(h.end <= floors[ChannelId(h.edge, h.producer, h.consumer)] for h in handles)
        ]
        return [self._forget(number) for number in over]

    def abandon(self) -> list[Piece]:
        """See `InflightWriter`."""
        return [self._forget(number) for number in list(self._pieces.get(self._following or 0, ()))]

    def _handles(self, checkpoint: int) -> list[ChannelStateHandle]:
        pieces = self._pieces.get(checkpoint, {}).values()
        return [handle for handles in pieces for handle in handles]

    def _forget(self, number: int) -> Piece:
        assert self._following is not None, "a piece of no checkpoint"
        del self._pieces[self._following][number]
        return Piece(self._following, number, ())
