"""CSV, JSON lines and plain text.

Offsets are bytes of the file, always at the beginning of a record.

All are UTF-8; a byte order mark is skipped. Text and JSON files are cut into byte ranges; a CSV
file is one split, because only a reader from the beginning knows whether a line feed is inside
quotes. Empty lines are no records in CSV and JSON.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json

from .filesystem import Location, UnreadableFile
from .formats import Expected, plain_schema
from .records import RecordEnds, RecordReader, csv_record_ends, line_ends
from .splits import OPEN_END, Split, whole

#: What to do with bytes that are not UTF-8: refuse the file, or put U+FFFD in their place.
Errors = Literal["strict", "replace"]
_INFER_RECORDS = 10_000
#: What lines of text are read as.
LINE_SCHEMA = pa.schema([("line", pa.string())])
#: Makes a batch of whole records. Raises: pa.ArrowInvalid.
Parse = Callable[[bytes], pa.RecordBatch]


class TextCursor:
    """Takes whole records and parses them."""

    def __init__(
        self, path: str, records: RecordReader | None, parse: Parse, errors: Errors, offset: int
    ) -> None:
        """Begin; without `records` there is nothing to read yet."""
        self._path = path
        self._records = records
        self._parse = parse
        self._errors = errors
        self._offset = offset

    @property
    def offset(self) -> int:
        """Byte at which the next record begins."""
        return self._offset

    def read(self, rows_max: int) -> pa.RecordBatch | None:
        """Return the next records."""
        chunk = None if self._records is None else self._records.take(rows_max)
        if self._records is None or chunk is None:
            return None
        text = as_utf8(chunk, self._path, self._records.offset - len(chunk), self._errors)
        try:
            batch = self._parse(text)
        except pa.ArrowInvalid as error:
            where = f"bytes {self._records.offset - len(chunk)} to {self._records.offset}"
            raise UnreadableFile(self._path, f"{where}: {error}") from error
        self._offset = self._records.offset
        return batch

    def close(self) -> None:
        """Close the file."""
        if self._records is not None:
            self._records.close()


@dataclass(frozen=True, slots=True)
class TextFormat:
    """Lines of text, in the column `line`, without their line ends (`\\n` or `\\r\\n`)."""

    errors: Errors = "strict"
    in_bytes: bool = True
    can_cut: bool = True

    def infer(self, location: Location, path: str) -> pa.Schema:
        """The one column."""
        return LINE_SCHEMA

    def check(self, location: Location, path: str, expected: Expected) -> None:
        """Every text file has lines."""

    def open(
        self,
        location: Location,
        split: Split,
        *,
        offset: int,
        expected: Expected,
        growing: bool,
        size_bytes_min: int,
    ) -> TextCursor:
        """Begin at byte `offset`."""
        records = _records(location, split, offset, line_ends, growing, size_bytes_min)
        return TextCursor(split.path, records, lines_batch, self.errors, records.offset)


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """One JSON object a line."""

    errors: Errors = "strict"
    in_bytes: bool = True
    can_cut: bool = True

    def infer(self, location: Location, path: str) -> pa.Schema:
        """Join the types of the first records."""
        text, begin = _first_records(location, whole(path), 0, line_ends, self.errors)
        if not text.strip():
            raise UnreadableFile(path, "it has no records to infer a schema from; give schema=")
        try:
            return plain_schema(_read_json(text, None).schema)
        except pa.ArrowInvalid as error:
            raise UnreadableFile(path, f"from byte {begin}: {error}") from error

    def check(self, location: Location, path: str, expected: Expected) -> None:
        """Records of JSON are compared as they are read."""

    def open(
        self,
        location: Location,
        split: Split,
        *,
        offset: int,
        expected: Expected,
        growing: bool,
        size_bytes_min: int,
    ) -> TextCursor:
        """Begin at byte `offset`."""
        records = _records(location, split, offset, line_ends, growing, size_bytes_min)

        def parse(text: bytes) -> pa.RecordBatch:
            return _one_batch(_read_json(text, expected), expected.schema)

        return TextCursor(split.path, records, parse, self.errors, records.offset)


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """Comma-separated values, as RFC 4180 has them.

    Attributes:
        column_names: names of the columns in files without a header line; None if each file begins
            with one.
    """

    delimiter: str = ","
    column_names: tuple[str, ...] | None = None
    errors: Errors = "strict"
    in_bytes: bool = True
    can_cut: bool = False

    def infer(self, location: Location, path: str) -> pa.Schema:
        """Take the names from the header and the types from the first records."""
        names, begin = self._header(location, path, False)
        ends = csv_record_ends(self.delimiter)
        text, begin = _first_records(location, whole(path), begin, ends, self.errors)
        if not names:
            raise UnreadableFile(path, "it is empty, so it has no columns to infer; give schema=")
        try:
            return plain_schema(self._read(text, names, None).schema)
        except pa.ArrowInvalid as error:
            raise UnreadableFile(path, f"from byte {begin}: {error}") from error

    def check(self, location: Location, path: str, expected: Expected) -> None:
        """Compare the header's names."""
        names, _ = self._header(location, path, False)
        if names:
            self._check_names(path, names, expected)

    def open(
        self,
        location: Location,
        split: Split,
        *,
        offset: int,
        expected: Expected,
        growing: bool,
        size_bytes_min: int,
    ) -> TextCursor:
        """Begin at byte `offset`; at the beginning of the file the header is passed over."""
        names, begin = self._header(location, split.path, growing, size_bytes_min)

        def parse(text: bytes) -> pa.RecordBatch:
            return _one_batch(self._read(text, names, expected.schema), expected.schema)

        if not names:
            return TextCursor(split.path, None, parse, self.errors, offset)
        self._check_names(split.path, names, expected)
        offset = max(offset, begin)
        ends = csv_record_ends(self.delimiter)
        records = _records(location, split, offset, ends, growing, size_bytes_min)
        return TextCursor(split.path, records, parse, self.errors, offset)

    def _header(
        self, location: Location, path: str, growing: bool, size_bytes_min: int = 0
    ) -> tuple[tuple[str, ...], int]:
        """Return the names of the columns (none without a whole header) and the offset of the first
        record.
        """
        if self.column_names is not None:
            return self.column_names, 0
        ends = csv_record_ends(self.delimiter)
        records = _records(location, whole(path), 0, ends, growing, size_bytes_min)
        try:
            line = records.take(1)
            if line is None:
                return (), 0
            text = as_utf8(line, path, 0, self.errors).decode()
            names = next(csv.reader(io.StringIO(text, newline=""), delimiter=self.delimiter))
            return tuple(names), records.offset
        finally:
            records.close()

    def _check_names(self, path: str, names: tuple[str, ...], expected: Expected) -> None:
        # Types are the parser's matter: it is told to read each column as its expected type.
        types = {column.name: column.type for column in expected.schema}
        expected.check(path, pa.schema([(name, types.get(name, pa.string())) for name in names]))

    def _read(self, text: bytes, names: tuple[str, ...], schema: pa.Schema | None) -> pa.Table:
        return pa.csv.read_csv(
            pa.BufferReader(text),
            read_options=pa.csv.ReadOptions(
                column_names=names, use_threads=False, block_size=len(text) + 1
            ),
            parse_options=pa.csv.ParseOptions(
                delimiter=self.delimiter, newlines_in_values=b'"' in text
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types=schema, include_columns=None if schema is None else schema.names
            ),
        )


