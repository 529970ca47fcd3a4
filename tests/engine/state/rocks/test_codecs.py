"""Keys and values as bytes: what comes out is what went in, equal keys are equal bytes, and key
groups lie together.
"""

from __future__ import annotations

import datetime as dt
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.keygroups import key_groups
from headrace.engine.state.rocks.codecs import ArrowValues, KeyCodec, PackedValues, PlainValues
from headrace.engine.state.rocks.files import group_start
from headrace.engine.state.rocks.values import value_codec

KEYS = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float32())])
ROW = st.tuples(
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    st.none() | st.text(max_size=5),
    st.none() | st.floats(width=32, allow_nan=False).filter(lambda x: x != 0 or str(x) == "0.0"),
)
NESTED = pa.list_(pa.struct([("x", pa.int32()), ("y", pa.map_(pa.string(), pa.binary()))]))

VALUES: list[tuple[pa.DataType, type, list[Any]]] = [
    (pa.int64(), PackedValues, [0, -1, None, 1 << 62]),
    (pa.uint64(), PackedValues, [0, (1 << 64) - 1, None]),
    (pa.bool_(), PackedValues, [True, False, None]),
    (pa.float64(), PackedValues, [0.5, float("inf"), None]),
    (pa.float32(), PackedValues, [0.5, -1.25, None]),
    (pa.date32(), PackedValues, [dt.date(2026, 1, 2), None]),
    (pa.timestamp("us", "UTC"), PackedValues, [dt.datetime(2026, 1, 2, tzinfo=dt.UTC), None]),
    (pa.duration("ms"), PackedValues, [dt.timedelta(seconds=3), None]),
    (pa.string(), PlainValues, ["", "ä", None]),
    (pa.binary(), PlainValues, [b"", b"\xff", None]),
    (pa.list_(pa.int64()), PlainValues, [[], [1, None], None]),
    (
        pa.map_(pa.int8(), pa.struct([("x", pa.int32())])),
        PlainValues,
        [[(1, {"x": 2})], [], None],
    ),
    (NESTED, ArrowValues, [[{"x": 1, "y": [("k", b"v")]}], [], None]),
    (pa.decimal128(10, 2), ArrowValues, [None]),
    (pa.list_(pa.date32()), ArrowValues, [[dt.date(2026, 1, 2), None], [], None]),
    (pa.null(), ArrowValues, [None]),
]


@pytest.mark.parametrize(("type_", "codec", "cells"), VALUES, ids=lambda v: str(v)[:20])
def test_values_come_back_equal(type_: pa.DataType, codec: type, cells: list[Any]) -> None:
    chosen = value_codec([pa.field("v", type_)])
    assert isinstance(chosen, codec)
    array = pa.array(cells, type_)
    stored = chosen.encode([array])
    assert chosen.decode(stored) == [array]
    assert chosen.encode_cells(cells) == stored
    assert pa.array(chosen.decode_cells(stored), type_) == array
    assert [a.type for a in chosen.decode([])] == [type_]


def arrow_value(columns: list[pa.Array], *, codec: str | None = None) -> bytes:
    """A stored value as somebody makes it who may write to the checkpoint directory."""
    batch = pa.RecordBatch.from_arrays(columns, names=["value"])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    [_, message] = list(pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue())))
    value: bytes = message.serialize().to_pybytes()
    return value


def test_a_compressed_value_is_refused() -> None:
    value = arrow_value([pa.array([[dt.date(2026, 1, 2)] * 10_000])], codec="zstd")
    with pytest.raises(pa.ArrowInvalid, match="compressed body"):
        ArrowValues(pa.list_(pa.date32())).decode([value])


def test_a_value_whose_offsets_point_outside_is_refused_before_it_is_joined_with_others() -> None:
    good = arrow_value([pa.array([[dt.date(2026, 1, 2)]])])
    offsets, outside = struct.pack("<ii", 0, 1), struct.pack("<ii", 0, 1_000_000)
    # The body's only offsets come last but for the one date.
    head, found, dates = good.rpartition(offsets)
    assert found
    bad = head + outside + dates
    with pytest.raises(pa.ArrowInvalid, match="out of bounds"):
        ArrowValues(pa.list_(pa.date32())).decode([good, bad])


