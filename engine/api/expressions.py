"""Arrow expressions, checked against a schema while the pipeline is built.

Arrow computes the expression over no rows. That finds unknown columns, types without a kernel and
conditions that are no booleans, without a type checker of our own that would drift from Arrow's.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from ..contract.errors import UserError
from ..operators.batch import select_schema
from ..plan.validate import check_columns, check_schema

_UNKNOWN_COLUMN = "No match for FieldRef.Name("


def check_filter(condition: pc.Expression, schema: pa.Schema) -> None:
    """Refuse a condition that does not fit `schema` or is no boolean."""
    try:
        schema.empty_table().filter(condition)
    except pa.ArrowException as error:
        _refuse_unknown_column(error, schema, where="filter")
        raise UserError(f"filter: {str(error).splitlines()[0]}") from None


def projected_schema(
    expressions: Mapping[str, pc.Expression], schema: pa.Schema, *, where: str = "select"
) -> pa.Schema:
    """Return the schema of `expressions`, in their order, over records of `schema`.

    Raises: UserError when there is none, a value is no expression, or Arrow cannot compute it.
    """
    if not expressions:
        raise UserError(f"{where} needs at least one column")
    for name, expression in expressions.items():
        if not isinstance(expression, pc.Expression):
            raise UserError(
                f"{where}: {name}={expression!r} is not an Arrow expression; "
                "write pc.field('column') or pc.scalar(value)"
            )
    try:
        found = select_schema(expressions, schema)
    except UserError as error:
        if error.__cause__ is not None:
            _refuse_unknown_column(error.__cause__, schema, where=where)
        raise
    return check_schema(found, where=where)


def _refuse_unknown_column(error: BaseException, schema: pa.Schema, *, where: str) -> None:
    """Refuse an unknown column with a suggestion.

    Arrow's own message lists the whole schema, one field a line.
    """
    message = str(error)
    if message.startswith(_UNKNOWN_COLUMN):
        column = message.removeprefix(_UNKNOWN_COLUMN).partition(") in ")[0]
        check_columns([column], schema, where=where)
