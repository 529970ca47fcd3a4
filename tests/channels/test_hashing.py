"""The hash against a scalar reference written from docs/key-hash.md, and against frozen test
vectors.
"""

from __future__ import annotations

import math
import re
import struct
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.hashing import hash_rows, key_hashers

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
NULL = 0x6E756C6C6B657921

Scalar = int | float | str | bytes | bool | None

# Format, never change: (type, value, hash). The same table stands in docs/key-hash.md.
VECTORS: list[tuple[pa.DataType, Scalar, int]] = [
    (pa.int64(), 0, 0xE220A8397B1DCDAF),
    (pa.int64(), 1, 0x910A2DEC89025CC1),
    (pa.int64(), -1, 0xE4D971771B652C20),
    (pa.int64(), 42, 0xBDD732262FEB6E95),
    (pa.int32(), 42, 0xBDD732262FEB6E95),
    (pa.uint64(), (1 << 64) - 1, 0xE4D971771B652C20),
    (pa.int64(), -(1 << 63), 0x481EC0A212A9F3DB),
    (pa.bool_(), True, 0x910A2DEC89025CC1),
    (pa.float64(), 1.0, 0x88D7C35BBBF3EDED),
    (pa.float32(), 0.1, 0xAA508B85B52FE89C),
    (pa.float64(), -0.0, 0xE220A8397B1DCDAF),
    (pa.float64(), float("nan"), 0xC72971D82E15BB46),
    (pa.string(), "", 0xE220A8397B1DCDAF),
    (pa.string(), "a", 0xD442DD5B42960211),
    (pa.string(), "headrace", 0x872EF7BD45754CDF),
    (pa.string(), "headrace!", 0xFCF5E0F41B7537BE),
    (pa.string(), "Müller", 0x5E75576744CD8AC1),
    (pa.binary(), bytes(range(20)), 0x056A777C5050562A),
    (pa.date32(), 20000, 0xE7AA7324AE5D121E),
    (pa.timestamp("us"), 1700000000000000, 0xB7B8B1FCBDA40E0F),
    (pa.string(), None, 0x6E756C6C6B657921),
]
# The row (1 as int64, "x" as string), keyed by both columns in either order.
COMBINED_AB = 0x74602C28E504E079
COMBINED_BA = 0xC710CF7FE343989D


def mix(seed: int) -> int:
    word = (seed + GAMMA) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & MASK
    return word ^ (word >> 31)


def reference(value: Scalar) -> int:
    match value:
        case None:
            return NULL
        case bool() | int():
            return mix(int(value) & MASK)
        case float():
            if math.isnan(value):
                return mix(0x7FF8000000000000)
            return mix(int(struct.unpack("<Q", struct.pack("<d", value))[0]) if value else 0)
        case str():
            return reference(value.encode())
        case bytes():
            total = len(value)
            for index in range(0, len(value), 8):
                word = int.from_bytes(value[index : index + 8], "little")
                total += mix(word + index // 8 * GAMMA)
            return mix(total & MASK)


def combine(hashes: list[int]) -> int:
    result = hashes[0]
    for value in hashes[1:]:
        result = mix((result * GAMMA + value) & MASK)
    return result


def hashes_of(array: pa.Array) -> list[int]:
    batch = pa.RecordBatch.from_arrays([array], names=["k"])
    return [int(value) for value in hash_rows(batch, ["k"])]


@pytest.mark.parametrize(("type_", "value", "expected"), VECTORS)
def test_frozen_vectors_hold(type_: pa.DataType, value: Scalar, expected: int) -> None:
    assert hashes_of(pa.array([value], type_)) == [expected]


def test_frozen_vectors_of_several_columns_hold() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1], "b": ["x"]})
    assert hash_rows(batch, ["a", "b"]).tolist() == [COMBINED_AB]
    assert hash_rows(batch, ["b", "a"]).tolist() == [COMBINED_BA]


