"""The log of a logged edge: a durable topic between two regions of a job, by positions.

Each subtask of the producing region writes a *lane*; a record's position is its number in the lane.
A lane consists of *pieces*, immutable files. The log's sequence of *entries* says which pieces
count: one entry for each checkpoint of the producing region, in the order of their commits.

- A **commit** entry adds the pieces of a complete checkpoint.
- A **restart** entry begins an attempt of the producing region: each lane goes on from the restored
  checkpoint's end. Pieces beyond that end no longer count.
- An **end** entry says that the producing region has finished. A later entry takes this back.

Entries are created exclusively, so two coordinators cannot both write entry N. An entry of an older
epoch never follows an entry of a newer epoch: the restart entry of a new attempt fences every older
coordinator.

`Cursor` is the reader's side: which pieces a reader takes next, from which position. Reading and
writing are in `edge_log_files.py`.

Source: the leader epochs of Kafka (KIP-101), by which followers truncate; the dense, exclusively
created log of Delta tables (behaviour).
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec
import xxhash

from headrace.channels.events import MIN_WATERMARK

#: Largest entry that is written or read.
ENTRY_BYTES_MAX = 64 * 1024**2

_ENTRY = re.compile(rb"headrace-log-entry 1 xxh3:([0-9a-f]{16}) (0|[1-9][0-9]{0,17})\n")
_HEADER_BYTES_MAX = 100


class CorruptEntry(Exception):
    """An entry whose bytes differ from the written bytes; the message says where."""


class Fenced(Exception):
    """A newer attempt of the producing region owns the log."""


class Diverged(Exception):
    """Pieces that do not follow the log's end: bytes or a checkpoint of another history."""


class WentBack(Exception):
    """The log was cut below what a reader has read.

    Attributes:
        lane: of the log.
        position: the reader's next.
        end: the lane's end since the producing region went back.
    """

    def __init__(self, lane: int, position: int, end: int) -> None:
        super().__init__(lane, position, end)
        self.lane = lane
        self.position = position
        self.end = end

    def __str__(self) -> str:
        return f"lane {self.lane} ends at {self.end}, and {self.position} records of it were read"


class Trimmed(Exception):
    """Entries that a reader needs were deleted."""


class EntryKind(Enum):
    """What an entry says."""

    COMMIT = "commit"
    RESTART = "restart"
    END = "end"


class Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Records `first` to `end` of a lane, in a file of their own; none: only event time.

    Attributes:
        epoch: of the attempt that wrote the piece.
        size_bytes: of the file; 0: there is no file, as there are no records.
        checksum: xxh3-64 of the file, in hex.
        watermark: no later record of the lane is expected up to this time.
    """

    lane: int
    epoch: int
    first: int
    end: int
    size_bytes: int = 0
    checksum: str = ""
    watermark: int = MIN_WATERMARK

    @property
    def is_empty(self) -> bool:
        """The piece has no records."""
        return self.first == self.end


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step of a log.

    Attributes:
        number: place in the sequence, from 0.
        epoch: of the coordinator that wrote the entry.
        checkpoint: of the producing region, up to which the log counts here; 0: none.
        ends: {lane: position behind its last record}.
        pieces: of a commit, each lane's in order.
    """

    number: int
    kind: EntryKind
    epoch: int
    checkpoint: int
    ends: dict[int, int]
    pieces: list[Piece] = []

    @property
    def begins_anew(self) -> bool:
        """Nothing before this entry counts."""
        return self.kind is EntryKind.RESTART and not any(self.ends.values())


def encode_entry(entry: Entry) -> bytes:
    """Return the file of an entry: a header line with checksum and length, then JSON."""
    body = msgspec.json.encode(entry)
    checksum = xxhash.xxh3_64_hexdigest(body).encode()
    return b"headrace-log-entry 1 xxh3:%s %d\n%s" % (checksum, len(body), body)


