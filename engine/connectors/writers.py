"""The file sink's formats: Parquet, an object of JSON a line, CSV with a header line, Arrow.

A writer of Parquet or Arrow gathers small batches, since a row group for each would make files that
are slow to read. Text is compressed as a whole, Parquet and Arrow column by column.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, Protocol, cast, get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from ..contract.errors import UserError

FormatOfSink = Literal["parquet", "json", "csv", "arrow"]

#: A row group is written when so much has been gathered, whichever comes first.
ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 64 * 1024 * 1024
#: A Parquet column whose dictionary outgrows the caches costs four times as much to write, and its
#: file is larger than without one; Arrow's own limit is 1 MiB.
_DICTIONARY_BYTES = 64 * 1024
#: Rows by which a column of a Parquet file is judged.
_SAMPLE_ROWS = 1024
#: Differences of this many bits and more save no space, and cost more than plain numbers.
_DELTA_BITS_MAX = 56
_JSON_ROWS = 4096

#: The compressions of each format, the default first, and what a file's name ends with.
_COMPRESSIONS: dict[str, tuple[str, ...]] = {
    "parquet": ("snappy", "zstd", "gzip", "lz4", "brotli", "none"),
    "json": ("none", "gzip", "zstd"),
    "csv": ("none", "gzip", "zstd"),
    "arrow": ("lz4", "zstd", "none"),
}
_SUFFIXES = {"gzip": ".gz", "zstd": ".zst", "none": ""}


class RecordWriter(Protocol):
    """Writes records of one schema into a file that is open."""

    @property
    def file(self) -> BinaryIO:
        """The file; the caller closes it."""
        ...

    def write(self, batch: pa.RecordBatch, gather_bytes_max: int = ROW_GROUP_BYTES) -> None:
        """Write or gather records."""
        ...

    def finish(self) -> int:
        """Write the gathered records and the format's end; return the rows of the file."""
        ...

    def abandon(self) -> None:
        """Give the file up, and drop the gathered records."""
        ...


class _Gathered:
    """Batches that wait until they are worth a row group."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: pa.RecordBatch, bytes_max: int) -> bool:
        """Gather; return whether it is enough for a row group."""
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        return self._rows >= ROW_GROUP_ROWS or self._bytes >= min(bytes_max, ROW_GROUP_BYTES)

    def take(self, schema: pa.Schema) -> pa.Table:
        """Hand out all that has been gathered."""
        table = pa.Table.from_batches(self._batches, schema=schema)
        self._batches, self._rows, self._bytes = [], 0, 0
        return table


class _Columnar(ABC):
    """Records of a format that is written group by group."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, compression: str) -> None:
        self.file = file
        self._schema = schema
        self._compression = compression
        self._gathered = _Gathered()
        self._rows = 0

    def write(self, batch: pa.RecordBatch, gather_bytes_max: int = ROW_GROUP_BYTES) -> None:
        """Gather records and write full groups."""
        if self._gathered.add(batch, gather_bytes_max):
            self._flush()

    def finish(self) -> int:
        """Write the last group and the footer."""
        self._flush()
        self._end()
        return self._rows

    def _flush(self) -> None:
        table = self._gathered.take(self._schema)
        if table.num_rows:
            self._write_group(table)
        self._rows += table.num_rows

    @abstractmethod
    def _write_group(self, table: pa.Table) -> None:
        """Write a group of records."""

    @abstractmethod
    def _end(self) -> None:
        """Write the footer."""


