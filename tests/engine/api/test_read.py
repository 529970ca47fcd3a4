"""Sources: every format, required names, decoded dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from headrace.engine.api import read
from headrace.engine.api.stream import Stream
from headrace.engine.connectors.memory import BatchesSource
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.operators import OperatorContext
from headrace.engine.plan.graph import Role

NESTED = pa.ListArray.from_arrays([0, 1], pa.array(["a"]).dictionary_encode())
TABLE = pa.table({"id": [1, 2], "name": ["ann", "bob"]})


#: The same functions, to be called with arguments that a type checker refuses too.
loose: Any = read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pq.write_table(TABLE, tmp_path / "orders.parquet")
    (tmp_path / "orders.csv").write_text("id,name\n1,ann\n")
    (tmp_path / "bare.csv").write_text("1;ann\n")
    (tmp_path / "orders.json").write_text('{"id": 1, "name": "ann"}\n')
    (tmp_path / "orders.txt").write_text("one\ntwo\n")
    with (
        pa.OSFile(str(tmp_path / "orders.arrow"), "wb") as file,
        pa.ipc.new_file(file, TABLE.schema) as out,
    ):
        out.write_table(TABLE)
    return tmp_path


@pytest.mark.parametrize("format", ["parquet", "csv", "json", "arrow"])
def test_a_file_is_a_source_with_the_files_schema(folder: Path, format: str) -> None:
    stream: Stream = getattr(read, format)(
        f"{folder}/orders.{format}", name="orders", parallelism=2
    )
    node = stream.inputs[0].node
    assert stream.schema.names == ["id", "name"]
    assert (node.kind, node.role, node.name) == (f"read.{format}", Role.SOURCE, "orders")
    assert node.parallelism == 2
    assert node.reader is not None


def test_text_is_one_column_of_lines(folder: Path) -> None:
    assert len(read.text(f"{folder}/orders.txt", name="lines").schema) == 1


def test_options_of_files_reach_the_connector(folder: Path) -> None:
    stream = read.csv(
        f"{folder}/bare.csv",
        name="orders",
        delimiter=";",
        column_names=["id", "name"],
        path_column="file",
        follow="1s",
    )
    assert stream.schema.names == ["id", "name", "file"]


def test_a_sequence_has_numbers_times_and_keys() -> None:
    assert read.sequence(5, name="n").schema.names == ["sequence", "timestamp", "key"]
    assert read.sequence(5, name="n", payload="1KiB", rate=10).schema.names[-1] == "payload"


def test_a_dictionary_column_is_decoded_by_an_operator_behind_the_source() -> None:
    encoded = pa.record_batch({"id": [1, 2], "kind": pa.array(["a", None]).dictionary_encode()})
    stream = read.batches([encoded], name="rows", parallelism=2)
    node = stream.inputs[0].node
    assert stream.schema == pa.schema([("id", pa.int64()), ("kind", pa.string())])
    assert (node.kind, node.name, node.parallelism) == ("decode", "rows-decoded", 2)
    assert node.operator is not None
    operator = node.operator(operator="rows-decoded")
    operator.open(OperatorContext("job", "rows-decoded", 0, 1, 128, 1))
    (decoded,) = operator.process(encoded, 0)
    assert decoded.to_pydict() == {"id": [1, 2], "kind": ["a", None]}


def test_views_and_runs_of_a_source_become_plain() -> None:
    views = pa.array(["a", None, "a view that is longer than twelve bytes"], pa.string_view())
    given = pa.record_batch({"v": views, "r": pc.run_end_encode(pa.array([1, 1, 2]))})
    stream = read.batches([given], name="rows")
    assert stream.schema == pa.schema([("v", pa.string()), ("r", pa.int64())])
    node = stream.inputs[0].node
    assert node.operator is not None
    (plain,) = node.operator(operator="rows-decoded").process(given.slice(1), 0)
    plain.validate(full=True)
    assert plain.schema == stream.schema
    assert plain.to_pydict() == {"v": views.to_pylist()[1:], "r": [1, 2]}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda folder: read.parquet(f"{folder}/orders.parquet"),
            (
                "read.parquet needs name=, by which its offsets are found again; "
                "for example name='orders'"
            ),
        ),
        (
            lambda folder: read.sequence(3),
            (
                "read.sequence needs name=, by which its offsets are found again; "
                "for example name='numbers'"
            ),
        ),
        (
            lambda folder: loose.parquet(f"{folder}/orders.parquet", name="x", scema=None),
            "read.parquet has no option 'scema'; did you mean 'schema'?",
        ),
        (
            lambda folder: loose.parquet(f"{folder}/orders.parquet", name="x", schema="id int"),
            "read.parquet: schema= takes a pyarrow schema, got 'id int'",
        ),
        (
            lambda folder: read.sequence(3, name="x", payload="big"),
            (
                "read.sequence: payload='big' is not a size; write '64MiB', '256KiB' or a number of"
                " bytes"
            ),
        ),
        (
            lambda folder: read.batches([pa.record_batch({})], name="x"),
            (
                "read.batches 'x': records without columns cannot be counted; "
                "give them at least one column"
            ),
        ),
        (
            lambda folder: read.from_source(
                BatchesSource([pa.record_batch({"tags": NESTED})]), name="x"
            ),
            (
                "from_source 'x': column 'tags' is dictionary-encoded, which streams do not carry; "
                "cast it to its plain type, such as string"
            ),
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    folder: Path, call: Callable[[Path], object], sentence: str
) -> None:
    with pytest.raises(UserError) as caught:
        call(folder)
    assert str(caught.value) == sentence


def test_a_missing_file_is_refused_by_the_line_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.parquet"):
        read.parquet(f"{tmp_path}/nothing.parquet", name="orders")
