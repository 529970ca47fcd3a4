"""Parquet and Arrow IPC files. Offsets are rows from the beginning of the split.

A Parquet split holds the row groups that begin inside its byte range, so files are cut without
opening them. An Arrow file is one split. Neither can be read before it is written whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from .filesystem import Location, UnreadableFile, refuse_shorter
from .formats import Expected, plain_schema
from .splits import OPEN_END, Split

_READ_ROWS = 65_536
_ARROW_FILE_MAGIC = b"ARROW1"


class BatchCursor:
    """A cursor over whatever yields record batches."""

    def __init__(
        self,
        path: str,
        file: BinaryIO,
        batches: Iterator[pa.RecordBatch],
        *,
        offset: int,
        skip: int,
        expected: Expected,
        size_bytes_min: int,
    ) -> None:
        """Begin `skip` rows into `batches`, which is `offset` rows into the split."""
        self._path = path
        self._file = file
        self._batches = batches
        self._offset = offset
        self._skip = skip
        self._expected = expected
        self._size_bytes_min = size_bytes_min
        self._rest: pa.RecordBatch | None = None

    @property
    def offset(self) -> int:
        """Rows from the beginning of the split."""
        return self._offset

    def read(self, rows_max: int) -> pa.RecordBatch | None:
        """Return the next rows."""
        while self._rest is None or not self._rest.num_rows:
            with _reading(self._path):
                batch = next(self._batches, None)
            if batch is None:
                self._check_length()
                return None
            skipped = min(self._skip, batch.num_rows)
            self._skip -= skipped
            self._rest = self._expected.select(self._path, batch.slice(skipped))
        part = self._rest.slice(0, rows_max)
        self._rest = self._rest.slice(part.num_rows)
        self._offset += part.num_rows
        return part

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _check_length(self) -> None:
        refuse_shorter(self._file, self._path, self._size_bytes_min)
        if self._skip:
            raise UnreadableFile(
                self._path,
                f"it ends {self._skip} rows before row {self._offset} of the split, to which it "
                "was read; a file that is being read must not become shorter",
            )


@dataclass(frozen=True, slots=True)
class ParquetFormat:
    """Parquet."""

    in_bytes: bool = False
    can_cut: bool = True

    def infer(self, location: Location, path: str) -> pa.Schema:
        """Read the schema from the footer."""
        with location.open(path) as file, _reading(path):
            return plain_schema(pq.ParquetFile(file).schema_arrow)

    def check(self, location: Location, path: str, expected: Expected) -> None:
        """Compare the footer's schema."""
        expected.check(path, self.infer(location, path))

    def open(
        self,
        location: Location,
        split: Split,
        *,
        offset: int,
        expected: Expected,
        growing: bool,
        size_bytes_min: int,
    ) -> BatchCursor:
        """Begin at row `offset` of the split."""
        file = location.open(split.path)
        with _closing_on_error(file), _reading(split.path):
            parquet = pq.ParquetFile(file)
            expected.check(split.path, parquet.schema_arrow)
            groups, skip = _groups_from(parquet.metadata, split, offset)
            batches = parquet.iter_batches(
                batch_size=_READ_ROWS,
                row_groups=groups,
                columns=_columns(parquet.schema_arrow, expected),
                use_threads=False,
            )
        return BatchCursor(
            split.path,
            file,
            batches,
            offset=offset,
            skip=skip,
            expected=expected,
            size_bytes_min=size_bytes_min,
        )


@dataclass(frozen=True, slots=True)
class ArrowFormat:
    """Arrow IPC: files (also called Feather) and streams."""

    in_bytes: bool = False
    can_cut: bool = False

    def infer(self, location: Location, path: str) -> pa.Schema:
        """Read the schema from the beginning."""
        with location.open(path) as file, _reading(path):
            return plain_schema(_open_arrow(file).schema)

    def check(self, location: Location, path: str, expected: Expected) -> None:
        """Compare the file's schema."""
        expected.check(path, self.infer(location, path))

    def open(
        self,
        location: Location,
        split: Split,
        *,
        offset: int,
        expected: Expected,
        growing: bool,
        size_bytes_min: int,
    ) -> BatchCursor:
        """Begin at row `offset` of the file."""
        file = location.open(split.path)
        with _closing_on_error(file), _reading(split.path):
            reader = _open_arrow(file)
            expected.check(split.path, reader.schema)
        return BatchCursor(
            split.path,
            file,
            _arrow_batches(reader),
            offset=offset,
            skip=offset,
            expected=expected,
            size_bytes_min=size_bytes_min,
        )


def _groups_from(metadata: Any, split: Split, offset: int) -> tuple[list[int], int]:
    """Return the row groups of the split from row `offset` on, and the rows of the first group to
    skip.
    """
    groups = [
        group
        for group in range(metadata.num_row_groups)
        if split.start <= _first_byte(metadata.row_group(group))
        and (split.end == OPEN_END or _first_byte(metadata.row_group(group)) < split.end)
    ]
    while groups and offset >= metadata.row_group(groups[0]).num_rows:
        offset -= metadata.row_group(groups.pop(0)).num_rows
    return groups, offset


def _first_byte(group: Any) -> int:
    column = group.column(0)
    dictionary = column.dictionary_page_offset
    data = int(column.data_page_offset)
    return data if dictionary is None else min(int(dictionary), data)


def _columns(found: pa.Schema, expected: Expected) -> list[str] | None:
    """Columns to read: None for all, since a list takes dots in names for nesting."""
    wanted = expected.schema.names
    return None if set(wanted) == set(found.names) else wanted


def _open_arrow(file: BinaryIO) -> Any:
    is_file = file.read(len(_ARROW_FILE_MAGIC)) == _ARROW_FILE_MAGIC
    file.seek(0)
    return pa.ipc.open_file(file) if is_file else pa.ipc.open_stream(file)


def _arrow_batches(reader: Any) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
    else:
        batches = iter(reader)
    for batch in batches:
        # Arrow's readers believe the offsets in a file; a crafted file could make a kernel read
        # anywhere.
        batch.validate(full=True)
        yield batch


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """Name the file in whatever Arrow or the file system says."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFile(path, str(error).strip() or type(error).__name__) from error


@contextmanager
def _closing_on_error(file: BinaryIO) -> Iterator[None]:
    try:
        yield
    except BaseException:
        file.close()
        raise