def decode_entry(data: bytes, path: str) -> Entry:
    """Read an entry's file, trusting nothing. Raises: CorruptEntry."""
    end = data.find(b"\n", 0, _HEADER_BYTES_MAX) + 1
    match, body = _ENTRY.fullmatch(data[:end]), data[end:]
    if match is None:
        raise CorruptEntry(f"{path}: not an entry of a log: {data[:40]!r}")
    if int(match[2]) != len(body):
        raise CorruptEntry(f"{path}: {len(body)} bytes instead of {int(match[2])}")
    if xxhash.xxh3_64_hexdigest(body).encode() != match[1]:
        raise CorruptEntry(f"{path}: its checksum differs")
    try:
        entry = msgspec.json.decode(body, type=Entry)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptEntry(f"{path}: {error}") from error
    reason = _fault(entry)
    if reason:
        raise CorruptEntry(f"{path}: {reason}")
    return entry


def _fault(entry: Entry) -> str:
    """Say what is inconsistent; empty: nothing."""
    if min(entry.number, entry.epoch, entry.checkpoint, *entry.ends.values(), 0) < 0:
        return "a negative number"
    for piece in entry.pieces:
        if not 0 <= piece.first <= piece.end <= entry.ends.get(piece.lane, -1):
            return f"records {piece.first} to {piece.end} of lane {piece.lane}"
        if min(piece.lane, piece.epoch, piece.size_bytes) < 0:
            return "a negative number"
        if piece.is_empty != (piece.size_bytes == 0):
            return f"{piece.end - piece.first} records in {piece.size_bytes} bytes"
    return ""


# --- the writer's side ----------------------------------------------------------------------------


def committed(
    last: Entry | None, epoch: int, checkpoint: int, pieces: Sequence[Piece]
) -> Entry | None:
    """Return the entry that adds pieces of a complete checkpoint; None: the log has them all.

    Args:
        last: the log's last entry; None: there is none.
        pieces: each lane's in order; pieces that the log has are passed over.

    Raises: Fenced; Diverged for a piece that does not begin at its lane's end.
    """
    _check_epoch(last, epoch)
    before = -1 if last is None else last.checkpoint
    ends = {} if last is None else dict(last.ends)
    fresh: list[Piece] = []
    for piece in pieces:
        end = ends.get(piece.lane, 0)
        if piece.end < end or (piece.end == end and checkpoint <= before):
            continue
        if piece.first != end:
            raise Diverged(
                f"records {piece.first} to {piece.end} of lane {piece.lane} behind {end}"
            )
        ends[piece.lane] = piece.end
        fresh.append(piece)
    if not fresh and checkpoint <= before:
        return None
    return Entry(_next(last), EntryKind.COMMIT, epoch, max(checkpoint, before), ends, fresh)


def restarted(
    last: Entry | None, epoch: int, checkpoint: int, ends: Mapping[int, int]
) -> Entry | None:
    """Return the entry that begins an attempt at `ends`; None: the log has it already.

    A commit that the attempt repeats before is no beginning: it does not say that pieces behind it,
    which somebody may have read early, no longer count.

    Raises: Fenced; Diverged when a lane would go on behind its end.
    """
    _check_epoch(last, epoch)
    have = {} if last is None else last.ends
    for lane, end in sorted(ends.items()):
        if end > have.get(lane, 0):
            raise Diverged(f"lane {lane} has {have.get(lane, 0)} records, not {end}")
    begun = last is not None and last.kind is EntryKind.RESTART and last.epoch == epoch
    if begun and have == dict(ends):
        return None
    return Entry(_next(last), EntryKind.RESTART, epoch, checkpoint, dict(ends))


def ended(last: Entry | None, epoch: int) -> Entry | None:
    """Return the entry that ends the log; None: it has ended already. Raises: Fenced."""
    _check_epoch(last, epoch)
    if last is not None and last.kind is EntryKind.END:
        return None
    checkpoint, ends = (0, {}) if last is None else (last.checkpoint, last.ends)
    return Entry(_next(last), EntryKind.END, epoch, checkpoint, ends)