def test_the_document_shows_the_frozen_vectors() -> None:
    document = Path(__file__).parents[2] / "docs" / "key-hash.md"
    shown = {
        int(text, 16)
        for text in re.findall(r"`0x([0-9a-f]{16})`", document.read_text(encoding="utf-8"))
    }
    assert {expected for _, _, expected in VECTORS} | {COMBINED_AB, COMBINED_BA} <= shown


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
INTEGERS += [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


@pytest.mark.parametrize("type_", INTEGERS, ids=str)
def test_equal_integers_of_every_width_hash_equal(type_: pa.DataType) -> None:
    values = [0, 1, 7, 127]
    if pa.types.is_signed_integer(type_):
        values += [-1, -128]
    assert hashes_of(pa.array(values, type_)) == [reference(value) for value in values]


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.none()))
def test_integers_hash_as_the_reference(values: list[int | None]) -> None:
    assert hashes_of(pa.array(values, pa.int64())) == [reference(value) for value in values]


@given(st.lists(st.floats() | st.none()))
def test_floats_hash_as_the_reference(values: list[float | None]) -> None:
    assert hashes_of(pa.array(values, pa.float64())) == [reference(value) for value in values]


@given(st.lists(st.floats(width=32)))
def test_float32_hashes_as_its_float64_value(values: list[float]) -> None:
    assert hashes_of(pa.array(values, pa.float32())) == [reference(value) for value in values]


def test_both_zeros_are_one_key_and_all_nans_are_one_key() -> None:
    words = [0x8000000000000000, 0, 0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001]
    floats = np.array(words, np.uint64).view(np.float64)
    hashes = hashes_of(pa.array(floats, from_pandas=False))
    assert hashes[0] == hashes[1]
    assert len(set(hashes[2:])) == 1
    assert hashes[0] != hashes[2]


BYTES = [pa.binary(), pa.large_binary()]


@given(st.lists(st.binary(max_size=40) | st.none(), max_size=300), st.sampled_from(BYTES))
def test_binaries_hash_as_the_reference(values: list[bytes | None], type_: pa.DataType) -> None:
    assert hashes_of(pa.array(values, type_)) == [reference(value) for value in values]


@pytest.mark.parametrize("rows", [1, 127, 128, 129, 1000, 20_000])
@pytest.mark.parametrize("lengths", [(0, 1), (8, 9), (16, 17), (0, 40), (3, 4)], ids=str)
def test_strings_hash_as_the_reference_at_every_shape(rows: int, lengths: tuple[int, int]) -> None:
    rng = np.random.default_rng(rows)
    values = [rng.bytes(int(length)) for length in rng.integers(*lengths, size=rows)]
    assert hashes_of(pa.array(values, pa.binary())) == [reference(value) for value in values]


@pytest.mark.parametrize("others", [0, 127, 500])
def test_one_long_string_among_short_ones_hashes_as_the_reference(others: int) -> None:
    values = ["ab" * 5000, *(f"key {index}" for index in range(others)), "", "c" * 4095]
    assert hashes_of(pa.array(values)) == [reference(value) for value in values]


TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(6)]


@pytest.mark.parametrize("type_", TEXTS, ids=str)
def test_equal_bytes_hash_equal_whatever_their_type(type_: pa.DataType) -> None:
    values = ["abcdef", "ghijkl", None]
    array = pa.array(values).cast(pa.binary()).cast(type_)
    assert hashes_of(array) == [reference(value) for value in values]


def test_dictionary_encoded_values_hash_as_their_values() -> None:
    values = ["a", None, "b", "a"]
    array = pa.array(values).dictionary_encode()
    assert hashes_of(array) == [reference(value) for value in values]
    assert hashes_of(array.slice(1, 2)) == [reference(value) for value in values[1:3]]
    assert hashes_of(pa.array([None, None], pa.dictionary(pa.int8(), pa.string()))) == [NULL, NULL]


def test_padding_does_not_make_strings_equal() -> None:
    values = ["", "\0", "\0\0", "a", "a\0", "a" * 8, "a" * 8 + "\0"]
    assert len(set(hashes_of(pa.array(values)))) == len(values)


SLICEABLE: list[pa.Array] = [
    pa.array([None if index % 7 == 0 else index * 3 for index in range(100)]),
    pa.array([None if index % 7 == 0 else index % 2 == 0 for index in range(100)]),
    pa.array([None if index % 7 == 0 else index / 3 for index in range(100)]),
    pa.array([None if index % 7 == 0 else "x" * (index % 30) for index in range(100)]),
    pa.array([None if index % 7 == 0 else b"%03d" % index for index in range(100)], pa.binary(3)),
    pa.array(
        [None if index % 7 == 0 else str(index % 5) for index in range(100)]
    ).dictionary_encode(),
]


