"""Schemas on the wire: how the batches of an edge are laid out in a frame.

A frame carries one record batch without a schema, so the batch must stand alone and hold only its
own rows. Two kinds of columns do not: a dictionary column keeps its values in a separate message,
and a view column (`string_view`) drags along every byte that any row of the original array used,
even after a slice or a filter. Both travel as their plain type and get their own type back at the
other end.

The fingerprint tells two edges with different columns apart. Arrow's reader cannot: its caller
states the column types. The fingerprint covers names and types, not nullability nor metadata, in
which ends may differ without harm.

Not here: whether a schema is wanted at all, which the plan decides. List views travel as they are;
a slice of a list view may carry rows of its neighbours, since Arrow cannot cast back to list
views.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import xxhash
from pyarrow import types


class UnsupportedSchema(TypeError):
    """A column type that cannot travel: a dictionary of anything but text or bytes."""


@dataclass(frozen=True, slots=True)
class WireSchema:
    """The two faces of an edge's schema.

    Attributes:
        logical: the operators' schema.
        wire: the frame's schema; the object `logical` itself if no column needs recoding.
        fingerprint: 32 bits of names and types of `logical`; equal in all processes with equal
            Arrow.
    """

    logical: pa.Schema
    wire: pa.Schema
    fingerprint: int

    @property
    def recoded(self) -> bool:
        """Batches must be cast at both ends."""
        return self.wire is not self.logical

    @staticmethod
    def of(schema: pa.Schema) -> WireSchema:
        """Work out the wire side of a schema. Raises: UnsupportedSchema."""
        plain = pa.schema([f.with_type(_rebuilt(f.type, _standing_alone)) for f in schema])
        text = "\n".join(f"{field.name}: {field.type}" for field in schema)
        recoded = not plain.equals(schema)
        return WireSchema(
            schema, plain if recoded else schema, xxhash.xxh32_intdigest(text.encode())
        )


class WireSchemas:
    """Remembers the wire side of the edges' schemas, at the cost of a comparison."""

    def __init__(self) -> None:
        #: {edge index: the schema it had last}
        self._edges: dict[int, WireSchema] = {}

    def of(self, edge: int, schema: pa.Schema) -> WireSchema:
        """The wire side of `schema`, the schema of `edge` by now. Raises: UnsupportedSchema."""
        known = self._edges.get(edge)
        if known is None or not known.logical.equals(schema):
            known = self._edges[edge] = WireSchema.of(schema)
        return known


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of equal values without views and, of a whole column, without runs."""
    return _rebuilt(kind.value_type if types.is_run_end_encoded(kind) else kind, _unviewed)


def _rebuilt(kind: pa.DataType, replaced: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Replace a type, and the types inside a nested one."""

    def field_of(field: pa.Field) -> pa.Field:
        return field.with_type(_rebuilt(field.type, replaced))

    if types.is_struct(kind):
        return pa.struct([field_of(field) for field in kind])
    if types.is_map(kind):
        return pa.map_(field_of(kind.key_field), field_of(kind.item_field), kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(field_of(kind.value_field), kind.list_size)
    if types.is_list(kind):
        return pa.list_(field_of(kind.value_field))
    if types.is_large_list(kind):
        return pa.large_list(field_of(kind.value_field))
    return replaced(kind)


def _unviewed(kind: pa.DataType) -> pa.DataType:
    if types.is_string_view(kind):
        return pa.string()
    return pa.binary() if types.is_binary_view(kind) else kind


def _standing_alone(kind: pa.DataType) -> pa.DataType:
    if not types.is_dictionary(kind):
        return _unviewed(kind)
    values = kind.value_type
    if types.is_string(values) or types.is_binary(values):
        return values
    if types.is_large_string(values) or types.is_large_binary(values):
        return values
    raise UnsupportedSchema(f"a column of type {kind} cannot travel; cast it to {values} first")
