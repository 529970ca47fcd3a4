"""The codec of a state's values; several columns are a MessagePack array, an item a column.

The item of an integer-like column or a float is the bits as an integer; of text, bytes and nestings
of both the cell itself; of a dictionary-encoded column the value; of any other type an Arrow record
batch of one row in bytes. A null is always nil.

Format, never change: checkpoints hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from ..arrays import is_word_type, validity
from .codecs import (
    ArrowValues,
    PackedValues,
    PlainValues,
    ValueCodec,
    bits,
    from_bits,
    is_plain,
)


def value_codec(fields: Sequence[pa.Field]) -> ValueCodec:
    """Choose by the types of the columns."""
    types = [field.type for field in fields]
    if all(is_word_type(type_) for type_ in types):
        return PackedValues(types)
    if len(types) > 1:
        return RowValues(types)
    return PlainValues(types[0]) if is_plain(types[0]) else ArrowValues(types[0])


class _Items(Protocol):
    """The items of a column."""

    def items(self, array: pa.Array) -> list[Any]: ...

    def array(self, items: Sequence[Any]) -> pa.Array: ...


class RowValues:
    """Several columns, at least one without fixed width."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._columns = [_items(type_) for type_ in types]

    def encode(self, arrays: Sequence[pa.Array]) -> list[bytes]:
        """See `ValueCodec`."""
        columns = [c.items(array) for c, array in zip(self._columns, arrays, strict=True)]
        return [msgspec.msgpack.encode(row) for row in zip(*columns, strict=True)]

    def decode(self, stored: Sequence[bytes]) -> list[pa.Array]:
        """See `ValueCodec`."""
        rows = [msgspec.msgpack.decode(value) for value in stored]
        columns = zip(*rows, strict=True) if rows else [()] * len(self._columns)
        return [c.array(items) for c, items in zip(self._columns, columns, strict=True)]

    def encode_cells(self, cells: Sequence[Any]) -> list[bytes]:
        """States of several columns have no cells."""
        raise NotImplementedError

    def decode_cells(self, stored: Sequence[bytes]) -> list[Any]:
        """States of several columns have no cells."""
        raise NotImplementedError


def _items(type_: pa.DataType) -> _Items:
    if is_word_type(type_):
        return _Words(type_)
    if pa.types.is_dictionary(type_):
        return _Decoded(type_)
    return _Plain(type_) if is_plain(type_) else _Arrow(type_)


class _Words:
    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_

    def items(self, array: pa.Array) -> list[Any]:
        found: list[Any] = bits(array).tolist()
        valid = validity(array)
        if valid is not None:
            for row in np.flatnonzero(~valid):
                found[row] = None
        return found

    def array(self, items: Sequence[Any]) -> pa.Array:
        valid = np.array([item is not None for item in items], np.bool_)
        found = np.array([0 if item is None else item for item in items], np.int64)
        return from_bits(found, self._type, valid)


class _Plain:
    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._is_map = pa.types.is_map(type_)

    def items(self, array: pa.Array) -> list[Any]:
        found: list[Any] = array.to_pylist()
        return found

    def array(self, items: Sequence[Any]) -> pa.Array:
        if self._is_map:
            # MessagePack has no tuples, and pyarrow takes no lists for pairs.
            items = [None if i is None else [tuple(pair) for pair in i] for i in items]
        return pa.array(items, self._type)


class _Decoded:
    """Dictionary-encoded columns: a batch's dictionary does not fit the next batch."""

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._values = _items(type_.value_type)

    def items(self, array: pa.Array) -> list[Any]:
        return self._values.items(array.dictionary_decode())

    def array(self, items: Sequence[Any]) -> pa.Array:
        return self._values.array(items).dictionary_encode().cast(self._type)


class _Arrow:
    def __init__(self, type_: pa.DataType) -> None:
        self._values = ArrowValues(type_)

    def items(self, array: pa.Array) -> list[Any]:
        return self._values.encode([array])

    def array(self, items: Sequence[Any]) -> pa.Array:
        return self._values.decode(items)[0]
