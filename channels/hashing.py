"""Hash rows by their key columns, alike on every machine and in every version.

The hash decides which key group a record belongs to, and checkpoints store state by key group: a
change of one bit makes every savepoint unreadable. So the algorithm is our own, small, and written
down with test vectors in docs/key-hash.md. Hashes of libraries (polars, pandas, Python's own) were
rejected because no library promises to keep them.

Everything works on whole columns; there is no Python loop over rows. The hash of a string is a
*sum* over its 8-byte words, because a sum can be taken word by word over many short strings or all
at once over one long string, with an equal result.

The hash is not keyed: an author of keys can send all records to one subtask. The hash is no digest
either.

Source: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
2014).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]
_T = TypeVar("_T", bound=np.generic)

# Format, never change: the constants of SplitMix64, the hash of null, the words of -0.0 and of NaN.
GAMMA = 0x9E3779B97F4A7C15
MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
NULL_HASH = np.uint64(0x6E756C6C6B657921)
NEGATIVE_ZERO = np.uint64(0x8000000000000000)
INFINITY = np.uint64(0x7FF0000000000000)
QUIET_NAN = np.uint64(0x7FF8000000000000)

_WORD_MAX = 0xFFFFFFFFFFFFFFFF
#: {number of bytes left, 0 to 8: mask of so many low bytes of a little-endian word}.
_KEEP = np.array([(1 << 8 * left) - 1 for left in range(9)], dtype=np.uint64)
#: Rows hashed at a time: temporaries then stay in the cache and below malloc's mmap threshold (2-3
#: times faster).
_BLOCK_ROWS = 8192
#: With fewer unfinished strings than this, the rest is hashed at once instead of word by word.
_STRIDE_ROWS_MIN = 128


def hash_rows(batch: pa.RecordBatch, columns: Sequence[str]) -> Hashes:
    """Hash every row over `columns`, in their order.

    Returns: one uint64 per row; a fresh array that the caller may overwrite.
    Raises: ValueError when no column is named or a column does not exist; TypeError when a column's
        type has no key hash.
    """
    hashers = key_hashers(batch.schema, columns)
    if batch.num_rows == 0:
        return np.empty(0, np.uint64)
    result: Hashes | None = None
    for name, hasher in zip(columns, hashers, strict=True):
        hashes = hasher(batch.column(name))
        if result is None:
            result = hashes
        else:
            result *= np.uint64(GAMMA)
            result += hashes
            result = _mix(result)
    assert result is not None, "key_hashers refuses an empty list of columns"
    return result


def key_hashers(schema: pa.Schema, columns: Sequence[str]) -> list[Callable[[pa.Array], Hashes]]:
    """Find the hash of each column. Planning calls it to refuse a bad key before the job starts.

    Raises: ValueError when no column is named, or a column is missing or ambiguous; TypeError when
        a column's type has no key hash.
    """
    if not columns:
        raise ValueError("a key needs at least one column")
    hashers = []
    for name in columns:
        index = schema.get_field_index(name)
        if index < 0:
            raise ValueError(
                f"key column {name!r} does not exist exactly once among {schema.names}"
            )
        hasher = _hasher(schema.field(index).type)
        if hasher is None:
            raise TypeError(
                f"column {name!r} of type {schema.field(index).type} cannot be a key: "
                "keys are integers, float32/64, booleans, strings, binaries, dates, times, "
                "timestamps and durations; cast it in a select, a decimal to a string"
            )
        hashers.append(hasher)
    return hashers


def _hasher(type_: pa.DataType) -> Callable[[pa.Array], Hashes] | None:
    is_ = pa.types
    if is_.is_integer(type_) or (is_.is_temporal(type_) and not is_.is_interval(type_)):
        return _hash_integers
    if is_.is_float32(type_) or is_.is_float64(type_):
        return _hash_floats
    if is_.is_boolean(type_):
        return _hash_booleans
    if is_.is_fixed_size_binary(type_) and not is_.is_decimal(type_):
        return _hash_fixed_size_binaries
    if is_.is_string(type_) or is_.is_binary(type_):
        return _hash_binaries
    if is_.is_large_string(type_) or is_.is_large_binary(type_):
        return _hash_binaries
    if is_.is_dictionary(type_) and _hasher(type_.value_type) is not None:
        return _hash_dictionary
    return None


def _mix(words: Hashes) -> Hashes:
    """SplitMix64 with `words` as seeds, in place."""
    scratch = np.empty_like(words)
    words += np.uint64(GAMMA)
    np.right_shift(words, np.uint64(30), out=scratch)
    words ^= scratch
    words *= MULTIPLIER_1
    np.right_shift(words, np.uint64(27), out=scratch)
    words ^= scratch
    words *= MULTIPLIER_2
    np.right_shift(words, np.uint64(31), out=scratch)
    words ^= scratch
    return words


def _hash_integers(array: pa.Array) -> Hashes:
    """Integers, and temporal values in their own unit: the value as 64-bit two's complement."""
    kind = "<u" if pa.types.is_unsigned_integer(array.type) else "<i"
    values = _values(array, np.dtype(f"{kind}{array.type.bit_width // 8}"))
    wide = np.uint64 if kind == "<u" else np.int64
    return _with_nulls(_mix(values.astype(wide).view(np.uint64)), array)


def _hash_booleans(array: pa.Array) -> Hashes:
    """Booleans: as the integers 0 and 1."""
    values = _bits(array.buffers()[1], array.offset, len(array))
    return _with_nulls(_mix(values.astype(np.uint64)), array)


