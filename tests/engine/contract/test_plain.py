"""Plain types: equal values, whatever the encoding and wherever a slice begins."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.engine.contract.plain import plain_array, plain_batch, plain_schema

VIEWS = pa.array(["a", None, "a view of more than twelve bytes"], pa.string_view())


@pytest.mark.parametrize(
    ("array", "plain"),
    [
        (VIEWS, pa.string()),
        (VIEWS.cast(pa.binary_view()), pa.binary()),
        (pc.run_end_encode(pa.array([1, 1, None])), pa.int64()),
        (pa.RunEndEncodedArray.from_arrays([1, 2, 3], VIEWS), pa.string()),
        (
            pa.RunEndEncodedArray.from_arrays([2, 3], pa.array([["a"], None])),
            pa.list_(pa.string()),
        ),
        (pa.array([["a"], None, ["b"]], pa.list_(pa.string_view())), pa.list_(pa.string())),
        (
            pa.array([{"a": "x"}, None, {"a": None}], pa.struct([("a", pa.string_view())])),
            pa.struct([("a", pa.string())]),
        ),
        (
            pa.array([[("k", b"v")], None, []], pa.map_(pa.string_view(), pa.binary_view())),
            pa.map_(pa.string(), pa.binary()),
        ),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_encoded_columns_become_plain(array: pa.Array, plain: pa.DataType) -> None:
    for part in (array, array.slice(1), array.slice(1, 1), array.slice(3)):
        out = plain_array(part)
        out.validate(full=True)
        assert out.type == plain
        assert out.to_pylist() == part.to_pylist()


def test_plain_columns_stay_the_same_objects() -> None:
    batch = pa.record_batch({"a": [1, 2], "b": [["x"], []]})
    assert plain_schema(batch.schema) is batch.schema
    assert plain_array(batch.column(1)).equals(batch.column(1))
    assert plain_batch(batch) is batch


def test_a_batch_becomes_plain_column_by_column() -> None:
    batch = pa.record_batch({"a": VIEWS, "b": [1, 2, 3]})
    out = plain_batch(batch)
    assert out.schema == pa.schema([("a", pa.string()), ("b", pa.int64())])
    assert out.to_pydict() == batch.to_pydict()
