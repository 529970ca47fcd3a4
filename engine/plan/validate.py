"""Everything that makes a job impossible, found before anything starts.

A fault that one call can know (an unknown column, a schema that does not fit) is refused by that
call, through the functions below, so that the traceback shows the line. `check_graph` refuses
faults that only the whole graph shows. Each refusal is a `UserError` of one sentence: what, where,
what to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from headrace.channels.hashing import key_hashers
from headrace.channels.keygroups import MAX_PARALLELISM_LIMIT
from headrace.channels.schemas import plain_type

from ..contract.errors import UserError
from ..contract.plain import plain_schema
from ..contract.suggestion import did_you_mean
from ..operators.aggregations import Aggregation
from .graph import LogicalGraph, Node, Role

_ENCODED: Final = {
    "dictionary": pa.types.is_dictionary,
    "run-end": pa.types.is_run_end_encoded,
}


def check_columns(columns: Iterable[str], schema: pa.Schema, *, where: str) -> None:
    """Refuse names that are not exactly one column of `schema`.

    `where` begins the sentence: "key_by".
    """
    for column in columns:
        if not isinstance(column, str):
            raise UserError(f"{where} takes column names, got {column!r}")
        count = schema.names.count(column)
        if count == 0:
            hint = did_you_mean(column, schema.names)
            raise UserError(f"{where}: there is no column {column!r}; {hint}")
        if count > 1:
            raise UserError(
                f"{where}: {count} columns are called {column!r}; rename them with select()"
            )


def check_keys(columns: Sequence[str], schema: pa.Schema, *, where: str) -> None:
    """Refuse key columns that do not exist or whose type cannot be a key."""
    if not columns:
        raise UserError(f"{where} needs at least one column")
    check_columns(columns, schema, where=where)
    try:
        key_hashers(schema, columns)
    except TypeError as error:
        raise UserError(f"{where}: {error}") from None


def check_event_time(column: str, schema: pa.Schema, *, where: str) -> None:
    """Refuse a column that does not exist or does not hold timestamps."""
    check_columns([column], schema, where=where)
    type_ = schema.field(column).type
    if not pa.types.is_timestamp(type_):
        raise UserError(
            f"{where}: column {column!r} is {type_}, and event time is a timestamp; "
            f'cast it with select(..., {column}=pc.field("{column}").cast(pa.timestamp("us")))'
        )


def require_event_time(event_time: str | None, schema: pa.Schema, *, where: str) -> str:
    """Return a stream's event-time column; refuse a stream without one, and propose one."""
    if event_time is not None:
        return event_time
    candidates = [field.name for field in schema if pa.types.is_timestamp(field.type)]
    column = candidates[0] if candidates else "time"
    raise UserError(
        f"{where} needs to know which column holds the time of an event, and how late records may"
        " be; "
        f'for example .with_watermark("{column}", "10s") before it'
    )


def check_aggregations(aggregations: Mapping[str, object], schema: pa.Schema) -> None:
    """Refuse a value that is no aggregation, or an aggregation of a column that does not exist."""
    if not aggregations:
        raise UserError("aggregate needs at least one aggregation, such as n=hr.count()")
    for column, aggregation in aggregations.items():
        if not isinstance(aggregation, Aggregation):
            raise UserError(
                f"aggregate: {column}={aggregation!r} is not an aggregation; write"
                f" {column}=hr.sum(...)"
            )
        if aggregation.column is not None:
            check_columns([aggregation.column], schema, where=f"aggregate: {column}")


def check_schema(schema: object, *, where: str) -> pa.Schema:
    """Return a schema with columns in their plain type, as streams carry them.

    Refuses a value that is no schema, has no column, repeats a name, or holds dictionaries, or runs
    inside a nested column.
    """
    if not isinstance(schema, pa.Schema):
        raise UserError(f"{where}: schema= takes a pyarrow schema, got {schema!r}")
    if not schema.names:
        raise UserError(
            f"{where}: records without columns cannot be counted; give them at least one column"
        )
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise UserError(f"{where}: schema= has several columns called {name!r}; rename them")
    for field in schema:
        for encoded, is_encoded in _ENCODED.items():
            if _holds(plain_type(field.type), is_encoded):
                raise UserError(
                    f"{where}: column {field.name!r} is {encoded}-encoded, which streams do not"
                    " carry; cast it to its plain type, such as string"
                )
    return plain_schema(schema)


