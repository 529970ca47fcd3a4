"""The two sides of a join: columns, restored records, and the comparison of keys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..contract.operators import RestoredState
from ..state.arrays import Mask, is_word_type, words
from ..state.backend import ADDED
from ..state.runs import Rows, record_schema
from ..state.tables import restored_batches


@dataclass(frozen=True, slots=True)
class JoinInput:
    """One side: key columns, in the order of the other side's, event-time column, and schema."""

    keys: tuple[str, ...]
    event_time: str
    schema: pa.Schema


def side_batches(
    states: Iterable[RestoredState], name: str, given: JoinInput, operator: str
) -> list[pa.RecordBatch]:
    """Find the records of a side among restored states, without the columns that a database adds.

    Raises: UserError when the records have other columns or types than the program.
    """
    plain = [
        RestoredState(s.name, s.kind, s.table.drop_columns(_added(s.table)))
        for s in states
        if s.name == name
    ]
    return restored_batches(plain, name, record_schema(given.schema), operator)


def _added(table: pa.Table) -> list[str]:
    return [name for name in table.column_names if name in ADDED]


def have_keys(batch: pa.RecordBatch, keys: Sequence[str]) -> Mask:
    """Tell which records have no null among their keys."""
    valid = np.ones(batch.num_rows, np.bool_)
    for key in keys:
        column = batch.column(key)
        if column.null_count:
            valid &= column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def equal_keys(
    left: pa.RecordBatch,
    left_keys: Sequence[str],
    left_rows: Rows,
    right: pa.RecordBatch,
    right_keys: Sequence[str],
    right_rows: Rows,
) -> Mask:
    """Compare the keys of pairs; there are no nulls. NaN equals NaN, as in key_by."""
    equal = np.ones(len(left_rows), np.bool_)
    for one, other in zip(left_keys, right_keys, strict=True):
        a, b = left.column(one), right.column(other)
        if is_word_type(a.type):
            equal &= words(a)[left_rows] == words(b)[right_rows]
        else:
            same = pc.equal(a.take(pa.array(left_rows)), b.take(pa.array(right_rows)))
            equal &= same.to_numpy(zero_copy_only=False)
    return equal