class ParquetRecords(_Columnar):
    """Parquet. The first row group decides how the file's columns are encoded.

    Attributes:
        metadata: the file's footer; None before `finish`.
    """

    def __init__(self, file: BinaryIO, schema: pa.Schema, compression: str) -> None:
        super().__init__(file, schema, compression)
        self.metadata: pq.FileMetaData | None = None
        self._footers: list[pq.FileMetaData] = []
        self._writer: pq.ParquetWriter | None = None

    def abandon(self) -> None:
        """Let go of Arrow's writer."""
        if self._writer is None:
            return
        with suppress(Exception):
            self._writer.close()
        # After a failed close the finalizer would write to the file once more, and complain on
        # stderr.
        self._writer.is_open = False

    def _write_group(self, table: pa.Table) -> None:
        self._begun(table).write_table(table, row_group_size=table.num_rows)

    def _end(self) -> None:
        self._begun(self._schema.empty_table()).close()
        self.metadata = self._footers[-1]

    def _begun(self, table: pa.Table) -> pq.ParquetWriter:
        """Return the file's writer; `table` is its first row group if there is none yet."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self.file,
                self._schema,
                compression=self._compression,
                metadata_collector=self._footers,
                dictionary_pagesize_limit=_DICTIONARY_BYTES,
                **_encodings(table),
            )
        return self._writer


def _encodings(table: pa.Table) -> dict[str, Any]:
    """Return Arrow's options for columns that are written as differences: a half to a third of the
    time, and of the size. Other columns have a dictionary, where that pays.
    """
    schema = table.schema
    deltas = {name for name in schema.names if _are_differences_short(table[name])}
    if not deltas:
        return {}
    others = [path for path in _leaves(schema) if path not in deltas]
    return {
        "use_dictionary": others or False,
        "column_encoding": dict.fromkeys(sorted(deltas), "DELTA_BINARY_PACKED"),
    }


def _are_differences_short(column: pa.ChunkedArray) -> bool:
    """Whether a column holds whole numbers, dates or times of which most differ, and not by much.

    A column with few different numbers is smaller with a dictionary.
    """
    kind, sample = column.type, column.slice(0, _SAMPLE_ROWS)
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        sample = sample.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    elif not pa.types.is_integer(kind):
        return False
    different = sample.unique().drop_null()
    if len(different) <= len(sample) // 2:
        return False
    extremes = pc.min_max(different).as_py()
    span: int = extremes["max"] - extremes["min"]
    return span.bit_length() < _DELTA_BITS_MAX


def _leaves(schema: pa.Schema) -> list[str]:
    """Paths of the columns as Parquet has them, those within lists and structs included."""
    if not any(pa.types.is_nested(column.type) for column in schema):
        return list(schema.names)
    empty = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), empty)
    columns = pq.read_metadata(pa.BufferReader(empty.getvalue())).schema
    return [columns.column(number).path for number in range(len(columns))]


class ArrowRecords(_Columnar):
    """Arrow's file format."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, compression: str) -> None:
        super().__init__(file, schema, compression)
        codec = None if compression == "none" else compression
        options = pa.ipc.IpcWriteOptions(compression=codec)
        self._sink = pa.PythonFile(_KeptOpen(file), mode="w")
        self._writer = pa.ipc.new_file(self._sink, schema, options=options)

    def abandon(self) -> None:
        """Let go of Arrow's writer."""
        with suppress(Exception):
            self._writer.close()

    def _write_group(self, table: pa.Table) -> None:
        self._writer.write_table(table.combine_chunks())

    def _end(self) -> None:
        self._writer.close()


class CsvRecords:
    """CSV with a header line. A null is an empty field; an empty text is quoted."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, compression: str, delimiter: str) -> None:
        self.file = file
        self._out = _compressed(file, compression)
        options = pa.csv.WriteOptions(delimiter=delimiter)
        self._writer = pa.csv.CSVWriter(self._out, schema, write_options=options)
        self._rows = 0

    def write(self, batch: pa.RecordBatch, gather_bytes_max: int = ROW_GROUP_BYTES) -> None:
        """Write records."""
        self._writer.write_batch(batch)
        self._rows += batch.num_rows

    def finish(self) -> int:
        """Write the end of the compressed text."""
        self._writer.close()
        self._out.close()
        return self._rows

    def abandon(self) -> None:
        """Let go of Arrow's writer."""
        with suppress(Exception):
            self._writer.close()
        with suppress(Exception):
            self._out.close()


