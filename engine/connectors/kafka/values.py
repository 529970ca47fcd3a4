"""Records of Kafka as rows: which columns, and what keys and values are decoded to.

A value that is JSON takes the place of the column `value` as columns of its own. Null, which marks
a deleted key in a compacted topic, is a row of nulls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from ...contract.errors import JobFailed, UserError
from ...contract.suggestion import did_you_mean
from .cluster import Partition
from .record_batch import HEADERS, TIMESTAMP, Records

#: What a key or value is decoded to: bytes as they are, or UTF-8.
Decoded = Literal["binary", "text"]

COLUMNS: Mapping[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "timestamp": TIMESTAMP,
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "headers": HEADERS,
}
_NEWLINE = pa.scalar(b"\n", pa.binary())


class BadRecord(JobFailed):
    """A record's key or value is not what the source was told."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The form of a source's rows.

    Attributes:
        columns: names from COLUMNS, in order.
        key: see Decoded.
        value: see Decoded; a schema: of JSON objects.
    """

    columns: tuple[str, ...] = tuple(COLUMNS)
    key: Decoded = "binary"
    value: Decoded | pa.Schema = "binary"

    def __post_init__(self) -> None:
        for column in self.columns:
            if column not in COLUMNS:
                raise UserError(
                    f"read.kafka has no column {column!r}: {did_you_mean(column, COLUMNS)}"
                )
        for name, decoded in (("key", self.key), ("value", self.value)):
            if decoded not in ("binary", "text") and not (
                name == "value" and isinstance(decoded, pa.Schema)
            ):
                or_schema = ", or a schema of JSON objects" if name == "value" else ""
                raise UserError(
                    f"read.kafka: {name}={decoded!r}: give 'binary' or 'text'{or_schema}"
                )
        if isinstance(self.value, pa.Schema):
            twice = sorted({*self.columns} - {"value"} & {*self.value.names})
            if twice:
                raise UserError(
                    f"read.kafka: value= has a column {twice[0]!r}, as the source has: leave the"
                    " source's out by columns=[...]"
                )

    @property
    def schema(self) -> pa.Schema:
        """Schema of every batch."""
        fields: list[pa.Field] = []
        for name in self.columns:
            if name == "value" and isinstance(self.value, pa.Schema):
                fields += list(self.value)
            else:
                text = (name == "key" and self.key == "text") or (
                    name == "value" and self.value == "text"
                )
                fields.append(pa.field(name, pa.string() if text else COLUMNS[name]))
        return pa.schema(fields)

    @property
    def with_headers(self) -> bool:
        """Whether headers are wanted."""
        return "headers" in self.columns

    def batch(self, partition: Partition, records: Records) -> pa.RecordBatch:
        """Make rows of a partition's records. Raises: BadRecord."""
        arrays: list[pa.Array] = []
        for name in self.columns:
            arrays += self._column(name, partition, records)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _column(self, name: str, partition: Partition, records: Records) -> Sequence[pa.Array]:
        count = len(records.offsets)
        match name:
            case "key":
                return [_decoded(records.keys, self.key, "key", partition, records.offsets)]
            case "value" if isinstance(self.value, pa.Schema):
                return _json(records.values, self.value, partition, records.offsets)
            case "value":
                return [_decoded(records.values, self.value, "value", partition, records.offsets)]
            case "timestamp":
                return [records.timestamps]
            case "topic":
                return [pa.repeat(pa.scalar(partition.topic), count)]
            case "partition":
                return [pa.repeat(pa.scalar(partition.index, pa.int32()), count)]
            case "offset":
                return [records.offsets]
        assert records.headers is not None, "headers were asked for"
        return [records.headers]


def _decoded(
    column: pa.Array, decoded: Decoded, what: str, partition: Partition, offsets: pa.Array
) -> pa.Array:
    if decoded == "binary":
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        at = _first_bad(column, lambda one: one.cast(pa.string()))
        raise BadRecord(
            f"record {offsets[at]} of {partition}: its {what} is not UTF-8:"
            f" {column[at].as_py()!r:.80}; read it with {what}='binary'"
        ) from None


def _json(
    values: pa.Array, schema: pa.Schema, partition: Partition, offsets: pa.Array
) -> Sequence[pa.Array]:
    try:
        return _parsed(values, schema)
    except pa.ArrowException:
        at = _first_bad(values, lambda one: _parsed(one, schema))
        raise BadRecord(
            f"record {offsets[at]} of {partition}: its value is no JSON object of the schema:"
            f" {values[at].as_py()!r:.80}; read it with value='binary' and parse it in map_batches"
        ) from None


def _parsed(values: pa.Array, schema: pa.Schema) -> Sequence[pa.Array]:
    """Parse one JSON object a value. Raises: ArrowException."""
    lines = pc.binary_join(_one_list(pc.fill_null(values, b"{}")), _NEWLINE)
    text = lines[0].as_buffer()
    table = pa.json.read_json(
        pa.BufferReader(text),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=text.size + 1),
        parse_options=pa.json.ParseOptions(
            explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore"
        ),
    )
    if table.num_rows != len(values):
        raise pa.ArrowInvalid(f"{table.num_rows} objects in {len(values)} values")
    combined = table.select(schema.names).cast(schema).combine_chunks()
    return [column.combine_chunks() for column in combined.columns]


def _one_list(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


def _first_bad(column: pa.Array, decode: Callable[[pa.Array], object]) -> int:
    """Return which value cannot be decoded by itself."""
    for at in range(len(column)):
        try:
            decode(column.slice(at, 1))
        except pa.ArrowException:
            return at
    return 0
