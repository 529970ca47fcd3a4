"""Storage format of keyed state in a database. Arrow types alone decide the bytes.

A key is the key group (2 bytes, big-endian), the state's name (1 byte length, then UTF-8) and the
key's columns. A column is one byte, 0 for a null and 1 otherwise, then its word (8 bytes,
big-endian) or its length (4 bytes, big-endian) and bytes. So the keys of a range of key groups lie
together, across all states.

A value is *packed* when every column is integer-like or a float: per column one byte as above and 8
bytes, little-endian. A single other column is MessagePack if its type is text, bytes, or lists,
maps and structs that MessagePack keeps apart; otherwise an Arrow record batch of one row. Several
columns: `values.py`. No code is stored, no object is pickled.

Format, never change: checkpoints hold it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.channels.arrow_messages import has_compressed_body
from headrace.channels.keygroups import KeyGroups, key_groups

from ..arrays import Values, from_values, from_words, is_word_type, validity, values, words

#: Longest name of a state, in UTF-8: its length is one byte.
NAME_BYTES_MAX = 255

_WORD_BYTES = 8
_COLUMN_BYTES = 1 + _WORD_BYTES
Bytes = npt.NDArray[np.uint8]


class ValueCodec(Protocol):
    """Values of one state.

    Cells are Python objects as from `to_pylist`, of one-column states only.
    """

    def encode(self, arrays: Sequence[pa.Array]) -> list[bytes]:
        """Make the bytes of each row of the columns."""
        ...

    def decode(self, stored: Sequence[bytes]) -> list[pa.Array]:
        """Make the columns again."""
        ...

    def encode_cells(self, cells: Sequence[Any]) -> list[bytes]:
        """Make the bytes of Python values."""
        ...

    def decode_cells(self, stored: Sequence[bytes]) -> list[Any]:
        """Make the Python values again."""
        ...


class PackedValues:
    """Columns of fixed width side by side, vectorised."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._types = types
        self._width = _COLUMN_BYTES * len(types)

    def encode(self, arrays: Sequence[pa.Array]) -> list[bytes]:
        """See `ValueCodec`."""
        matrix: Bytes = np.empty((len(arrays[0]), self._width), np.uint8)
        for at, array in enumerate(arrays):
            _put(matrix, at * _COLUMN_BYTES, array, bits(array).astype("<i8", copy=False))
        return _rows(matrix)

    def decode(self, stored: Sequence[bytes]) -> list[pa.Array]:
        """See `ValueCodec`."""
        if not self._types:
            return []
        matrix = _matrix(stored, self._width)
        arrays = []
        for at, type_ in enumerate(self._types):
            valid, found = _take(matrix, at * _COLUMN_BYTES, "<i8")
            arrays.append(from_bits(found, type_, valid))
        return arrays

    def encode_cells(self, cells: Sequence[Any]) -> list[bytes]:
        """See `ValueCodec`."""
        return self.encode([pa.array(cells, self._types[0])])

    def decode_cells(self, stored: Sequence[bytes]) -> list[Any]:
        """See `ValueCodec`."""
        cells: list[Any] = self.decode(stored)[0].to_pylist()
        return cells


class PlainValues:
    """MessagePack of one column's cells."""

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._is_map = pa.types.is_map(type_)

    def encode(self, arrays: Sequence[pa.Array]) -> list[bytes]:
        """See `ValueCodec`."""
        return self.encode_cells(arrays[0].to_pylist())

    def decode(self, stored: Sequence[bytes]) -> list[pa.Array]:
        """See `ValueCodec`."""
        return [pa.array(self.decode_cells(stored), self._type)]

    def encode_cells(self, cells: Sequence[Any]) -> list[bytes]:
        """See `ValueCodec`."""
        return [msgspec.msgpack.encode(cell) for cell in cells]

    def decode_cells(self, stored: Sequence[bytes]) -> list[Any]:
        """See `ValueCodec`."""
        cells: list[Any] = [msgspec.msgpack.decode(value) for value in stored]
        if self._is_map:
            # MessagePack has no tuples, and pyarrow takes no lists for pairs.
            return [None if cell is None else [tuple(pair) for pair in cell] for cell in cells]
        return cells


