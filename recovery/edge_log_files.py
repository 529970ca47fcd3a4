"""The files of a logged edge's log in the checkpoint directory.

    JOB/logs/LOG/entries/N            entry N (`edge_log.py`), created exclusively
    JOB/logs/LOG/pieces/pL-eE-F       records of lane L from position F on, written in epoch E

A piece is one header line, then an uncompressed Arrow IPC stream at a multiple of 8 bytes:

    headrace-log-piece 1 xxh3:CHECKSUM LENGTH FIRST ROWS WATERMARK\\n

The checksum covers everything behind it, header included. Format, never change. Nothing is
unpickled: `table_from_ipc` reads tables without code.

Files are deleted in two cases: below the low-watermark of all readers (`trim`), and pieces that no
entry names, of attempts before the present one (`sweep`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import xxhash

from headrace.inflight.segment import InvalidTable, table_from_ipc, table_to_ipc

from .edge_log import ENTRY_BYTES_MAX, CorruptEntry, Entry, Piece, decode_entry, encode_entry
from .layout import job_folder
from .store import AlreadyExists, NotFound, Store, StoreUncertain, holds

_MAGIC = b"headrace-log-piece 1 xxh3:"
_PIECE = re.compile(
    rb"headrace-log-piece 1 xxh3:([0-9a-f]{16}) ([0-9]{1,18}) ([0-9]{1,18}) ([0-9]{1,18})"
    rb" (-?[0-9]{1,19})\n"
)
_HEADER_BYTES_MAX = 160
_CHECKSUM_BYTES = 16
#: Largest piece that is read without an entry that states its size.
EARLY_BYTES_MAX = 1024**3
#: Arrow streams begin at a multiple of this, for which LENGTH has leading zeros.
_ALIGNMENT = 8
_NAME = re.compile(r"p(0|[1-9][0-9]{0,17})-e(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")


class CorruptPiece(Exception):
    """A piece whose bytes differ from the written bytes; the message says where."""


@dataclass(frozen=True, slots=True)
class EdgeLogFiles:
    """The files of one log. Every method may raise StoreError.

    Attributes:
        job: name of the whole job, not of a region.
        log: name of the logged edge.
    """

    store: Store
    job: str
    log: str

    @property
    def folder(self) -> str:
        """Folder of the log, with the slash."""
        return f"{job_folder(self.job)}/logs/{job_folder(self.log)}/"

    # --- entries ----------------------------------------------------------------------------------

    def entry(self, number: int) -> Entry | None:
        """Read an entry; None: there is none. Raises: CorruptEntry."""
        path = self._entry_path(number)
        try:
            data = self.store.get(path, bytes_max=ENTRY_BYTES_MAX)
        except NotFound:
            return None
        entry = decode_entry(data, path)
        if entry.number != number:
            raise CorruptEntry(f"{path}: entry {entry.number}")
        return entry

    def numbers(self) -> list[int]:
        """List the entries, ascending."""
        prefix = f"{self.folder}entries/"
        names = [path.removeprefix(prefix) for path in self.store.list(prefix)]
        return sorted(int(name) for name in names if _NUMBER.fullmatch(name))

    def last(self, after: Entry | None = None) -> Entry | None:
        """Return the last entry; `after`: an entry that was the last."""
        if after is not None and self.entry(after.number) is None:
            after = None  # trimmed meanwhile, so entries behind it may be, too
        if after is None:
            numbers = self.numbers()
            after = self.entry(numbers[-1]) if numbers else None
        while after is not None and (following := self.entry(after.number + 1)) is not None:
            after = following
        return after

    def newest_first(self) -> Iterator[Entry]:
        """Read the entries, from the last to the first."""
        for number in reversed(self.numbers()):
            entry = self.entry(number)
            if entry is not None:
                yield entry

    def append(self, entry: Entry) -> bool:
        """Create an entry; False: the number is taken, and nothing was written."""
        data, path = encode_entry(entry), self._entry_path(entry.number)
        try:
            self.store.create(path, data)
        except AlreadyExists:
            return holds(self.store, path, data)
        except StoreUncertain as uncertain:
            try:
                return holds(self.store, path, data)
            except NotFound:
                raise uncertain from None
        return True

    # --- pieces -----------------------------------------------------------------------------------

    def write(self, lane: int, epoch: int, first: int, table: pa.Table, watermark: int) -> Piece:
        """Write the records of a lane from position `first` on; durable on return."""
        parts = table_to_ipc(table)
        length = sum(memoryview(part).nbytes for part in parts)
        rest = _padded(b"%d" % length, b" %d %d %d\n" % (first, table.num_rows, watermark))
        digest = xxhash.xxh3_64(rest)
        for part in parts:
            digest.update(part)
        header = _MAGIC + digest.hexdigest().encode() + rest
        views = [memoryview(part).cast("B") for part in parts]
        piece = Piece(
            lane,
            epoch,
            first,
            first + table.num_rows,
            len(header) + length,
            digest.hexdigest(),
            watermark,
        )
        self.store.put(self._piece_path(piece), [header, *views])
        return piece

    def read(self, piece: Piece) -> pa.Table:
        """Read a piece. Raises: CorruptPiece; NotFound, when it was deleted."""
        path = self._piece_path(piece)
        data = self.store.get(path, bytes_max=piece.size_bytes)
        if len(data) != piece.size_bytes:
            raise CorruptPiece(f"{path}: {len(data)} bytes instead of {piece.size_bytes}")
        found, table = _decoded(piece, data, path)
        if found.checksum != piece.checksum or found.end != piece.end:
            raise CorruptPiece(f"{path}: other records than {piece}")
        return table

    def early(self, lane: int, epoch: int, first: int) -> tuple[Piece, pa.Table] | None:
        """Read the piece that an attempt has written from position `first` on, whether or not an
        entry names it; None: there is none. Raises: CorruptPiece.
        """
        piece = Piece(lane, epoch, first, first)
        path = self._piece_path(piece)
        try:
            data = self.store.get(path, bytes_max=EARLY_BYTES_MAX)
        except NotFound:
            return None
        return _decoded(piece, data, path)

    # --- deletion ---------------------------------------------------------------------------------

    def trim(self, below: int) -> int:
        """Delete the entries below this number with their pieces; return how many.

        The last entry stays. Oldest first, pieces before their entry: a crash leaves a log that can
        be trimmed again. A piece that a later entry names stays: a coordinator that was frozen may
        have written an entry into the trimmed part, about pieces that its successor has committed.
        """
        numbers = self.numbers()
        dropped = [number for number in numbers[:-1] if number < below]
        named = self._named(numbers[len(dropped) :]) if dropped else set()
        for number in dropped:
            entry = self.entry(number)
            for piece in entry.pieces if entry is not None else ():
                if (path := self._piece_path(piece)) not in named:
                    self.store.delete(path)
            self.store.delete(self._entry_path(number))
        return len(dropped)

    def sweep(self, below_epoch: int) -> int:
        """Delete pieces that no entry names, written in epochs below this; return how many."""
        named = self._named(self.numbers())
        prefix = f"{self.folder}pieces/"
        swept = 0
        for path in self.store.list(prefix):
            match = _NAME.fullmatch(path.removeprefix(prefix))
            if match is not None and int(match[2]) < below_epoch and path not in named:
                self.store.delete(path)
                swept += 1
        return swept

    def _named(self, numbers: Iterable[int]) -> set[str]:
        """The pieces that these entries name."""
        entries = [self.entry(number) for number in numbers]
        return {self._piece_path(p) for entry in entries if entry for p in entry.pieces}

    def _entry_path(self, number: int) -> str:
        return f"{self.folder}entries/{number}"

    def _piece_path(self, piece: Piece) -> str:
        return f"{self.folder}pieces/p{piece.lane}-e{piece.epoch}-{piece.first}"


def _decoded(place: Piece, data: bytes | memoryview, path: str) -> tuple[Piece, pa.Table]:
    """Read a piece whose lane, epoch and beginning are known. Raises: CorruptPiece."""
    head = bytes(data[:_HEADER_BYTES_MAX])
    end = head.find(b"\n") + 1
    match = _PIECE.fullmatch(head[:end])
    if match is None:
        raise CorruptPiece(f"{path}: not a piece of a log: {head[:40]!r}")
    checksum = match[1].decode()
    if xxhash.xxh3_64_hexdigest(memoryview(data)[match.end(1) :]) != checksum:
        raise CorruptPiece(f"{path}: its checksum differs")
    rows, watermark = int(match[4]), int(match[5])
    if int(match[3]) != place.first:
        raise CorruptPiece(f"{path}: other records than from {place.first} on")
    # Columns stay where they are, unless they would lie askew there.
    body = memoryview(data)[end:]
    try:
        table = table_from_ipc(bytes(body) if end % _ALIGNMENT else body)
    except InvalidTable as error:
        raise CorruptPiece(f"{path}: {error}") from error
    if table.num_rows != rows:
        raise CorruptPiece(f"{path}: {table.num_rows} records instead of {rows}")
    piece = Piece(
        place.lane, place.epoch, place.first, place.first + rows, len(data), checksum, watermark
    )
    return piece, table


def _padded(length: bytes, rest: bytes) -> bytes:
    """Join what follows the checksum in a header, so that the header's end is aligned."""
    header_bytes = len(_MAGIC) + _CHECKSUM_BYTES + 1 + len(length) + len(rest)
    return b" " + b"0" * (-header_bytes % _ALIGNMENT) + length + rest
