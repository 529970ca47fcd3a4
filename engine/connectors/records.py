"""Cuts the bytes of a text file into whole records, with the exact offset after each.

The parser gets at most as many records as the reader may return, so that an offset between two of
its batches is always a byte position at which a record begins: a restart skips nothing, and a file
may grow in between.

Records end at line feeds; in CSV, at line feeds outside quotes. Counting quotes is right as long as
a quote opens at the beginning of a field. A quote elsewhere (`5" disk`) is refused with its
position: two readers of the file would disagree on the ends of its records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from .filesystem import UnreadableFile, refuse_shorter
from .splits import OPEN_END

#: A record longer than this is not a record but a file of another format.
RECORD_BYTES_MAX = 64 * 1024 * 1024
_READ_BYTES = 4 * 1024 * 1024
_LINE_FEED, _CARRIAGE_RETURN, _QUOTE = 10, 13, 34
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class BadRecord(Exception):
    """A fault in the data, and its byte."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position = position
        self.reason = reason


#: Ends (exclusive, ascending) of the complete records of data that begins with a record. Raises:
#: BadRecord.
RecordEnds = Callable[[bytes], npt.NDArray[np.int64]]


def line_ends(data: bytes) -> npt.NDArray[np.int64]:
    """Ends of lines."""
    ends: npt.NDArray[np.int64] = np.flatnonzero(np.frombuffer(data, np.uint8) == _LINE_FEED) + 1
    return ends


def csv_record_ends(delimiter: str) -> RecordEnds:
    """Make a function for the ends of CSV records, which may hold line feeds in quotes."""
    before_a_field = (ord(delimiter), _LINE_FEED, _CARRIAGE_RETURN, _QUOTE)

    def ends(data: bytes) -> npt.NDArray[np.int64]:
        lines = line_ends(data)
        if b'"' not in data:
            return lines
        values = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(values == _QUOTE)
        opening = quotes[::2]
        opening = opening[opening > 0]
        stray = opening[~np.isin(values[opening - 1], before_a_field)]
        if stray.size:
            reason = "a quote in the middle of a field; quote the whole field and double the quote"
            raise BadRecord(int(stray[0]), reason)
        ends_of_records: npt.NDArray[np.int64] = lines[np.searchsorted(quotes, lines) % 2 == 0]
        return ends_of_records

    return ends


class RecordReader:
    """Reads whole records of one split.

    Attributes:
        offset: byte at which the next record begins.
    """

    def __init__(
        self,
        file: BinaryIO,
        path: str,
        *,
        start: int,
        end: int,
        offset: int,
        record_ends: RecordEnds,
        tail_is_record: bool,
        size_bytes_min: int = 0,
    ) -> None:
        """Begin at `offset` of the split `[start, end)`.

        Args:
            size_bytes_min: length of the file when it was listed; a shorter one is refused before
                its last record, which may be half of one, is given out.
            tail_is_record: whether bytes after the last record end are a record too; False while
                the file may grow.
        """
        self._file = file
        self._path = path
        self._end = end
        self._record_ends = record_ends
        self._tail_is_record = tail_is_record
        self._size_bytes_min = max(size_bytes_min, offset)
        self._data = b""
        #: Offset in the file of `_data[0]`, and where in `_data` the next record begins.
        self._base = self._position = 0
        self._ends: list[int] = []
        self._taken = 0
        self._last = False
        self._seek(start, offset)

    @property
    def offset(self) -> int:
        """Byte at which the next record begins."""
        return self._base + self._position

    def take(self, records_max: int) -> bytes | None:
        """Return up to `records_max` records as they stand in the file, or None if none is left
        (for now).
        """
        while self._taken == len(self._ends):
            if self._last or not self._fill():
                return None
        upto = min(self._taken + records_max, len(self._ends))
        cut = self._ends[upto - 1]
        chunk = self._data[self._position : cut]
        self._position, self._taken = cut, upto
        return chunk

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _seek(self, start: int, offset: int) -> None:
        """Go to `offset`; a fresh split in mid-file begins after the line that runs into it."""
        if offset != start or start == 0:
            self._base = offset
            self._file.seek(offset)
            return
        # From the byte before: if that ends a line, the split begins with a record of its own.
        self._base = start - 1
        self._file.seek(self._base)
        while self._fill(cut=False):
            first = self._data.find(b"\n")
            if first >= 0:
                self._position = first + 1
                self._cut_records()
                return
        self._position, self._last = len(self._data), True

    def _fill(self, *, cut: bool = True) -> bool:
        """Read on; False at the end of what is there."""
        block = self._file.read(_READ_BYTES)
        rest = self._data[self._position :]
        if not block:
            refuse_shorter(self._file, self._path, self._size_bytes_min)
        if not block and (not rest or not cut or not self._tail_is_record):
            return False
        self._base, self._position, self._data = self.offset, 0, rest + block
        if self._base == 0 and self._data.startswith(_BYTE_ORDER_MARK):
            self._position = len(_BYTE_ORDER_MARK)
        if len(self._data) > RECORD_BYTES_MAX + _READ_BYTES:
            raise UnreadableFile(
                self._path, f"no record ends within {RECORD_BYTES_MAX} bytes of byte {self._base}"
            )
        if cut:
            self._cut_records(at_end_of_file=not block)
        return True

    def _cut_records(self, *, at_end_of_file: bool = False) -> None:
        data = self._data[self._position :] if self._position else self._data
        try:
            ends = self._record_ends(data + b"\n" if at_end_of_file else data)
        except BadRecord as bad:
            raise UnreadableFile(
                self._path, f"byte {self.offset + bad.position}: {bad.reason}"
            ) from None
        if at_end_of_file and not ends.size:
            raise UnreadableFile(
                self._path, f"the record at byte {self.offset} opens a quote that is never closed"
            )
        ends = np.minimum(ends + self._position, len(self._data))
        if self._end != OPEN_END:
            begins_inside = np.concatenate(([self._position], ends[:-1])) + self._base < self._end
            self._last = bool(ends.size) and not begins_inside.all()
            ends = ends[begins_inside[: ends.size]]
        self._ends, self._taken = ends.tolist(), 0