def test_the_sign_of_zero_and_nan_are_kept_in_values() -> None:
    codec = value_codec([pa.field("v", pa.float64())])
    cells = codec.decode_cells(codec.encode_cells([-0.0, float("nan")]))
    assert str(cells) == "[-0.0, nan]"


def test_several_packed_columns_lie_side_by_side() -> None:
    codec = value_codec([pa.field("n", pa.int64()), pa.field("m", pa.float64())])
    arrays = [pa.array([1, None]), pa.array([None, 2.5])]
    stored = codec.encode(arrays)
    assert [len(row) for row in stored] == [18, 18]
    assert codec.decode(stored) == arrays


@pytest.mark.parametrize("names", [["a"], ["b"], ["c"], ["a", "c"], ["a", "b", "c"]])
@given(rows=st.lists(ROW, max_size=10))
def test_keys_come_back_equal(names: list[str], rows: list[tuple[Any, ...]]) -> None:
    whole = pa.RecordBatch.from_pylist(
        [dict(zip(KEYS.names, row, strict=True)) for row in rows], KEYS
    )
    batch = whole.select(names)
    codec = KeyCodec("totals", list(batch.schema), 16)
    stored = codec.encode(batch.columns)
    assert codec.decode(stored) == batch.columns
    keys = batch.column(0).to_pylist()
    if len(names) > 1:
        keys = list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
    if keys:
        assert codec.encode_cells(keys) == stored
    assert len(set(stored)) == len(set(keys)), "equal keys, and only those, are equal bytes"
    groups = key_groups(batch, names, 16).tolist()
    assert [int.from_bytes(key[:2], "big") for key in stored] == groups
    for key, group in zip(stored, groups, strict=True):
        assert group_start(group) < key < group_start(group + 1)


@pytest.mark.parametrize("names", [["a"], ["b"], ["c"], ["a", "c"], ["c", "b"]])
@given(rows=st.lists(ROW, max_size=20))
def test_the_order_of_keys_is_that_of_their_bytes(
    names: list[str], rows: list[tuple[Any, ...]]
) -> None:
    fields = [KEYS.field(name) for name in names]
    columns = [
        pa.array([row[KEYS.get_field_index(f.name)] for row in rows], f.type) for f in fields
    ]
    codec = KeyCodec("s", fields, 16)
    stored = codec.encode(columns)
    order, in_order = codec.encode_sorted(columns)
    assert sorted(order.tolist()) == list(range(len(rows)))
    assert [stored[at] for at in order.tolist()] == in_order == sorted(stored)


def test_equal_floats_are_one_key() -> None:
    codec = KeyCodec("s", [pa.field("k", pa.float64())], 16)
    zeros, nans = [0.0, -0.0], [float("nan"), -float("nan")]
    assert len(set(codec.encode_cells(zeros))) == len(set(codec.encode_cells(nans))) == 1


def test_nothing_is_behind_the_last_key_group() -> None:
    codec = KeyCodec("x" * 255, [pa.field("k", pa.binary())], 1 << 15)
    assert max(codec.encode_cells([bytes([i]) * 9 for i in range(256)])) < group_start(1 << 15)


def test_the_format_is_the_one_of_version_one() -> None:
    fields = [pa.field("n", pa.int64()), pa.field("s", pa.string())]
    (key,) = KeyCodec("totals", fields, 1).encode_cells([(-2, "ab")])
    assert key == b"\0\0\6totals\1" + (-2).to_bytes(8, "big", signed=True) + b"\1\0\0\0\2ab"
    (value,) = value_codec([pa.field("v", pa.int16())]).encode_cells([-2])
    assert value == b"\1" + (-2).to_bytes(8, "little", signed=True)
