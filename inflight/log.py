"""A log of every in-flight buffer, written beside the stream; a checkpoint names ranges of the log.

Buffers are logged as they are queued for a channel, or as they come in from another worker. Inside
a worker the producer's log serves both ends, since a position means the same record at either.
Buffers are gathered to pieces, one piece is written at a time, and a checkpoint names the durable
pieces and writes the rest: a log too fast for storage loses an advantage and no data. The owner
thread never waits, and memory is bounded: buffers beyond the backlog are not logged.

A piece is a file in the folder of the *next* checkpoint and shares the checkpoint's fate, as if
written early by the checkpoint. So the rule of the index is enough here, too: a checkpoint may name
its own files and files of a complete checkpoint. Pieces of a given-up checkpoint are never named
again. Before the first checkpoint of an attempt the next number is not known, and no buffer is
logged. A checkpoint asks (`index`) when no piece is under way, so after its acknowledgement no
write of this attempt with its number or a lower one can come late. A worker that is cut off goes on
logging under the number that the next attempt begins with: files of that checkpoint are deleted
twice (`recovery/registry.py`).

The log holds about as much as is in flight. Waiting buffers whose records were worked on leave
before a piece is begun, so a stream that flows is hardly logged. Written pieces of no checkpoint
yet, all of whose records were worked on, are deleted (`trim`). A checkpoint has few pieces
(`LogLimits.pieces_max`): under backpressure the first ones stay in flight, and without it more of
them would be gone by the next barrier.

Source: FLIP-76, continuous persistence. Deviations: one log a worker, not one a channel; positions,
not buffers, are named.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace.channels.buffer import Buffer, ChannelId

from .confirmed import NAMED, Confirmed, NamingLimits, SharedSpace
from .handle import ChannelStateHandle
from .stored import Stored
from .writer import Floors, Handles, Piece

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Sizes of the log, in bytes as charged to credit.

    Attributes:
        piece_bytes: a piece is begun when so much is waiting.
        piece_bytes_max: soft limit of a piece, by a buffer: a checkpoint may have to wait for a
            piece.
        backlog_bytes_max: buffers that would make more wait than this are not logged.
        pieces_max: files of the log that are written for one checkpoint.
    """

    piece_bytes: int = 4 * MIB
    piece_bytes_max: int = 8 * MIB
    backlog_bytes_max: int = 32 * MIB
    pieces_max: int = 3


#: What a log is like unless somebody knows better.
USUAL = LogLimits()


class Continuous(Stored[Handles]):
    """An `InflightWriter` with the log of one attempt at one worker."""

    def __init__(self, limits: LogLimits, naming: NamingLimits = NAMED) -> None:
        super().__init__()
        self._limits = limits
        self._space = SharedSpace(naming)
        #: The checkpoint that pieces belong to now: above all that have asked. None: none has.
        self._following: int | None = None
        self._waiting: deque[tuple[ChannelId, Buffer]] = deque()
        self._waiting_bytes = 0
        self._under_way: Piece | None = None
        self._number = 0
        #: Pieces that were begun for the following checkpoint.
        self._begun = 0
        #: {checkpoint: {piece's number: its handles}}: durable, of checkpoints not confirmed.
        self._pieces: dict[int, dict[int, Sequence[ChannelStateHandle]]] = {}
        #: Pieces that belong to the newest complete checkpoint.
        self._kept: list[ChannelStateHandle] = []

    def log(self, channel: ChannelId, buffer: Buffer) -> None:
        """See `InflightWriter`."""
        size_bytes = self._waiting_bytes + buffer.size_bytes
        if self._following is None or self._begun == self._limits.pieces_max:
            return
        if size_bytes > self._limits.backlog_bytes_max:
            return
        self._waiting.append((channel, buffer))
        self._waiting_bytes = size_bytes

    def next_piece(self, floors: Floors) -> Piece | None:
        """See `InflightWriter`."""
        if self._under_way is not None or not self._fills_a_piece:
            return None
        self._drop_worked_on(floors() or {})
        if not self._fills_a_piece:
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
        self._begun += 1
        if self._begun == self._limits.pieces_max:
            self._drop_waiting()
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
        self._begun = 0
        # What waits would be late for this checkpoint, and most of it is worked on before the next.
        self._drop_waiting()
        found = [*(self.newest or ()), *self._kept, *self._handles(checkpoint)]
        return self._space.index(found)

    def confirmed(self, checkpoint: int) -> None:
        """See `Stored`; pieces of the checkpoint's folder are complete, too."""
        self._kept = self._handles(checkpoint)
        super().confirmed(checkpoint)
        self._pieces = {n: pieces for n, pieces in self._pieces.items() if n > checkpoint}

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

    @property
    def _fills_a_piece(self) -> bool:
        return self._waiting_bytes >= self._limits.piece_bytes

    def _drop_worked_on(self, floors: Mapping[ChannelId, int]) -> None:
        left = [(c, b) for c, b in self._waiting if b.end > floors.get(c, 0)]
        self._waiting = deque(left)
        self._waiting_bytes = sum(buffer.size_bytes for _, buffer in left)

    def _drop_waiting(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0

    def _handles(self, checkpoint: int) -> list[ChannelStateHandle]:
        pieces = self._pieces.get(checkpoint, {}).values()
        return [handle for handles in pieces for handle in handles]

    def _forget(self, number: int) -> Piece:
        assert self._following is not None, "a piece of no checkpoint"
        del self._pieces[self._following][number]
        return Piece(self._following, number, ())