@pytest.mark.parametrize("array", SLICEABLE, ids=lambda array: str(array.type))
@pytest.mark.parametrize(("start", "length"), [(0, 100), (1, 99), (9, 1), (13, 40), (50, 0)])
def test_a_slice_hashes_as_its_rows(array: pa.Array, start: int, length: int) -> None:
    assert hashes_of(array.slice(start, length)) == hashes_of(array)[start : start + length]


TEMPORAL = [pa.date32(), pa.time32("s"), pa.time64("us"), pa.timestamp("s"), pa.duration("ns")]
TEMPORAL += [pa.timestamp(unit, "UTC") for unit in ("s", "ms", "us", "ns")]


@pytest.mark.parametrize("type_", TEMPORAL, ids=str)
def test_temporal_values_hash_as_the_integer_of_their_unit(type_: pa.DataType) -> None:
    width = pa.int32() if type_.bit_width == 32 else pa.int64()
    array = pa.array([0, 5, 86_399], width).cast(type_)
    assert hashes_of(array) == [reference(value) for value in (0, 5, 86_399)]


def test_date64_hashes_its_milliseconds() -> None:
    assert hashes_of(pa.array([date(1970, 1, 3)], pa.date64())) == [reference(2 * 86_400_000)]


@given(st.lists(st.tuples(st.integers(0, 9) | st.none(), st.text(max_size=3), st.booleans())))
def test_columns_combine_in_order(rows: list[tuple[int | None, str, bool]]) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.bool_())])
    batch = pa.RecordBatch.from_pylist([dict(zip("abc", row, strict=True)) for row in rows], schema)
    for order in ([0], [0, 1, 2], [2, 0], [1, 1]):
        expected = [combine([reference(row[index]) for index in order]) for row in rows]
        assert hash_rows(batch, ["abc"[index] for index in order]).tolist() == expected


@pytest.mark.parametrize("array", SLICEABLE, ids=lambda array: str(array.type))
def test_an_empty_batch_has_no_hashes(array: pa.Array) -> None:
    assert hashes_of(pa.array([], array.type)) == []


def test_hashing_leaves_the_batch_alone() -> None:
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "f": [0.5, -0.0], "s": ["x", "y"]})
    copy = pa.RecordBatch.from_pydict({"a": [1, 2], "f": [0.5, -0.0], "s": ["x", "y"]})
    hash_rows(batch, ["a", "f", "s"])
    assert batch.equals(copy)


REFUSED: list[pa.Array] = [
    pa.array([Decimal("1.5")]),
    pa.array([1.0], pa.float16()),
    pa.array([[1]]),
    pa.array([{"x": 1}]),
    pa.nulls(1),
    pa.array(["a"], pa.string_view()),
    pa.array([Decimal("1.5")]).dictionary_encode(),
]


@pytest.mark.parametrize("array", REFUSED, ids=lambda array: str(array.type))
def test_other_types_are_refused_by_column_and_type(array: pa.Array) -> None:
    batch = pa.RecordBatch.from_arrays([array], names=["price"])
    message = f"column 'price' of type {re.escape(str(array.type))} cannot be a key"
    with pytest.raises(TypeError, match=message):
        hash_rows(batch, ["price"])


def test_a_key_needs_columns_that_exist_once() -> None:
    integer = pa.array([1])
    batch = pa.RecordBatch.from_arrays([integer, integer, integer], names=["a", "b", "b"])
    with pytest.raises(ValueError, match="at least one column"):
        hash_rows(batch, [])
    with pytest.raises(
        ValueError, match=r"'z' does not exist exactly once among \['a', 'b', 'b'\]"
    ):
        key_hashers(batch.schema, ["z"])
    with pytest.raises(ValueError, match="'b' does not exist exactly once"):
        hash_rows(batch, ["a", "b"])


def test_sequential_keys_spread_evenly_over_upper_and_lower_bits() -> None:
    for array in (pa.array(range(64_000)), pa.array([f"user-{index}" for index in range(64_000)])):
        hashes = np.array(hashes_of(array), np.uint64)
        for part in (hashes >> np.uint64(58), hashes & np.uint64(63)):
            counts = np.bincount(part.astype(np.int64), minlength=64)
            assert counts.min() > 850
            assert counts.max() < 1150
