"""Streams as far as columns go: chosen, computed, renamed, left out, without a user's function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import pyarrow.compute as pc

from ..contract.errors import UserError
from ..operators.batch import SelectOperator
from ..plan.validate import check_columns
from .expressions import projected_schema
from .flow import Flow, S


@dataclass(frozen=True, slots=True, repr=False)
class Columns(Flow[S]):
    """A flow with the methods that choose and compute columns; `Stream` has the others."""

    def select(
        self,
        *columns: str,
        name: str | None = None,
        parallelism: int | None = None,
        **expressions: pc.Expression,
    ) -> S:
        """Keep `columns` and add computed columns.

        For example `select("id", total=pc.field("price") * pc.field("n"))`.

        Args:
            expressions: {new column: Arrow expression}. `pc.field("old")` renames.
        """
        check_columns(columns, self.schema, where="select")
        wanted = {column: pc.field(column) for column in columns} | expressions
        return self._computed("select", wanted, name, parallelism)

    def with_columns(
        self,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        **expressions: pc.Expression,
    ) -> S:
        """Keep every column, and add or replace computed ones.

        For example `with_columns(total=pc.field("price") * pc.field("n"))`. An expression sees the
        columns as they come, replaced ones too.
        """
        if not expressions:
            raise UserError("with_columns needs at least one column, as in total=pc.field(...)")
        wanted = {column: pc.field(column) for column in self.schema.names} | expressions
        return self._computed("with_columns", wanted, name, parallelism)

    def drop(self, *columns: str, name: str | None = None, parallelism: int | None = None) -> S:
        """Leave `columns` out."""
        check_columns(columns, self.schema, where="drop")
        kept = [column for column in self.schema.names if column not in columns]
        if not kept:
            raise UserError("drop: no column would be left; records need at least one")
        wanted = {column: pc.field(column) for column in kept}
        return self._computed("drop", wanted, name, parallelism)

    def rename(
        self,
        columns: Mapping[str, str],
        *,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> S:
        """Rename columns: `rename({"old": "new"})`. Their order and event time stay."""
        check_columns(columns, self.schema, where="rename")
        names = [columns.get(column, column) for column in self.schema.names]
        for new in names:
            if names.count(new) > 1:
                raise UserError(f"rename: several columns would be called {new!r}; drop one before")
        wanted = {new: pc.field(old) for old, new in zip(self.schema.names, names, strict=True)}
        renamed = self._computed("rename", wanted, name, parallelism)
        if self.event_time is None:
            return renamed
        return replace(renamed, event_time=columns.get(self.event_time, self.event_time))

    def _computed(
        self,
        kind: str,
        wanted: Mapping[str, pc.Expression],
        name: str | None,
        parallelism: int | None,
    ) -> S:
        out = projected_schema(wanted, self.schema, where=kind)
        operator = partial(SelectOperator, wanted, out)
        return self.then(kind, operator, out, name=name, parallelism=parallelism)