def check_union(schemas: Sequence[pa.Schema]) -> None:
    """Refuse inputs of a union whose schemas differ, naming the first difference."""
    first = schemas[0]
    for position, other in enumerate(schemas[1:], start=2):
        if other.equals(first):
            continue
        raise UserError(
            f"union: stream {position} has {_difference(first, other)}; "
            "make the schemas equal with select()"
        )


def check_graph(graph: LogicalGraph, *, max_parallelism: int, parallelism: int) -> None:
    """Refuse faults that only the whole graph shows.

    Args:
        parallelism: of operators that set none.

    Raises: UserError for a repeated or missing name, a missing source or sink, and parallelism out
    of range.
    """
    _check_ends(graph)
    _check_names(graph)
    check_parallelism(max_parallelism, where="max_parallelism")
    _check_below(parallelism, max_parallelism, who="the job")
    for node in graph.nodes:
        if node.parallelism is not None:
            _check_below(node.parallelism, max_parallelism, who=node.label)


def check_parallelism(value: object, *, where: str, limit: int = MAX_PARALLELISM_LIMIT) -> None:
    """Refuse a value other than a whole number from 1 to `limit`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise UserError(f"{where}={value!r} is not a whole number from 1 to {limit}")


def require_name(name: object, *, kind: str, proposal: str, why: str) -> str:
    """Return `name`; refuse None or a name that cannot be an identity, and propose one."""
    if name is None:
        raise UserError(f"{kind} needs name=, {why}; for example name={proposal!r}")
    return check_name(name, kind=kind)


def check_name(name: object, *, kind: str) -> str:
    """Return `name`; refuse a name that cannot stand in paths, edge keys and metric labels."""
    if not isinstance(name, str) or not name:
        raise UserError(f"{kind}: name={name!r} is not a name; write a short word such as 'orders'")
    # "->" separates the ends of an edge key and "/" its port; other characters would not survive a
    # path or a table.
    if "/" in name or "->" in name or not name.isprintable() or name != name.strip():
        raise UserError(
            f"{kind}: name={name!r} may not hold '/', '->', line breaks or outer spaces"
        )
    return name


def _holds(type_: pa.DataType, is_encoded: Callable[[pa.DataType], bool]) -> bool:
    """Say whether `type_` is an encoded type or contains one."""
    if is_encoded(type_):
        return True
    return any(_holds(type_.field(i).type, is_encoded) for i in range(type_.num_fields))


def _difference(first: pa.Schema, other: pa.Schema) -> str:
    for name in first.names:
        if name not in other.names:
            return f"no column {name!r}, which stream 1 has"
    for name in other.names:
        if name not in first.names:
            return f"a column {name!r}, which stream 1 lacks"
    for left, right in zip(first, other, strict=True):
        if left.name != right.name:
            return f"column {right.name!r} where stream 1 has {left.name!r}"
        if left.type != right.type:
            return f"column {right.name!r} as {right.type} where stream 1 has {left.type}"
    return "columns that may be null where stream 1 has none, or the reverse"


def _check_ends(graph: LogicalGraph) -> None:
    roles = {node.role for node in graph.nodes}
    if Role.SINK not in roles:
        raise UserError("the job has no sink; pass at least one, such as stream.write.collect(...)")
    for node in graph.nodes:
        if node.role is not Role.SOURCE and not node.inputs:
            raise UserError(f"{node.label} has no source; begin the stream with hr.read")


def _check_names(graph: LogicalGraph) -> None:
    by_name: dict[str, Node] = {}
    for node in graph.nodes:
        if node.name is None and (node.stateful or node.role is not Role.OPERATOR):
            raise UserError(f"{node.label} needs name=, by which its state is found again")
        name = graph.names[node]
        other = by_name.setdefault(name, node)
        if other is not node:
            raise UserError(
                f"two operators are named {name!r}: {_place(other)} and {_place(node)}; rename one"
            )


def _place(node: Node) -> str:
    return f"{node.kind} at {node.built_at}"


def _check_below(parallelism: int, max_parallelism: int, *, who: str) -> None:
    if parallelism > max_parallelism:
        raise UserError(
            f"{who} has parallelism {parallelism}, above max_parallelism {max_parallelism}; "
            "lower the one or raise the other (state kept so far is lost if max_parallelism"
            " changes)"
        )
