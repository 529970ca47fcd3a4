"""Validation: each impossible job is refused with its own sentence."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from headrace.engine.contract.errors import UserError
from headrace.engine.plan.graph import Input, LogicalGraph, Node, Role
from headrace.engine.plan.validate import (
    check_columns,
    check_graph,
    check_keys,
    check_name,
    check_parallelism,
    check_schema,
    check_union,
    require_event_time,
    require_name,
)

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.float64()), ("tags", pa.list_(pa.string()))])
DICTIONARY = pa.dictionary(pa.int32(), pa.string())


def node(
    role: Role, *producers: Node, name: str | None = "x", kind: str = "map", line: int = 1
) -> Node:
    inputs = tuple(Input(producer) for producer in producers)
    return Node(kind, role, name, inputs, SCHEMA, built_at=f"job.py:{line}")


def source(name: str | None = "orders") -> Node:
    return node(Role.SOURCE, name=name, kind="read.parquet")


def refused(sink: Node | None, *, max_parallelism: int = 128, parallelism: int = 1) -> str:
    graph = LogicalGraph.of([] if sink is None else [sink])
    with pytest.raises(UserError) as caught:
        check_graph(graph, max_parallelism=max_parallelism, parallelism=parallelism)
    return str(caught.value)


def sentence(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    return str(caught.value)


def test_a_sound_graph_passes() -> None:
    sink = node(Role.SINK, node(Role.OPERATOR, source(), name=None), name="out")
    check_graph(LogicalGraph.of([sink]), max_parallelism=4, parallelism=4)


def test_a_job_without_sink_is_refused() -> None:
    assert refused(None) == (
        "the job has no sink; pass at least one, such as stream.write.collect(...)"
    )


def test_a_stream_without_source_is_refused() -> None:
    sink = node(Role.SINK, node(Role.OPERATOR, name="clean"), name="out")
    assert refused(sink) == "map 'clean' (job.py:1) has no source; begin the stream with hr.read"


def test_two_operators_of_one_name_are_refused() -> None:
    first = node(Role.OPERATOR, source(), name="clean", line=12)
    second = node(Role.OPERATOR, first, name="clean", kind="aggregate", line=20)
    assert refused(node(Role.SINK, second, name="out")) == (
        "two operators are named 'clean': map at job.py:12 and aggregate at job.py:20; rename one"
    )


@pytest.mark.parametrize("role", [Role.SOURCE, Role.SINK])
def test_a_source_or_sink_without_name_is_refused(role: Role) -> None:
    origin = source(None) if role is Role.SOURCE else source()
    sink = node(Role.SINK, origin, name=None if role is Role.SINK else "out", kind="write.json")
    kind = "read.parquet" if role is Role.SOURCE else "write.json"
    assert refused(sink) == f"{kind} (job.py:1) needs name=, by which its state is found again"


def test_a_parallelism_above_max_parallelism_is_refused() -> None:
    wide = Node(
        "map",
        Role.OPERATOR,
        "clean",
        (Input(source()),),
        SCHEMA,
        parallelism=9,
        built_at="job.py:3",
    )
    assert refused(node(Role.SINK, wide, name="out"), max_parallelism=8) == (
        "map 'clean' (job.py:3) has parallelism 9, above max_parallelism 8; "
        "lower the one or raise the other (state kept so far is lost if max_parallelism changes)"
    )


def test_a_job_parallelism_above_max_parallelism_is_refused() -> None:
    sink = node(Role.SINK, source(), name="out")
    assert refused(sink, max_parallelism=2, parallelism=3) == (
        "the job has parallelism 3, above max_parallelism 2; "
        "lower the one or raise the other (state kept so far is lost if max_parallelism changes)"
    )


@pytest.mark.parametrize("value", [0, -1, 32769, True, 2.0, "2"])
def test_a_parallelism_out_of_range_is_refused(value: object) -> None:
    assert sentence(lambda: check_parallelism(value, where="map: parallelism")) == (
        f"map: parallelism={value!r} is not a whole number from 1 to 32768"
    )


def test_an_unknown_column_is_refused_with_a_suggestion() -> None:
    assert sentence(lambda: check_columns(["amout"], SCHEMA, where="select")) == (
        "select: there is no column 'amout'; did you mean 'amount'?"
    )


def test_a_column_that_is_no_name_is_refused() -> None:
    assert sentence(lambda: check_columns([3], SCHEMA, where="select")) == (  # type: ignore[list-item]  # the mistake under test
        "select takes column names, got 3"
    )


def test_an_ambiguous_column_is_refused() -> None:
    twice = pa.schema([("a", pa.int64()), ("a", pa.int64())])
    assert sentence(lambda: check_columns(["a"], twice, where="key_by")) == (
        "key_by: 2 columns are called 'a'; rename them with select()"
    )


def test_a_key_without_columns_is_refused() -> None:
    assert sentence(lambda: check_keys([], SCHEMA, where="key_by")) == (
        "key_by needs at least one column"
    )


def test_a_key_of_a_type_without_hash_is_refused() -> None:
    assert sentence(lambda: check_keys(["tags"], SCHEMA, where="key_by")).startswith(
        "key_by: column 'tags' of type list<"
    )


def test_a_declared_schema_with_a_dictionary_is_refused() -> None:
    schema = pa.schema([("kind", DICTIONARY)])
    assert sentence(lambda: check_schema(schema, where="map_batches")) == (
        "map_batches: column 'kind' is dictionary-encoded, which streams do not carry; "
        "cast it to its plain type, such as string"
    )


def test_a_declared_schema_that_is_none_is_refused() -> None:
    assert sentence(lambda: check_schema({"a": "int"}, where="map")) == (
        "map: schema= takes a pyarrow schema, got {'a': 'int'}"
    )


def test_a_declared_schema_that_repeats_a_name_is_refused() -> None:
    twice = pa.schema([("a", pa.int64()), ("a", pa.int64())])
    assert sentence(lambda: check_schema(twice, where="map")) == (
        "map: schema= has several columns called 'a'; rename them"
    )


@pytest.mark.parametrize("type_", [pa.list_(DICTIONARY), pa.struct([("x", pa.list_(DICTIONARY))])])
def test_a_nested_dictionary_is_found(type_: pa.DataType) -> None:
    schema = pa.schema([("tags", type_)])
    assert "column 'tags' is dictionary-encoded" in sentence(lambda: check_schema(schema, where=""))


def test_runs_below_a_column_are_refused() -> None:
    schema = pa.schema([("tags", pa.list_(pa.run_end_encoded(pa.int32(), pa.string())))])
    assert sentence(lambda: check_schema(schema, where="map")) == (
        "map: column 'tags' is run-end-encoded, which streams do not carry; "
        "cast it to its plain type, such as string"
    )


def test_a_schema_without_columns_is_refused() -> None:
    assert sentence(lambda: check_schema(pa.schema([]), where="map_batches")) == (
        "map_batches: records without columns cannot be counted; give them at least one column"
    )


def test_a_declared_schema_is_taken_with_plain_types() -> None:
    declared = pa.schema([("a", pa.string_view()), ("b", pa.int64())], metadata={"by": "me"})
    plain = pa.schema([("a", pa.string()), ("b", pa.int64())], metadata={"by": "me"})
    assert check_schema(declared, where="map").equals(plain, check_metadata=True)
    assert check_schema(plain, where="map") is plain


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        ([("id", pa.int64())], "no column 'amount', which stream 1 has"),
        (
            [("id", pa.int64()), ("amount", pa.float64()), ("n", pa.int8())],
            "a column 'n', which stream 1 lacks",
        ),
        (
            [("id", pa.string()), ("amount", pa.float64())],
            "column 'id' as string where stream 1 has int64",
        ),
        (
            [("amount", pa.float64()), ("id", pa.int64())],
            "column 'amount' where stream 1 has 'id'",
        ),
        (
            [pa.field("id", pa.int64(), nullable=False), ("amount", pa.float64())],
            "columns that may be null where stream 1 has none, or the reverse",
        ),
    ],
)
def test_a_union_of_different_schemas_is_refused(fields: list[object], difference: str) -> None:
    first = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
    assert sentence(lambda: check_union([first, first, pa.schema(fields)])) == (
        f"union: stream 3 has {difference}; make the schemas equal with select()"
    )


def test_a_missing_name_is_refused_with_a_proposal() -> None:
    def call() -> object:
        return require_name(None, kind="aggregate", proposal="totals", why="for its state")

    assert sentence(call) == "aggregate needs name=, for its state; for example name='totals'"


@pytest.mark.parametrize("name", ["", 3])
def test_what_is_no_name_is_refused(name: object) -> None:
    assert sentence(lambda: check_name(name, kind="map")) == (
        f"map: name={name!r} is not a name; write a short word such as 'orders'"
    )


@pytest.mark.parametrize("name", ["a/b", "a->b", "a\nb", " a"])
def test_a_name_that_would_break_keys_and_paths_is_refused(name: str) -> None:
    assert sentence(lambda: check_name(name, kind="map")) == (
        f"map: name={name!r} may not hold '/', '->', line breaks or outer spaces"
    )


def test_who_needs_event_time_is_told_how_to_say_which_it_is() -> None:
    schema = pa.schema([("id", pa.int64()), ("seen", pa.timestamp("us"))])
    assert require_event_time("seen", schema, where="window") == "seen"
    with pytest.raises(UserError, match=r'window .*\.with_watermark\("seen", "10s"\)'):
        require_event_time(None, schema, where="window")
