from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.engine.contract.errors import UserCodeError
from headrace.engine.contract.user_code import (
    check_schema,
    raised,
    returned_rows,
    rows_of,
    shown,
    slices,
    to_array,
    user_traceback,
)


def test_a_long_or_broken_repr_does_no_harm() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError

    assert shown("a") == "'a'"
    assert len(shown("a" * 10_000)) < 600
    assert "Broken" in shown(Broken())


def test_slices_tile_the_batch() -> None:
    batch = pa.record_batch({"x": list(range(10))})
    assert [piece.num_rows for piece in slices(batch, 4)] == [4, 4, 2]
    assert pa.concat_batches(list(slices(batch, 4))).equals(batch)


def test_an_error_without_user_frames_has_no_traceback() -> None:
    assert user_traceback(ValueError("x")) == ""
    error = raised("op", ValueError("x"), record={"a": 1})
    assert str(error) == "operator 'op': ValueError: x for record {'a': 1}"


@pytest.mark.parametrize(("cell", "type_"), [(1.5, pa.int64()), (True, pa.float64())])
def test_lossy_conversions_are_refused(cell: object, type_: pa.DataType) -> None:
    with pytest.raises(TypeError):
        to_array([cell], type_)


def test_nullability_and_metadata_may_differ() -> None:
    found = pa.schema([pa.field("a", pa.int64(), nullable=False, metadata={"m": "1"})])
    check_schema("op", found, pa.schema([("a", pa.int64())]))


def test_rows_are_what_arrow_makes_of_them() -> None:
    columns = {
        "i": pa.array([1, None, 3], pa.int8()),
        "n": pa.array([1, 2, 3], pa.uint64()),
        "f": pa.array([0.1, 2.0, -1.0], pa.float32()),
        "s": pa.array(["a", None, "ü"]),
        "b": pa.array([b"a", None, b""]),
        "t": pa.array([1, None, 3], pa.timestamp("us", "UTC")),
        "l": pa.array([[1], None, []]),
        "d": pa.array(["x", None, "x"]).dictionary_encode(),
    }
    batch = pa.record_batch(columns)
    for piece in (batch, batch.slice(1), batch.slice(2, 1), batch.slice(0, 0)):
        rows = rows_of(piece)
        assert rows == piece.to_pylist()
        assert [list(map(type, row.values())) for row in rows] == [
            list(map(type, row.values())) for row in piece.to_pylist()
        ]


def test_rows_keep_every_name_as_it_is() -> None:
    names = ["plain", "class", "it's", 'a "b"', "line\nbreak", "{x}", "\\", "ünï", ""]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([at, None], pa.int64()) for at in range(len(names))], names=names
    )
    assert rows_of(batch) == batch.to_pylist()


def test_whatever_is_no_iterable_of_rows_is_refused() -> None:
    for returned in ({"a": 1}, "text", b"bytes", 7):
        with pytest.raises(UserCodeError, match="where an iterable of dicts is due"):
            returned_rows("op", returned)
    assert list(returned_rows("op", None)) == []
    assert list(returned_rows("op", iter([{"a": 1}]))) == [{"a": 1}]
