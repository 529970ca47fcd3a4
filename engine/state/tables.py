"""Keyed state as Arrow tables: a leading `__key_group` column, rows sorted by it.

Sorted, so that the rows of a range of key groups are one slice: a rescale cuts tables without
looking at keys. Runs in a storage thread, on frozen copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
import pyarrow as pa

from headrace.channels.keygroups import key_groups

from ..contract.errors import UserError
from ..contract.operators import RestoredState
from .types import Cell, Key
from .widening import widened_table

# Format, never change.
KEY_GROUP = pa.field("__key_group", pa.uint16(), nullable=False)

#: Rows of Python objects made into Arrow at a time: a chunk is the longest hold of the GIL.
_CHUNK_ROWS = 4096


def keyed_table(batch: pa.RecordBatch, keys: Sequence[str], max_parallelism: int) -> pa.Table:
    """Sort the rows of `batch` by the key group of their `keys`, and put the key group in front."""
    groups = key_groups(batch, keys, max_parallelism)
    # Stable, so that equal state gives equal bytes; on uint16 a radix sort.
    order = np.argsort(groups, kind="stable")
    sorted_batch = batch.take(pa.array(order))
    return pa.Table.from_arrays(
        [pa.array(groups[order]), *sorted_batch.columns],
        schema=pa.schema([KEY_GROUP, *batch.schema]),
    )


def table_of_items(
    items: Iterable[tuple[Key, Cell]], schema: pa.Schema, max_parallelism: int
) -> pa.Table:
    """Make the keyed table of Python keys and values; the last column of `schema` is the
    value's.
    """
    names = schema.names[:-1]
    batches = [pa.RecordBatch.from_pylist([], schema=schema)]
    left = iter(items)
    while some := list(islice(left, _CHUNK_ROWS)):
        columns = [
            *key_columns([key for key, _ in some], len(names)),
            [to_arrow(v) for _, v in some],
        ]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return keyed_table(pa.concat_batches(batches), names, max_parallelism)


def key_columns(keys: Sequence[Key], count: int) -> Sequence[Sequence[Cell]]:
    """Split Python keys into `count` columns: a key of several columns is a tuple."""
    return [keys] if count == 1 else list(zip(*keys, strict=True))


def to_arrow(value: Cell) -> Cell:
    """Turn maps into lists of pairs, Arrow's form."""
    return list(value.items()) if isinstance(value, dict) else value


def restored_batches(
    states: Iterable[RestoredState],
    name: str,
    schema: pa.Schema,
    operator: str,
    default: Cell = None,
) -> list[pa.RecordBatch]:
    """Return the restored rows of the state `name`, without the key group.

    Fields added to a struct since are filled from `default` (a dict), or are null.

    Raises: UserError when columns or types differ between the checkpoint and the program.
    """
    batches: list[pa.RecordBatch] = []
    for state in states:
        if state.name != name:
            continue
        table = widened_table(state.table.drop_columns([KEY_GROUP.name]), schema, name, default)
        check_state(name, table.schema, schema, operator)
        batches += [b for b in table.select(schema.names).to_batches() if b.num_rows]
    return batches


def check_state(name: str, held: pa.Schema, declared: pa.Schema, operator: str) -> None:
    """Refuse a state with other columns or types in the checkpoint than in the program.

    Raises: UserError.
    """
    found = {field.name: field.type for field in held}
    wanted = {field.name: field.type for field in declared}
    if found != wanted:
        raise UserError(
            f"operator {operator!r}: the checkpoint holds state {name!r} as ({_columns(found)})"
            " but the program "
            f"has ({_columns(wanted)}); give the changed operator a new name= or start without the"
            " checkpoint"
        )


def refuse_unknown(states: Iterable[RestoredState], names: Iterable[str], operator: str) -> None:
    """Refuse state that the program no longer has: dropping it would lose it silently.

    Raises: UserError.
    """
    known = sorted(names)
    for state in states:
        if state.name not in known:
            raise UserError(
                f"operator {operator!r}: the checkpoint holds state {state.name!r} but the program"
                " has only "
                f"{', '.join(map(repr, known)) or 'none'}; declare it again or give the operator a"
                " new name="
            )


def _columns(types: dict[str, pa.DataType]) -> str:
    return ", ".join(f"{name}: {type_}" for name, type_ in types.items())