def as_utf8(data: bytes, path: str, begin: int, errors: Errors) -> bytes:
    """Return `data`, which stands at byte `begin` of the file, as valid UTF-8.

    Raises: UnreadableFile.
    """
    if data.isascii():
        return data
    try:
        text = data.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise UnreadableFile(
            path,
            f"byte {begin + error.start} is not UTF-8; convert the file or give errors='replace'",
        ) from None
    return text.encode() if errors == "replace" else data


def lines_batch(text: bytes) -> pa.RecordBatch:
    """Make the column `line` of whole lines."""
    if b"\r\n" in text:
        text = text.replace(b"\r\n", b"\n")
    if not text.endswith(b"\n"):
        text += b"\n"
    values = np.frombuffer(text, np.uint8)
    keep = values != ord("\n")
    ends = np.flatnonzero(~keep)
    # Taking out the line feeds moves the k-th line's end k bytes to the left.
    offsets = np.zeros(len(ends) + 1, dtype=np.int32)
    offsets[1:] = ends - np.arange(len(ends))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values[keep])]
    lines = pa.Array.from_buffers(pa.string(), len(ends), buffers)
    return pa.RecordBatch.from_arrays([lines], schema=LINE_SCHEMA)


def _records(
    location: Location,
    split: Split,
    offset: int,
    ends: RecordEnds,
    growing: bool,
    size_bytes_min: int = 0,
) -> RecordReader:
    return RecordReader(
        location.open(split.path),
        split.path,
        start=split.start,
        end=split.end,
        offset=offset,
        record_ends=ends,
        tail_is_record=not growing or split.end != OPEN_END,
        size_bytes_min=size_bytes_min,
    )


def _first_records(
    location: Location, split: Split, offset: int, ends: RecordEnds, errors: Errors
) -> tuple[bytes, int]:
    """Return the first records from `offset` on, and their offset."""
    records = _records(location, split, offset, ends, False)
    try:
        chunk = records.take(_INFER_RECORDS) or b""
        begin = records.offset - len(chunk)
        return as_utf8(chunk, split.path, begin, errors), begin
    finally:
        records.close()


def _read_json(text: bytes, expected: Expected | None) -> pa.Table:
    if expected is None:
        parse = pa.json.ParseOptions(newlines_in_values=False)
    else:
        # A field that the first records did not have would otherwise vanish without a word.
        unexpected = "ignore" if expected.given else "error"
        parse = pa.json.ParseOptions(
            explicit_schema=expected.schema,
            newlines_in_values=False,
            unexpected_field_behavior=unexpected,
        )
    read = pa.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
    return pa.json.read_json(pa.BufferReader(text), read_options=read, parse_options=parse)


def _one_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    batches = table.select(schema.names).combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_arrays([pa.array([], c.type) for c in schema], schema=schema)
    return pa.RecordBatch.from_arrays(batches[0].columns, schema=schema)