def _hash_floats(array: pa.Array) -> Hashes:
    """Floats: the IEEE 754 bits of the value as float64; both zeros are one value, and all NaNs."""
    values = _values(array, np.dtype(f"<f{array.type.bit_width // 8}"))
    with np.errstate(invalid="ignore"):  # a signalling NaN, or garbage under a null, is no mistake
        words = values.astype(np.float64).view(np.uint64)
    # Compared as integers: a process that flushes subnormals would turn them to zero.
    words[words == NEGATIVE_ZERO] = 0
    words[(words & ~NEGATIVE_ZERO) > INFINITY] = QUIET_NAN
    return _with_nulls(_mix(words), array)


def _hash_fixed_size_binaries(array: pa.Array) -> Hashes:
    """Fixed-size binaries: as binaries of that length."""
    width = array.type.byte_width
    offsets = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * width
    return _with_nulls(_hash_bytes(array.buffers()[1], offsets), array)


def _hash_binaries(array: pa.Array) -> Hashes:
    """Strings (their UTF-8 bytes) and binaries, with 32-bit or 64-bit offsets."""
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    stored = np.frombuffer(array.buffers()[1], "<i8" if large else "<i4")
    offsets = stored[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return _with_nulls(_hash_bytes(array.buffers()[2], offsets), array)


def _hash_dictionary(array: pa.Array) -> Hashes:
    """Dictionary-encoded values: each as its value."""
    if len(array.dictionary) == 0:
        return np.full(len(array), NULL_HASH)
    hasher = _hasher(array.type.value_type)
    assert hasher is not None, "key_hashers refuses dictionaries of other values"
    codes = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
    hashes: Hashes = hasher(array.dictionary)[codes]
    hashes[array.indices.is_null().to_numpy(zero_copy_only=False)] = NULL_HASH
    return hashes


def _hash_bytes(data: pa.Buffer, offsets: npt.NDArray[np.int64]) -> Hashes:
    """Hash the byte strings `data[offsets[i] : offsets[i + 1]]`."""
    count = len(offsets) - 1
    hashes = np.empty(count, np.uint64)
    source = np.frombuffer(data, np.uint8)
    for first in range(0, count, _BLOCK_ROWS):
        block = offsets[first : first + _BLOCK_ROWS + 1]
        # Copied, because the last word may reach up to eight bytes beyond the end of the buffer.
        padded = np.zeros(block[-1] - block[0] + 8, np.uint8)
        padded[:-8] = source[block[0] : block[-1]]
        hashes[first : first + _BLOCK_ROWS] = _hash_block(padded, block - block[0])
    return hashes


def _hash_block(padded: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Hashes:
    """Sum the mixed words of each string, one word of all unfinished strings at a time."""
    #: An unaligned word begins at every byte.
    words = np.ndarray((len(padded) - 7,), "<u8", padded.data, 0, (1,))
    lengths = np.diff(offsets)
    sums = lengths.astype(np.uint64)
    shortest = int(lengths.min())
    #: Strings that have bytes left: a slice for as long as that is all of them (saves the gathers).
    rows: slice | npt.NDArray[np.int64] = slice(None) if shortest else np.flatnonzero(lengths)
    starts, left = offsets[:-1][rows], lengths[rows]
    word = 0
    while len(left) >= _STRIDE_ROWS_MIN:
        loaded = words[starts]
        if shortest < 8 * (word + 1):
            loaded &= _KEEP.take(np.minimum(left, 8))
        loaded += _step(word)
        sums[rows] += _mix(loaded)
        word += 1
        if shortest <= 8 * word:
            more = np.flatnonzero(left > 8)
            rows = more if isinstance(rows, slice) else rows[more]
            starts, left = starts[more], left[more]
        starts, left = starts + 8, left - 8
    if len(left):
        sums[rows] += _sum_rest(words, starts, left, word)
    return _mix(sums)


def _sum_rest(
    words: Hashes, starts: npt.NDArray[np.int64], left: npt.NDArray[np.int64], word: int
) -> Hashes:
    """Sum the mixed words of few, possibly long strings at once, from word number `word` on."""
    counts = (left + 7) >> 3
    firsts = np.cumsum(counts) - counts
    index = np.arange(counts.sum()) - np.repeat(firsts, counts)
    loaded = words[np.repeat(starts, counts) + 8 * index]
    loaded &= _KEEP.take(np.minimum(np.repeat(left, counts) - 8 * index, 8))
    loaded += index.astype(np.uint64) * np.uint64(GAMMA) + _step(word)
    sums: Hashes = np.add.reduceat(_mix(loaded), firsts)
    return sums


def _step(word: int) -> np.uint64:
    """The addend of word number `word`, by which equal words at other places count otherwise."""
    return np.uint64(word * GAMMA & _WORD_MAX)


def _with_nulls(hashes: Hashes, array: pa.Array) -> Hashes:
    if array.null_count:
        valid = _bits(array.buffers()[0], array.offset, len(array))
        hashes[valid == 0] = NULL_HASH
    return hashes


def _bits(buffer: pa.Buffer, offset: int, count: int) -> npt.NDArray[np.uint8]:
    """Unpack `count` bits from bit `offset` on, one byte each."""
    first, skip = divmod(offset, 8)
    packed = np.frombuffer(buffer, np.uint8)[first : (offset + count + 7) // 8]
    return np.unpackbits(packed, bitorder="little")[skip : skip + count]


def _values(array: pa.Array, dtype: np.dtype[_T]) -> npt.NDArray[_T]:
    """View the value buffer of a fixed-width array; what lies under nulls is arbitrary."""
    return np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]
