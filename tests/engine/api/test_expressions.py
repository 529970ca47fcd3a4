"""Expressions: what Arrow says of them before any record exists."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.engine.api.expressions import check_filter, projected_schema
from headrace.engine.contract.errors import UserError

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


def sentence(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    return str(caught.value)


def test_a_condition_over_known_columns_passes() -> None:
    check_filter((pc.field("id") > 1) & pc.field("name").is_valid(), SCHEMA)


def test_an_unknown_column_in_a_condition_is_refused() -> None:
    assert sentence(lambda: check_filter(pc.field("nam") == "x", SCHEMA)) == (
        "filter: there is no column 'nam'; did you mean 'name'?"
    )


def test_a_condition_that_is_no_boolean_is_refused() -> None:
    assert sentence(lambda: check_filter(pc.field("id") + 1, SCHEMA)) == (
        "filter: Filter expression must evaluate to bool, but add_checked(id, 1) evaluates to int64"
    )


def test_types_without_a_kernel_are_refused() -> None:
    assert sentence(lambda: check_filter(pc.field("name") > 1, SCHEMA)) == (
        "filter: Function 'greater' has no kernel matching input types (string, int8)"
    )


def test_a_projection_keeps_the_fields_that_it_only_passes_on() -> None:
    schema = projected_schema({"key": pc.field("id"), "twice": pc.field("id") * 2}, SCHEMA)
    assert schema == pa.schema([pa.field("key", pa.int64(), nullable=False), ("twice", pa.int64())])


def test_an_unknown_column_in_a_projection_is_refused() -> None:
    assert sentence(lambda: projected_schema({"x": pc.field("idd") + 1}, SCHEMA)) == (
        "select: there is no column 'idd'; did you mean 'id'?"
    )


def test_a_projection_that_cannot_be_computed_is_refused() -> None:
    assert sentence(lambda: projected_schema({"x": pc.field("name") + 1}, SCHEMA)).startswith(
        "select: column 'x' cannot be computed as add_checked(name, 1)"
    )


def test_an_empty_projection_is_refused() -> None:
    assert sentence(lambda: projected_schema({}, SCHEMA)) == "select needs at least one column"


def test_what_is_no_expression_is_refused() -> None:
    wrong: dict[str, pc.Expression] = {"x": 3}
    assert sentence(lambda: projected_schema(wrong, SCHEMA)) == (
        "select: x=3 is not an Arrow expression; write pc.field('column') or pc.scalar(value)"
    )
