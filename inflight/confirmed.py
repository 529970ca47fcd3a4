"""Records of channels that complete checkpoints hold already, by position.

A buffer that a complete checkpoint persisted, and still lies in the channel at the next checkpoint,
is named again instead of written again. A given-up checkpoint counts until a newer checkpoint is
complete (`stored.py`). Records have positions, so no matter how buffers were merged or split in
between, and on which side of the channel.

Metadata grows with the number of handles, so there are few. Neighbouring ranges of a blob are one
handle. Small neighbours are written anew as one blob: the sizes of small handles more than halve
from one to the next, so a channel has few of them, and a record is written anew a few times at
most. A file that keeps little of its size alive is not named at all (`SharedSpace`).

Source: FLIP-76 names incremental in-flight state as future work; this is ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from msgspec.structs import replace

from headrace.channels.buffer import ChannelId
from headrace.channels.spilled import Records

from .handle import BufferHandle, ChannelStateHandle

KIB = 1024


@dataclass(frozen=True, slots=True)
class NamingLimits:
    """Which stored records are named, and which are written anew.

    Attributes:
        named_bytes_min: stored neighbours of at least this size are named; smaller ones may be
            written anew; 0: none is.
        sparse_bytes_min: smaller files are never sparse.
        live_share_min: a file is sparse when no more than this share of it is alive.
    """

    named_bytes_min: int = 64 * KIB
    sparse_bytes_min: int = 1024 * KIB
    live_share_min: float = 1 / 8


#: What is named unless somebody knows better.
NAMED = NamingLimits()


@dataclass(frozen=True, slots=True)
class _Run:
    """Records `[first, first + handle.rows)` of a channel."""

    first: int
    handle: BufferHandle

    @property
    def end(self) -> int:
        return self.first + self.handle.rows


@dataclass(frozen=True, slots=True)
class _Piece:
    """Neighbouring buffers. `handle`: where they are stored; None: they are to be written."""

    handle: BufferHandle | None
    buffers: tuple[Records, ...]
    size_bytes: int

    @staticmethod
    def of(buffer: Records, handle: BufferHandle | None) -> _Piece:
        return _Piece(handle, (buffer,), buffer.size_bytes)

    def is_followed_by(self, behind: _Piece) -> bool:
        """Whether one handle can name both, or both are to be written."""
        here, there = self.handle, behind.handle
        if here is None or there is None:
            return here is there
        same = (here.path, here.offset) == (there.path, there.offset)
        return same and here.start + here.rows == there.start

    def joined(self, behind: _Piece) -> _Piece:
        """Both as one; see `is_followed_by`."""
        handle = self.handle
        if handle is not None and behind.handle is not None:
            handle = replace(handle, rows=handle.rows + behind.handle.rows)
        return _Piece(handle, self.buffers + behind.buffers, self.size_bytes + behind.size_bytes)

    def is_small_before(self, behind: _Piece, named_bytes_min: int) -> bool:
        """Whether both are better written as one: small, and not much larger than what follows."""
        stays = any(p.handle and p.size_bytes >= named_bytes_min for p in (self, behind))
        return not stays and self.size_bytes <= 2 * behind.size_bytes


class Confirmed:
    """An immutable index of the in-flight data that one worker stored or named.

    Args:
        sparse: files that are not named any more.
        named_bytes_min: see `NamingLimits`.
    """

    def __init__(
        self,
        handles: Iterable[ChannelStateHandle] = (),
        *,
        sparse: Collection[str] = (),
        named_bytes_min: int = NAMED.named_bytes_min,
    ) -> None:
        self._named_bytes_min = named_bytes_min
        #: {channel: runs by position}; where they overlap, any of them will do
        self._runs: dict[ChannelId, list[_Run]] = {}
        for handle in handles:
            if handle.side == "replay":
                continue  # of a channel of an earlier attempt, whose positions mean nothing now
            runs = self._runs.setdefault(
                ChannelId(handle.edge, handle.producer, handle.consumer), []
            )
            position = handle.first
            for buffer in handle.buffers:
                if buffer.path not in sparse:
                    runs.append(_Run(position, buffer))
                position += buffer.rows
        for runs in self._runs.values():
            runs.sort(key=lambda run: run.first)

    def split(
        self, channel: ChannelId, buffers: Sequence[Records]
    ) -> Iterator[BufferHandle | list[Records]]:
        """Cut buffers into stored records (a handle) and runs of buffers to write, in order."""
        named: list[_Piece] = []
        for piece in self._pieces(channel, buffers):
            _append(named, piece)
        tiers: list[_Piece] = []
        for piece in named:
            last = piece
            while tiers and tiers[-1].is_small_before(last, self._named_bytes_min):
                last = _written_anew(tiers.pop(), last)
            _append(tiers, last)
        for piece in tiers:
            yield list(piece.buffers) if piece.handle is None else piece.handle

    def _pieces(self, channel: ChannelId, buffers: Sequence[Records]) -> Iterator[_Piece]:
        runs = self._runs.get(channel, [])
        passed = 0
        for buffer in buffers:
            while passed < len(runs) and runs[passed].end <= buffer.first:
                passed += 1
            yield from _cover(buffer, islice(runs, passed, None))


def _append(pieces: list[_Piece], piece: _Piece) -> None:
    if pieces and pieces[-1].is_followed_by(piece):
        piece = pieces.pop().joined(piece)
    pieces.append(piece)


def _written_anew(piece: _Piece, behind: _Piece) -> _Piece:
    size_bytes = piece.size_bytes + behind.size_bytes
    return _Piece(None, piece.buffers + behind.buffers, size_bytes)


def _cover(buffer: Records, runs: Iterable[_Run]) -> Iterator[_Piece]:
    """Cut one buffer at the bounds of the stored runs."""
    rest: Records | None = buffer
    for run in runs:
        if rest is None or run.first >= rest.end:
            break
        if run.end <= rest.first:
            continue
        if run.first > rest.first:
            ahead, rest = rest.split(run.first - rest.first)
            yield _Piece.of(ahead, None)
        covered, rest = _cut(rest, min(run.end, rest.end) - rest.first)
        start = run.handle.start + covered.first - run.first
        yield _Piece.of(covered, replace(run.handle, start=start, rows=covered.rows))
    if rest is not None:
        yield _Piece.of(rest, None)


def _cut(buffer: Records, rows: int) -> tuple[Records, Records | None]:
    return buffer.split(rows) if rows < buffer.rows else (buffer, None)


class SharedSpace:
    """Files that hold a worker's in-flight data, and how much of each is alive; owner thread only.

    Storage keeps a whole file for the sake of one record. So records of a file that has become
    sparse are written anew: that costs at most the sparse share of what the file has cost.
    """

    def __init__(self, limits: NamingLimits) -> None:
        self._limits = limits
        #: {path: size, as far as in-flight data shows it}: noted when the file is first named.
        self._sizes: dict[str, int] = {}

    def index(self, handles: Sequence[ChannelStateHandle]) -> Confirmed:
        """Return the index of `handles`, without those of sparse files."""
        sizes: dict[str, int] = {}
        live: dict[str, int] = {}
        for buffer in (b for h in handles if h.side != "replay" for b in h.buffers):
            end = buffer.offset + buffer.length
            sizes[buffer.path] = max(end, sizes.get(buffer.path, self._sizes.get(buffer.path, 0)))
            alive = buffer.length * buffer.rows // buffer.blob_rows
            live[buffer.path] = live.get(buffer.path, 0) + alive
        self._sizes = sizes
        sparse = {
            path
            for path, size_bytes in sizes.items()
            if size_bytes >= self._limits.sparse_bytes_min
            and live[path] <= self._limits.live_share_min * size_bytes
        }
        return Confirmed(handles, sparse=sparse, named_bytes_min=self._limits.named_bytes_min)