class ArrowValues:
    """A record batch of one row a cell: large, but good for every type."""

    def __init__(self, type_: pa.DataType) -> None:
        self._schema = pa.schema([("value", type_)])

    def encode(self, arrays: Sequence[pa.Array]) -> list[bytes]:
        """See `ValueCodec`."""
        batch = pa.RecordBatch.from_arrays(list(arrays), schema=self._schema)
        return [batch.slice(row, 1).serialize().to_pybytes() for row in range(batch.num_rows)]

    def decode(self, stored: Sequence[bytes]) -> list[pa.Array]:
        """See `ValueCodec`."""
        if not stored:
            return [pa.array([], self._schema.field(0).type)]
        return [pa.concat_batches(map(self._batch, stored)).column(0)]

    def _batch(self, stored: bytes) -> pa.RecordBatch:
        """Read a cell, and validate it first: a checkpoint may be its source.

        Raises: pa.ArrowInvalid.
        """
        message = pa.ipc.read_message(pa.py_buffer(stored))
        if has_compressed_body(message):
            raise pa.ArrowInvalid("a value with a compressed body")
        batch = pa.ipc.read_record_batch(message, self._schema)
        batch.validate(full=True)
        return batch

    def encode_cells(self, cells: Sequence[Any]) -> list[bytes]:
        """See `ValueCodec`."""
        return self.encode([pa.array(cells, self._schema.field(0).type)])

    def decode_cells(self, stored: Sequence[bytes]) -> list[Any]:
        """See `ValueCodec`."""
        cells: list[Any] = self.decode(stored)[0].to_pylist()
        return cells


class KeyCodec:
    """Keys of one state: key group, the state's name, then the key columns `fields`."""

    def __init__(self, state: str, fields: Sequence[pa.Field], max_parallelism: int) -> None:
        name = state.encode()
        assert len(name) <= NAME_BYTES_MAX, f"the name of state {state!r} is too long to be stored"
        self.state = bytes([len(name)]) + name
        self._schema = pa.schema(fields)
        self._max_parallelism = max_parallelism
        self._words = [is_word_type(field.type) for field in fields]

    def encode(self, columns: Sequence[pa.Array], groups: KeyGroups | None = None) -> list[bytes]:
        """Make the stored key of each row of the key columns, which are not dictionary-encoded.

        Args:
            groups: the key group of each row, if not the group of all these columns.
        """
        batch = pa.RecordBatch.from_arrays(list(columns), schema=self._schema)
        if groups is None:
            groups = key_groups(batch, self._schema.names, self._max_parallelism)
        head = 2 + len(self.state)
        plain = all(self._words)
        width = head + (_COLUMN_BYTES * len(columns) if plain else 0)
        matrix: Bytes = np.empty((batch.num_rows, width), np.uint8)
        matrix[:, :2] = groups.astype(">u2").view(np.uint8).reshape(-1, 2)
        matrix[:, 2:head] = np.frombuffer(self.state, np.uint8)
        if plain:
            for at, column in enumerate(columns):
                _put(matrix, head + at * _COLUMN_BYTES, column, words(column).astype(">i8"))
            return _rows(matrix)
        parts = [
            _word_parts(column) if is_word else _object_parts(column)
            for column, is_word in zip(columns, self._words, strict=True)
        ]
        return [b"".join(row) for row in zip(_rows(matrix), *parts, strict=True)]

    def encode_sorted(
        self, columns: Sequence[pa.Array], groups: KeyGroups | None = None
    ) -> tuple[npt.NDArray[np.int64], list[bytes]]:
        """Make the stored keys in order. Returns also the row of each.

        Keys of words alone are sorted without comparing bytes.
        """
        if groups is None:
            batch = pa.RecordBatch.from_arrays(list(columns), schema=self._schema)
            groups = key_groups(batch, self._schema.names, self._max_parallelism)
        if not self.is_plain:
            stored = self.encode(columns, groups)
            order = sorted(range(len(stored)), key=stored.__getitem__)
            return np.array(order, np.int64), [stored[at] for at in order]
        rows = self.order(columns, groups)
        taken = pa.array(rows)
        return rows, self.encode([column.take(taken) for column in columns], groups[rows])

    @property
    def is_plain(self) -> bool:
        """Keys are words alone."""
        return all(self._words)

    def order(self, columns: Sequence[pa.Array], groups: KeyGroups) -> npt.NDArray[np.int64]:
        """Return the rows in the order of their stored keys, without holding the GIL.

        Keys that are not plain are in the order of their key groups only.
        """
        rows = np.arange(len(groups))
        # By the last part first, each time without disturbing the order so far.
        for column in reversed(columns if self.is_plain else ()):
            found = words(column).view(np.uint64)
            rows = rows.take(found.take(rows).argsort(kind="stable"))
            if (valid := validity(column)) is not None:
                rows = rows.take(valid.take(rows).argsort(kind="stable"))
        groups = groups.astype(np.uint16)
        return rows.take(groups.take(rows).argsort(kind="stable"))

    def encode_cells(self, keys: Sequence[Any]) -> list[bytes]:
        """Make the stored keys of Python keys: cells of the key column, or tuples for several."""
        columns = [keys] if len(self._schema) == 1 else list(zip(*keys, strict=True))
        return self.encode(
            [pa.array(c, f.type) for c, f in zip(columns, self._schema, strict=True)]
        )

    def decode(self, stored: Sequence[bytes]) -> list[pa.Array]:
        """Make the key columns again."""
        head = 2 + len(self.state)
        if all(self._words):
            matrix = _matrix(stored, head + _COLUMN_BYTES * len(self._schema))
            arrays = []
            for at, field in enumerate(self._schema):
                valid, found = _take(matrix, head + at * _COLUMN_BYTES, ">i8")
                arrays.append(from_words(found, field.type, valid))
            return arrays
        cells = [list(self._cells(key, head)) for key in stored]
        columns = list(zip(*cells, strict=True)) if cells else [()] * len(self._schema)
        return [
            _from_cells(column, field.type, is_word)
            for column, field, is_word in zip(columns, self._schema, self._words, strict=True)
        ]

    def _cells(self, key: bytes, at: int) -> Iterator[Any]:
        for is_word in self._words:
            valid = key[at]
            at += 1
            length = _WORD_BYTES if is_word else 4
            number = int.from_bytes(key[at : at + length], "big", signed=is_word)
            at += length
            if is_word:
                yield number if valid else None
            else:
                yield key[at : at + number] if valid else None
                at += number


