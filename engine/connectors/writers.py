"""The file sink's formats: Parquet, or an object of JSON a line.

A writer gathers small batches, since a Parquet row group for each would make files that are slow to
read.
"""

from __future__ import annotations

import io
from contextlib import suppress
from typing import BinaryIO, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

#: A row group is written when so much has been gathered, whichever comes first.
ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 64 * 1024 * 1024
_JSON_ROWS = 4096


class RecordWriter(Protocol):
    """Writes records of one schema into a file that is open."""

    @property
    def file(self) -> BinaryIO:
        """The file; the caller closes it."""
        ...

    def write(self, batch: pa.RecordBatch) -> None:
        """Write or gather records."""
        ...

    def finish(self) -> int:
        """Write the gathered records and the format's end; return the rows of the file."""
        ...

    def abandon(self) -> None:
        """Give the file up, and drop the gathered records."""
        ...


class ParquetRecords:
    """Parquet."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, compression: str) -> None:
        self.file = file
        self._schema = schema
        self._writer = pq.ParquetWriter(file, schema, compression=compression)
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_rows = 0
        self._gathered_bytes = 0
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Gather records and write full row groups."""
        self._gathered.append(batch)
        self._gathered_rows += batch.num_rows
        self._gathered_bytes += batch.nbytes
        if self._gathered_rows >= ROW_GROUP_ROWS or self._gathered_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def finish(self) -> int:
        """Write the last row group and the footer."""
        self._flush()
        self._writer.close()
        return self._rows

    def abandon(self) -> None:
        """Let go of Arrow's writer."""
        with suppress(Exception):
            self._writer.close()
        # After a failed close the finalizer would write to the file once more, and complain on
        # stderr.
        self._writer.is_open = False

    def _flush(self) -> None:
        if self._gathered_rows:
            table = pa.Table.from_batches(self._gathered, schema=self._schema)
            self._writer.write_table(table, row_group_size=table.num_rows)
        self._rows += self._gathered_rows
        self._gathered, self._gathered_rows, self._gathered_bytes = [], 0, 0


class JsonRecords:
    """JSON lines. Times are ISO 8601 strings, binary values base64, what is not a number null."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self._encoder = msgspec.json.Encoder(enc_hook=_isoformat)
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Write records."""
        for first in range(0, batch.num_rows, _JSON_ROWS):
            rows = batch.slice(first, _JSON_ROWS).to_pylist()
            self.file.write(self._encoder.encode_lines(rows))
        self._rows += batch.num_rows

    def finish(self) -> int:
        """JSON lines have no end of their own."""
        return self._rows

    def abandon(self) -> None:
        """Nothing is gathered."""


def _isoformat(value: object) -> str:
    """Return the text of a pandas time, Arrow's form of nanoseconds (without an import of pandas,
    which may be missing).
    """
    isoformat = getattr(value, "isoformat", None)
    if isoformat is None:
        raise NotImplementedError(f"values of type {type(value).__name__} have no form in JSON")
    return str(isoformat())


def open_writer(format: str, file: BinaryIO, schema: pa.Schema, compression: str) -> RecordWriter:
    """Begin a file.

    Raises: pa.ArrowException, for a schema or compression that Parquet cannot take.
    """
    return JsonRecords(file) if format == "json" else ParquetRecords(file, schema, compression)


def probe(format: str, schema: pa.Schema, compression: str) -> None:
    """Write a file of one record of nulls into memory. Raises the format's objections."""
    nulls = [pa.nulls(1, column.type) for column in schema]
    nullable = pa.schema([column.with_nullable(True) for column in schema])
    records = open_writer(format, io.BytesIO(), nullable, compression)
    records.write(pa.RecordBatch.from_arrays(nulls, schema=nullable))
    records.finish()
