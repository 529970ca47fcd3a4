"""Slots of whole keys: one column or several, of any type that can be a key.

Every column maps its values to codes; two codes make one int64 word, which maps to a code again. So
a key of n columns costs 2n - 1 lookups, each vectorised. Strings and binaries go through a Python
dictionary, once per distinct value of a batch.

Columns never free codes, even when no key uses a code: keyed columnar state has no deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Protocol

import numpy as np
import pyarrow as pa

from .arrays import Words, from_words, is_word_type, validity, words
from .slots import IntegerSlots, Slots

#: Makes the column of all captured values, in the order of their codes. For any thread.
FrozenValues = Callable[[], pa.Array]

#: Of a dictionary's entry, its key and its code, without the key's content.
_ENTRY_BYTES = 160
_CODE_BITS = 32
_CODE_MASK = (1 << _CODE_BITS) - 1


class _ColumnSlots(Protocol):
    """Codes of one key column."""

    @property
    def count(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    def lookup(self, array: pa.Array) -> Slots: ...

    def take(self, codes: Slots) -> pa.Array: ...

    def freeze(self) -> FrozenValues: ...


class WordColumnSlots:
    """Codes of a column of integer-like values."""

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._slots = IntegerSlots()

    @property
    def count(self) -> int:
        """Number of codes, with the code of null."""
        return self._slots.count

    @property
    def size_bytes(self) -> int:
        """Memory of all values."""
        return self._slots.size_bytes

    def lookup(self, array: pa.Array) -> Slots:
        """Return the code of each row; new values get new codes."""
        return self._slots.lookup(words(array), validity(array))

    def take(self, codes: Slots) -> pa.Array:
        """Return the value of each code."""
        valid = None if self._slots.null_slot < 0 else codes != self._slots.null_slot
        return from_words(self._slots.words(self.count)[codes], self._type, valid)

    def freeze(self) -> FrozenValues:
        """Capture the values known now."""
        # Read the null slot first: a null slot that appears meanwhile lies beyond `count`.
        null_slot = self._slots.null_slot
        count = self._slots.count
        known = self._slots.words(count)
        type_ = self._type

        def column() -> pa.Array:
            valid = None if null_slot < 0 else np.arange(count) != null_slot
            return from_words(known, type_, valid)

        return column


class ObjectColumnSlots:
    """Codes of a column whose values have no word: strings, binaries."""

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        self._codes: dict[object, int] = {}
        #: The values in the order of their codes. Replaced, never changed: a snapshot may keep the
        #: array.
        self._chunks: tuple[pa.Array, ...] = ()

    @property
    def count(self) -> int:
        """Number of codes, with the code of null."""
        return len(self._codes)

    @property
    def size_bytes(self) -> int:
        """Memory of all values, each once in a column and once in a dictionary."""
        content: int = sum(chunk.nbytes for chunk in self._chunks)
        return 2 * content + _ENTRY_BYTES * len(self._codes)

    def lookup(self, array: pa.Array) -> Slots:
        """Return the code of each row; new values get new codes."""
        encoded = array.dictionary_encode(null_encoding="encode")
        distinct = encoded.dictionary
        codes = self._codes
        known = len(codes)
        # Several times faster than `to_pylist`.
        objects = distinct.to_numpy(zero_copy_only=False).tolist()
        code_of = np.fromiter(map(codes.get, objects, repeat(-1)), np.int64, len(objects))
        new = np.flatnonzero(code_of < 0)
        if len(new):
            code_of[new] = np.arange(known, known + len(new))
            codes.update(zip([objects[i] for i in new], code_of[new].tolist(), strict=True))
            self._append(distinct.take(pa.array(new)))
        indices: Slots = encoded.indices.to_numpy()
        return code_of.take(indices)

    def take(self, codes: Slots) -> pa.Array:
        """Return the value of each code."""
        return pa.chunked_array(self._chunks, self._type).take(pa.array(codes)).combine_chunks()

    def freeze(self) -> FrozenValues:
        """Capture the values known now."""
        chunks = self._chunks
        type_ = self._type
        return lambda: pa.concat_arrays(chunks) if chunks else pa.array([], type_)

    def _append(self, new: pa.Array) -> None:
        chunks = [*self._chunks, new]
        # Merge like a binary counter: few chunks, and each value is copied a logarithmic number of
        # times.
        while len(chunks) > 1 and 2 * len(chunks[-1]) >= len(chunks[-2]):
            chunks[-2:] = [pa.concat_arrays(chunks[-2:])]
        self._chunks = tuple(chunks)


class KeySlots:
    """Slots of the keys of an operator.

    Attributes:
        fields: the key columns; dictionary-encoded ones with the type of their values.
        committed: number of published slots; the rest, up to `count`, is provisional.
    """

    def __init__(self, schema: pa.Schema, names: Sequence[str]) -> None:
        self.fields = [_decoded(schema.field(name)) for name in names]
        assert self.fields, "a key needs at least one column"
        self.committed = 0
        self._columns: list[_ColumnSlots] = [
            WordColumnSlots(field.type)
            if is_word_type(field.type)
            else ObjectColumnSlots(field.type)
            for field in self.fields
        ]
        #: Entry i joins the code of the columns up to i with that of column i + 1.
        self._pairs = [IntegerSlots() for _ in self._columns[1:]]

    @property
    def count(self) -> int:
        """Number of known keys, with provisional slots."""
        return self._pairs[-1].count if self._pairs else self._columns[0].count

    @property
    def size_bytes(self) -> int:
        """Memory of all keys."""
        columns = sum(column.size_bytes for column in self._columns)
        return columns + sum(pair.size_bytes for pair in self._pairs)

    def lookup(self, batch: pa.RecordBatch) -> Slots:
        """Return the slot of each row's key; new keys get provisional slots. Subtask thread."""
        codes = [
            slots.lookup(_decode(batch.column(field.name)))
            for field, slots in zip(self.fields, self._columns, strict=True)
        ]
        result = codes[0]
        for pair, code in zip(self._pairs, codes[1:], strict=True):
            result = pair.lookup((result << _CODE_BITS) | code)
        return result

    def commit(self) -> None:
        """Publish the provisional slots. Owner thread, while no work runs."""
        self.committed = self.count

    def freeze(self) -> Callable[[], list[pa.Array]]:
        """Capture the committed keys; the result makes the key columns, in slot order.

        Owner thread.

        Any thread may call the result.
        """
        return self._capture(self.committed)

    def columns(self) -> list[pa.Array]:
        """Make the columns of all keys, with provisional slots, in slot order. Subtask thread."""
        return self._capture(self.count)()

    def take(self, slots: Slots) -> list[pa.Array]:
        """Make the key columns of some slots, also provisional slots. Subtask thread."""
        taken: list[pa.Array] = []
        codes = slots
        for pair, column in zip(reversed(self._pairs), reversed(self._columns[1:]), strict=True):
            joined = pair.words(pair.count)[codes]
            taken.append(column.take(joined & _CODE_MASK))
            codes = joined >> _CODE_BITS
        return [self._columns[0].take(codes), *taken[::-1]]

    def _capture(self, count: int) -> Callable[[], list[pa.Array]]:
        frozen = [column.freeze() for column in self._columns]
        if not self._pairs:
            return lambda: [frozen[0]().slice(0, count)]
        # A committed pair consists of committed pairs and codes, which the capture holds.
        pairs = [pair.words(pair.count) for pair in self._pairs]
        return lambda: _unfold(frozen, pairs, count)


def _unfold(frozen: Sequence[FrozenValues], pairs: Sequence[Words], count: int) -> list[pa.Array]:
    columns: list[pa.Array] = []
    joined = pairs[-1][:count]
    for pair, column in zip(reversed(range(len(pairs))), reversed(frozen[1:]), strict=True):
        columns.append(column().take(pa.array(joined & _CODE_MASK)))
        left = joined >> _CODE_BITS
        joined = pairs[pair - 1][left] if pair else left
    columns.append(frozen[0]().take(pa.array(joined)))
    return columns[::-1]


def _decoded(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field


def _decode(array: pa.Array) -> pa.Array:
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