def groups_of(stored: Sequence[bytes]) -> KeyGroups:
    """Tell the key groups of stored keys."""
    return np.frombuffer(b"".join(key[:2] for key in stored), ">u2").astype(np.uint16)


def _put(matrix: Bytes, at: int, array: pa.Array, found: Values) -> None:
    """Write a column of nine bytes; zero under a null."""
    valid = validity(array)
    matrix[:, at] = 1 if valid is None else valid
    matrix[:, at + 1 : at + _COLUMN_BYTES] = found.view(np.uint8).reshape(-1, _WORD_BYTES)


def _take(matrix: Bytes, at: int, dtype: str) -> tuple[npt.NDArray[np.bool_], Values]:
    valid = matrix[:, at] != 0
    raw = np.ascontiguousarray(matrix[:, at + 1 : at + _COLUMN_BYTES])
    return valid, raw.view(dtype).ravel().astype(np.int64)


def _matrix(stored: Sequence[bytes], width: int) -> Bytes:
    joined = b"".join(stored)
    assert len(joined) == width * len(stored), f"entries are not {width} bytes wide"
    return np.frombuffer(joined, np.uint8).reshape(-1, width)


def _rows(matrix: Bytes) -> list[bytes]:
    count, width = matrix.shape
    if not count or not width:
        return [b""] * count
    rows: list[bytes] = matrix.view(f"V{width}").ravel().tolist()
    return rows


def bits(array: pa.Array) -> Values:
    """Exactly the value, as an int64: unlike in a key, -0.0 is not 0.0."""
    found = values(array)
    if found.dtype.kind == "f":
        return found.astype(np.float64).view(np.int64)
    return found.view(np.int64) if found.dtype == np.uint64 else found.astype(np.int64)


def from_bits(found: Values, type_: pa.DataType, valid: npt.NDArray[np.bool_]) -> pa.Array:
    if pa.types.is_floating(type_):
        found = found.view(np.float64)
    elif pa.types.is_uint64(type_):
        found = found.view(np.uint64)
    return from_values(found, type_, valid)


def _word_parts(column: pa.Array) -> list[bytes]:
    matrix: Bytes = np.empty((len(column), _COLUMN_BYTES), np.uint8)
    _put(matrix, 0, column, words(column).astype(">i8"))
    return _rows(matrix)


def _object_parts(column: pa.Array) -> list[bytes]:
    cells = (cell.encode() if isinstance(cell, str) else cell for cell in column.to_pylist())
    return [
        b"\0\0\0\0\0" if cell is None else b"\1" + len(cell).to_bytes(4, "big") + cell
        for cell in cells
    ]


def _from_cells(cells: Sequence[Any], type_: pa.DataType, is_word: bool) -> pa.Array:
    if not is_word:
        return pa.array(cells, pa.binary()).cast(type_)
    valid = np.array([cell is not None for cell in cells], np.bool_)
    found = np.array([0 if cell is None else cell for cell in cells], np.int64)
    return from_words(found, type_, valid)


def is_plain(type_: pa.DataType) -> bool:
    """Return whether MessagePack gives back exactly the objects of `to_pylist`."""
    if pa.types.is_map(type_):
        return _is_plain_inside(type_.key_type) and _is_plain_inside(type_.item_type)
    return _is_plain_inside(type_)


def _is_plain_inside(type_: pa.DataType) -> bool:
    is_ = pa.types
    if is_.is_list(type_) or is_.is_large_list(type_):
        return _is_plain_inside(type_.value_type)
    if is_.is_struct(type_):
        return all(_is_plain_inside(type_.field(at).type) for at in range(type_.num_fields))
    return bool(
        is_.is_integer(type_)
        or is_.is_boolean(type_)
        or is_.is_floating(type_)
        or is_.is_string(type_)
        or is_.is_large_string(type_)
        or is_.is_binary(type_)
        or is_.is_large_binary(type_)
    )
