"""Rows of a stream as records of Kafka: which column is the key, the value, and so on.

Without a `value` column the value is an object of JSON with all columns that the record does not
carry elsewhere: neither headers, nor the names of topic and partition. The key stays in the object,
since readers of JSON look there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...contract.errors import HeadraceError, UserError
from ...contract.suggestion import did_you_mean
from ..writers import json_objects
from .cluster import Partition
from .partitioner import by_key
from .record_batch import HEADERS

Indices = npt.NDArray[np.int64]
_SHORT = 1 << 15


@dataclass(frozen=True, slots=True)
class Rows:
    """Records of one partition, in order.

    Attributes:
        keys, timestamps, headers: None: no record has one.
    """

    values: pa.Array
    keys: pa.Array | None = None
    timestamps: pa.Array | None = None
    headers: pa.Array | None = None

    def take(self, indices: Indices) -> Rows:
        """Return these rows, in this order."""
        rows = pa.array(indices)
        columns = (getattr(self, each.name) for each in fields(self))
        return Rows(*(None if column is None else column.take(rows) for column in columns))

    def slice(self, part: slice) -> Rows:
        """Return neighbouring rows, without a copy."""
        columns = (getattr(self, each.name) for each in fields(self))
        return Rows(*(None if column is None else column[part] for column in columns))


@dataclass(frozen=True, slots=True)
class Layout:
    """Names of the columns that make a record, of those that a sink was given."""

    topic: str | None = None
    topic_column: str | None = None
    key: str | None = None
    value: str | None = None
    headers: str | None = None
    timestamp: str | None = None
    partition: str | None = None

    def __post_init__(self) -> None:
        if (self.topic is None) == (self.topic_column is None):
            raise UserError(
                "write.kafka: give topic=, the name of a topic, or topic_column=, the column with"
                " each record's topic"
            )

    def check(self, schema: pa.Schema) -> None:
        """Refuse a stream without these columns, or with others' types. Raises: UserError."""
        for option in ("topic_column", "key", "value", "headers", "timestamp", "partition"):
            column = getattr(self, option)
            if column is None:
                continue
            if column not in schema.names:
                raise UserError(
                    f"write.kafka: {option}={column!r} is no column of the stream:"
                    f" {did_you_mean(column, schema.names)}"
                )
            type_ = schema.field(column).type
            if not _FITS[option](type_):
                raise UserError(
                    f"write.kafka: {option}={column!r} is of type {type_}, and {_NEEDS[option]}"
                )
        if self.value is None:
            try:
                probe = [pa.nulls(1, column.type) for column in self._plain(schema)]
                json_objects(pa.record_batch(probe, names=self._plain(schema).names))
            except (TypeError, NotImplementedError) as error:
                raise UserError(f"write.kafka: a record has no form in JSON: {error}") from error

    def rows(self, batch: pa.RecordBatch) -> Rows:
        """Return a batch's records."""
        if self.value is None:
            values = json_objects(batch.select(self._plain(batch.schema).names))
        else:
            values = as_bytes(batch.column(self.value))
        return Rows(
            values,
            None if self.key is None else as_bytes(batch.column(self.key)),
            None if self.timestamp is None else batch.column(self.timestamp),
            None if self.headers is None else batch.column(self.headers),
        )

    def topics(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield a batch's rows topic by topic, in order within each. Raises: HeadraceError."""
        if self.topic is not None:
            yield self.topic, batch
            return
        column = batch.column(self.topic_column)
        for name in column.unique().to_pylist():
            if not name:
                raise HeadraceError(
                    f"a record names no topic: column {self.topic_column!r} is null or empty there"
                )
            yield name, batch.filter(pc.equal(column, name))

    def _plain(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a value in JSON."""
        aside = {self.topic_column, self.headers, self.partition}
        return pa.schema([column for column in schema if column.name not in aside])


class Partitioner:
    """Deals out records among partitions: by a column, by the key, or in turn.

    Records without a key go to one partition after the other, a batch at a time: small batches for
    every partition would cost more than an even share is worth.
    """

    def __init__(self, column: str | None, turn: int = 0) -> None:
        """Begin.

        Args:
            column: with the number of the partition of each record; None: there is none.
            turn: where to begin; different for subtasks, or all would fill one partition.
        """
        self._column = column
        self._turn = turn
        #: Partitions of records since `likely`, but those in turn.
        self._recent: set[Partition] = set()

    def likely(self, topic: str, partitions: int) -> set[Partition]:
        """Return partitions that the next records will likely go to: those of the records since the
        last call, or the next in turn.
        """
        recent, self._recent = self._recent, set()
        return recent or {Partition(topic, (self._turn + 1) % partitions)}

    def split(
        self, topic: str, partitions: int, batch: pa.RecordBatch, rows: Rows
    ) -> Iterator[tuple[Partition, Rows]]:
        """Yield the records of each partition, in the order of the batch.

        Raises: HeadraceError, for a partition that the topic does not have.
        """
        if self._column is not None:
            targets = self._stated(topic, partitions, batch)
        elif rows.keys is None or rows.keys.null_count == len(rows.keys):
            yield Partition(topic, self._next(partitions)), rows
            return
        else:
            targets = self._by_key(rows.keys, partitions)
        parts = list(_apart(topic, targets, rows))
        self._recent.update(partition for partition, _ in parts)
        yield from parts

    def _next(self, partitions: int) -> int:
        self._turn += 1
        return self._turn % partitions

    def _by_key(self, keys: pa.Array, partitions: int) -> Indices:
        if not keys.null_count:
            return by_key(keys, partitions)
        targets = by_key(pc.fill_null(keys, b""), partitions)
        targets[keys.is_null().to_numpy(zero_copy_only=False)] = self._next(partitions)
        return targets

    def _stated(self, topic: str, partitions: int, batch: pa.RecordBatch) -> Indices:
        column = batch.column(self._column)
        targets: Indices = pc.fill_null(column, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        wrong = targets[(targets < 0) | (targets >= partitions)]
        if len(wrong):
            raise HeadraceError(
                f"column {self._column!r} names partition {int(wrong[0])}, and topic {topic!r} has"
                f" partitions 0 to {partitions - 1}"
            )
        return targets


def as_bytes(column: pa.Array) -> pa.Array:
    """Return bytes as they are, and text and numbers as text in UTF-8."""
    if column.type == pa.binary():
        return column
    if _is_bytes(column.type):
        return column.cast(pa.binary())
    return column.cast(pa.string()).cast(pa.binary())


def _apart(topic: str, targets: Indices, rows: Rows) -> Iterator[tuple[Partition, Rows]]:
    counts = np.bincount(targets)
    # A stable sort of numbers of two bytes is quick: it counts, and compares nothing.
    short = targets.astype(np.int16) if len(counts) <= _SHORT else targets
    taken = rows.take(np.argsort(short, kind="stable"))
    ends = np.cumsum(counts)
    for index in np.flatnonzero(counts).tolist():
        part = slice(int(ends[index] - counts[index]), int(ends[index]))
        yield Partition(topic, index), taken.slice(part)


def _is_bytes(type_: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(type_)
        or types.is_large_string(type_)
        or types.is_binary(type_)
        or types.is_large_binary(type_)
        or types.is_fixed_size_binary(type_)
    )


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _is_key(type_: pa.DataType) -> bool:
    types = pa.types
    return _is_bytes(type_) or bool(types.is_integer(type_) or types.is_boolean(type_))


def _is_headers(type_: pa.DataType) -> bool:
    try:
        pa.nulls(0, type_).cast(HEADERS)
    except (pa.ArrowException, TypeError):
        return False
    return True


_FITS = {
    "topic_column": _is_text,
    "key": _is_key,
    "value": _is_bytes,
    "headers": _is_headers,
    "timestamp": pa.types.is_timestamp,
    "partition": pa.types.is_integer,
}
_NEEDS = {
    "topic_column": "a topic's name is a string",
    "key": "a key is binary or a string; whole numbers and booleans become text",
    "value": "a value is binary or a string; without value= all columns become JSON",
    "headers": "headers are list<struct<key: string, value: binary>>",
    "timestamp": "a record's time is a timestamp",
    "partition": "a partition is a whole number",
}
