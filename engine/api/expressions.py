"""Arrow expressions, checked against a schema while the pipeline is built.

Arrow itself says what an expression yields: it is run over an empty table. That finds unknown columns, types without a
kernel and conditions that are no booleans, without a type checker of our own that would drift from Arrow's.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from ..plan.validate import check_expressions, check_schema
from .errors import UserError


def check_filter(condition: pc.Expression, schema: pa.Schema) -> None:
    """Refuse a condition that does not fit `schema` or is no boolean."""
    check_expressions(lambda: schema.empty_table().filter(condition).schema, schema, where="filter")


def projected_schema(
    expressions: Mapping[str, pc.Expression], schema: pa.Schema, *, where: str = "select"
) -> pa.Schema:
    """The schema of `expressions`, in their order, over records of `schema`."""
    if not expressions:
        raise UserError(f"{where} needs at least one column")
    for name, expression in expressions.items():
        if not isinstance(expression, pc.Expression):
            raise UserError(
                f"{where}: {name}={expression!r} is not an Arrow expression; "
                "write pc.field('column') or pc.scalar(value)"
            )
    plan = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(schema.empty_table())),
            acero.Declaration(
                "project",
                acero.ProjectNodeOptions(list(expressions.values()), list(expressions)),
            ),
        ]
    )
    found = check_expressions(lambda: plan.to_table(use_threads=False).schema, schema, where=where)
    check_schema(found, where=where)
    return found
