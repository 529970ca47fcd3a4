"""Schemas on the wire: what is recoded, and what the fingerprint tells apart."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.channels.schemas import UnsupportedSchema, WireSchema, WireSchemas


def test_plain_schemas_are_not_recoded() -> None:
    schema = pa.schema([("key", pa.int64()), ("text", pa.string()), ("tags", pa.list_(pa.int8()))])
    wire = WireSchema.of(schema)
    assert not wire.recoded
    assert wire.wire is schema


@pytest.mark.parametrize(
    ("logical", "plain"),
    [
        (pa.string_view(), pa.string()),
        (pa.binary_view(), pa.binary()),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.large_string()),
        (pa.list_(pa.string_view()), pa.list_(pa.string())),
        (pa.large_list(pa.string_view()), pa.large_list(pa.string())),
        (pa.list_(pa.string_view(), 2), pa.list_(pa.string(), 2)),
        (pa.struct([("a", pa.string_view())]), pa.struct([("a", pa.string())])),
        (pa.map_(pa.string(), pa.binary_view()), pa.map_(pa.string(), pa.binary())),
    ],
)
def test_views_and_dictionaries_travel_as_plain_types(
    logical: pa.DataType, plain: pa.DataType
) -> None:
    wire = WireSchema.of(pa.schema([("column", logical)]))
    assert wire.recoded
    assert wire.wire.field(0).type == plain


def test_dictionaries_of_numbers_are_refused_with_advice() -> None:
    schema = pa.schema([("column", pa.dictionary(pa.int8(), pa.int64()))])
    with pytest.raises(UnsupportedSchema, match="cast it to int64 first"):
        WireSchema.of(schema)


def test_fingerprint_tells_names_and_types_apart_but_not_nullability() -> None:
    base = WireSchema.of(pa.schema([("a", pa.int64())])).fingerprint
    assert WireSchema.of(pa.schema([("a", pa.uint64())])).fingerprint != base
    assert WireSchema.of(pa.schema([("b", pa.int64())])).fingerprint != base
    assert WireSchema.of(pa.schema([pa.field("a", pa.int64(), False)])).fingerprint == base


def test_a_changed_schema_of_an_edge_is_noticed() -> None:
    schemas = WireSchemas()
    first = schemas.of(0, pa.schema([("a", pa.int64())]))
    assert schemas.of(0, pa.schema([("a", pa.int64())])) is first
    assert schemas.of(0, pa.schema([("a", pa.string())])).fingerprint != first.fingerprint