class JsonRecords:
    """JSON lines. Times are ISO 8601 strings, binary values base64, what is not a number null."""

    def __init__(self, file: BinaryIO, compression: str) -> None:
        self.file = file
        self._out = _compressed(file, compression)
        self._rows = 0

    def write(self, batch: pa.RecordBatch, gather_bytes_max: int = ROW_GROUP_BYTES) -> None:
        """Write records."""
        for first in range(0, batch.num_rows, _JSON_ROWS):
            rows = batch.slice(first, _JSON_ROWS).to_pylist()
            self._out.write(_JSON.encode_lines(rows))
        self._rows += batch.num_rows

    def finish(self) -> int:
        """JSON lines have no end of their own; compressed text has."""
        self._out.close()
        return self._rows

    def abandon(self) -> None:
        """Let go of the compressor."""
        with suppress(Exception):
            self._out.close()


class _KeptOpen(io.RawIOBase):
    """A file that stays open when Arrow's streams over it are closed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        return self._file.write(cast(bytes, data))

    def tell(self) -> int:
        return self._file.tell()


def _compressed(file: BinaryIO, compression: str) -> pa.NativeFile:
    out = pa.PythonFile(_KeptOpen(file), mode="w")
    return out if compression == "none" else pa.CompressedOutputStream(out, compression)


def json_objects(batch: pa.RecordBatch) -> pa.Array:
    """Return each row as an object of JSON, in a binary column. Values are as in `JsonRecords`."""
    return pa.array([_JSON.encode(row) for row in batch.to_pylist()], pa.binary())


def _isoformat(value: object) -> str:
    """Return the text of a pandas time, Arrow's form of nanoseconds (without an import of pandas,
    which may be missing).
    """
    isoformat = getattr(value, "isoformat", None)
    if isoformat is None:
        raise NotImplementedError(f"values of type {type(value).__name__} have no form in JSON")
    return str(isoformat())


_JSON = msgspec.json.Encoder(enc_hook=_isoformat)


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """A format of files with its options. Picklable."""

    kind: str
    compression: str
    delimiter: str = ","

    @property
    def suffix(self) -> str:
        """What names of files end with, as other programs expect it."""
        packed = _SUFFIXES[self.compression] if self.kind in ("json", "csv") else ""
        return f".{self.kind}{packed}"

    def open(self, file: BinaryIO, schema: pa.Schema) -> RecordWriter:
        """Begin a file.

        Raises: pa.ArrowException, for a schema that the format cannot take.
        """
        match self.kind:
            case "json":
                return JsonRecords(file, self.compression)
            case "csv":
                return CsvRecords(file, schema, self.compression, self.delimiter)
            case "arrow":
                return ArrowRecords(file, schema, self.compression)
            case _:
                return ParquetRecords(file, schema, self.compression)

    def check(self, schema: pa.Schema) -> None:
        """Write a file of one record of nulls into memory. Raises: UserError."""
        nulls = [pa.nulls(1, column.type) for column in schema]
        nullable = pa.schema([column.with_nullable(True) for column in schema])
        try:
            records = self.open(io.BytesIO(), nullable)
            records.write(pa.RecordBatch.from_arrays(nulls, schema=nullable))
            records.finish()
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise UserError(f"cannot write these records as {self.kind}: {error}") from error


def record_format(
    kind: FormatOfSink, compression: str | None = None, delimiter: str = ","
) -> RecordFormat:
    """Make a format. Raises: UserError, for a format or a compression that does not exist."""
    if kind not in get_args(FormatOfSink):
        choices = ", ".join(get_args(FormatOfSink))
        raise UserError(f"format={kind!r}: choose one of {choices}")
    compressions = _COMPRESSIONS[kind]
    if compression is not None and compression not in compressions:
        raise UserError(
            f"compression={compression!r}: {kind} takes one of {', '.join(compressions)}"
        )
    if len(delimiter.encode()) != 1:
        raise UserError(f"delimiter={delimiter!r} is not one character of ASCII")
    return RecordFormat(kind, compression or compressions[0], delimiter)


PARQUET = record_format("parquet")