def ends_at(entries: Iterable[Entry], checkpoint: int) -> dict[int, int] | None:
    """Return the lanes' ends as of a checkpoint of the producing region; None: the log has
    forgotten.

    Args:
        entries: from the newest to the oldest; read only as far as needed.
    """
    if checkpoint == 0:
        return {}
    for entry in entries:
        if entry.checkpoint <= checkpoint:
            return dict(entry.ends)
    return None


def _check_epoch(last: Entry | None, epoch: int) -> None:
    if last is not None and last.epoch > epoch:
        raise Fenced(f"epoch {last.epoch} owns the log, so epoch {epoch} adds nothing")


def _next(last: Entry | None) -> int:
    return 0 if last is None else last.number + 1


# --- the reader's side ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """How far one reader has come: its state.

    Attributes:
        entry: number of the oldest entry that it still needs.
        positions: {lane: its next record}, of all lanes that it knows.
        sources: {lane: number of the entry from which it was read last}. An older restart, which
            the reader may meet again, does not concern these records.
    """

    entry: int = 0
    positions: Mapping[int, int] = field(default_factory=dict)
    sources: Mapping[int, int] = field(default_factory=dict)

    @staticmethod
    def of_all(places: Sequence[Place]) -> Place:
        """Join the places of all readers of a log: a lane has one reader at a time, so the furthest
        position is its reader's.
        """
        furthest: dict[int, tuple[int, int]] = {}
        for place in places:
            for lane, position in place.positions.items():
                found = position, place.sources.get(lane, 0)
                furthest[lane] = max(found, furthest.get(lane, found))
        return Place(
            min((place.entry for place in places), default=0),
            {lane: position for lane, (position, _) in furthest.items()},
            {lane: source for lane, (_, source) in furthest.items()},
        )


class Cursor:
    """Which pieces a reader takes next.

    The reader feeds every entry that there is (`take`) before it reads a piece (`next`): a piece
    that a later restart has cut off is never read.

    Args:
        is_mine: says whether a lane is this reader's.
        place: where to go on.
        ends: {lane: records that entries before the place name, as far as is known}.
    """

    def __init__(
        self,
        is_mine: Callable[[int], bool],
        place: Place,
        ends: Mapping[int, int] | None = None,
    ) -> None:
        self._is_mine = is_mine
        self._next_entry = place.entry
        self._positions = dict(place.positions)
        self._sources = dict(place.sources)
        #: (number of its entry, piece), in the order of the log.
        self._pending: deque[tuple[int, Piece]] = deque()
        #: {lane: how many pieces of it are pending}.
        self._waiting: Counter[int] = Counter()
        #: Lanes of this reader in the newest commit.
        self._written: frozenset[int] = frozenset()
        self._ended = False
        #: Of the entry taken last.
        self._epoch = 0
        self._ends: Mapping[int, int] = ends or {}

    @property
    def next_entry(self) -> int:
        """Number of the entry to be taken next."""
        return self._next_entry

    @property
    def is_ended(self) -> bool:
        """Everything that the log has so far was read, and its producing region has finished."""
        return self._ended and not self._pending

    @property
    def open_lanes(self) -> frozenset[int]:
        """Lanes of this reader that are written at present, or have pieces to be read."""
        return self._written.union(self._waiting)

    @property
    def place(self) -> Place:
        """How far the reader has come.

        The entry that ends the log is needed as long as it is the last: a restored reader has to
        find the end again.
        """
        entry = self._pending[0][0] if self._pending else self._next_entry - self._ended
        return Place(entry, dict(self._positions), dict(self._sources))

    @property
    def ends(self) -> Mapping[int, int]:
        """{lane: its end} as of the entry taken last."""
        return self._ends

    @property
    def is_covered(self) -> bool:
        """Entries name all that was read: no failure of the producing region takes it back."""
        mine = (item for item in self._positions.items() if self._is_mine(item[0]))
        return all(position <= self._ends.get(lane, 0) for lane, position in mine)

    def ahead(self, lane: int) -> tuple[int, int] | None:
        """Epoch and first record of the piece that no entry names yet, if the lane goes on; None:
        entries come first.
        """
        if not self._epoch or self._ended or lane in self._waiting:
            return None
        return self._epoch, self._positions.get(lane, 0)

    @property
    def lanes(self) -> list[int]:
        """The lanes of this reader that it knows."""
        return sorted(lane for lane in self._positions if self._is_mine(lane))

    def take(self, entry: Entry) -> None:
        """Take the next entry. Raises: WentBack; the reader has to go back as well."""
        assert entry.number == self._next_entry, f"entry {entry.number}, not {self._next_entry}"
        self._next_entry += 1
        self._epoch, self._ends = entry.epoch, entry.ends
        self._ended = entry.kind is EntryKind.END
        match entry.kind:
            case EntryKind.COMMIT:
                self._commit(entry)
            case EntryKind.RESTART:
                self._restart(entry)
            case EntryKind.END:
                self._written = frozenset()

    def next(self) -> tuple[Piece, int] | None:
        """Return the piece to be read now and the first position in it; None: there is none."""
        if not self._pending:
            return None
        piece = self._pending[0][1]
        return piece, max(piece.first, self._positions.get(piece.lane, 0))

    def read(self, rows: int) -> None:
        """So many rows of the piece were read; the piece is left at its end."""
        number, piece = self._pending[0]
        position = max(piece.first, self._positions.get(piece.lane, 0)) + rows
        assert position <= piece.end, f"read to {position} of {piece}"
        self._positions[piece.lane] = position
        self._sources[piece.lane] = number
        if position == piece.end:
            self._pending.popleft()
            self._waiting[piece.lane] -= 1
            if not self._waiting[piece.lane]:
                del self._waiting[piece.lane]

    def read_ahead(self, lane: int, rows: int) -> None:
        """So many rows of a lane were read that no entry names; a later restart may cut them."""
        assert lane not in self._waiting, f"pieces of lane {lane} wait"
        self._positions[lane] = self._positions.get(lane, 0) + rows
        self._sources[lane] = self._next_entry - 1

    def _commit(self, entry: Entry) -> None:
        mine = [piece for piece in entry.pieces if self._is_mine(piece.lane)]
        self._written = frozenset(piece.lane for piece in mine)
        for piece in mine:
            position = self._positions.setdefault(piece.lane, 0)
            if piece.end > position or (piece.is_empty and piece.end == position):
                self._pending.append((entry.number, piece))
                self._waiting[piece.lane] += 1

    def _restart(self, entry: Entry) -> None:
        ends = entry.ends
        for lane, position in sorted(self._positions.items()):
            is_older = self._sources.get(lane, 0) < entry.number
            if self._is_mine(lane) and is_older and position > ends.get(lane, 0):
                raise WentBack(lane, position, ends.get(lane, 0))
        kept = [(n, piece) for n, piece in self._pending if piece.end <= ends.get(piece.lane, 0)]
        self._pending = deque(kept)
        self._waiting = Counter(piece.lane for _, piece in kept)

    def check(self) -> None:
        """Assert every invariant."""
        reached = dict(self._positions)
        for number, piece in self._pending:
            assert number < self._next_entry, f"a piece of entry {number}, not taken yet"
            at = max(reached.get(piece.lane, 0), piece.first)
            assert piece.first <= reached.get(piece.lane, 0) or piece.is_empty, f"a gap at {piece}"
            assert at <= piece.end, f"{piece} was read"
            reached[piece.lane] = piece.end
