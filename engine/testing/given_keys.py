"""The operators of processors, with a key that the caller gives.

A job computes a record's key from columns, and states the columns of results. A unit test has a key
and a record, and reads results as dictionaries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ..contract.errors import UserCodeError
from ..contract.user_code import Row, shown
from ..operators.co_process import CoInput, CoProcessOperator, CoProcessor
from ..operators.connect import BroadcastProcessor, ConnectOperator, ExpiringConnectOperator
from ..operators.process import (
    ProcessOperator,
    StatefulProcessor,
    expires,
    has_processing_timers,
    has_timers,
)
from ..operators.timed_process import TimedProcessOperator
from ..state.types import Key


class GivenKey(ProcessOperator):
    """Takes the key that the caller gives, where a job computes it from columns.

    Attributes:
        given: keys of the records at hand; empty: of stored state, in columns.
        emitted: results whose schema nobody has stated.
    """

    given: Sequence[Key] = ()
    emitted: list[Row]
    _schema_out: pa.Schema | None

    def key_of(self, key: Key) -> Key:
        """A key as columns hand it out."""
        parts = key if isinstance(key, tuple) else (key,)
        columns = [
            pa.array([part], field.type)
            for part, field in zip(parts, self._key_fields, strict=True)
        ]
        batch = pa.record_batch(columns, schema=pa.schema(self._key_fields))
        return super()._keys_of(batch)[0] if columns else None

    def _keys_of(self, batch: pa.RecordBatch) -> list[Key]:
        return list(self.given) * batch.num_rows if self.given else super()._keys_of(batch)

    def _groups_of(self, batch: pa.RecordBatch) -> Iterator[tuple[Key, pa.RecordBatch]]:
        yield self.given[0], batch

    def _batches_of(self, rows: list[Row]) -> list[pa.RecordBatch]:
        if self._schema_out is not None:
            return super()._batches_of(rows)
        for row in rows:
            if not isinstance(row, Mapping):
                what = f"returned {type(row).__name__} {shown(row)} where a dict per record is due"
                raise UserCodeError(self._operator, what)
        self.emitted.extend(rows)
        return []


class _Timed(GivenKey, TimedProcessOperator): ...


class _Co(GivenKey, CoProcessOperator): ...


class _Connect(GivenKey, ConnectOperator): ...


class _ExpiringConnect(GivenKey, ExpiringConnectOperator): ...


def operator_of(
    processor: StatefulProcessor | type[StatefulProcessor],
    keys: pa.Schema,
    output: pa.Schema | None,
    *,
    name: str,
    event_time: str | None,
) -> GivenKey:
    """Make the operator that a job would make for this processor.

    Args:
        keys: the key columns.
        output: columns of the results; None: any, and they are dictionaries (`emitted`).
        event_time: column of a record's time, for states that expire.
    """
    class_ = processor if isinstance(processor, type) else type(processor)
    columns, given = keys.names, (keys, output)
    # A class is what each branch takes as well.
    made: Any = processor
    timed = event_time if expires(class_) else None
    operator: GivenKey
    if issubclass(class_, CoProcessor):
        side = CoInput(tuple(columns), keys, timed)
        operator = _Co(made, side, side, 1, output, operator=name)
    elif issubclass(class_, BroadcastProcessor) and timed is not None:
        operator = _ExpiringConnect(made, columns, 1, *given, event_time=timed, operator=name)
    elif issubclass(class_, BroadcastProcessor):
        operator = _Connect(made, columns, 1, *given, operator=name)
    elif has_timers(class_) or has_processing_timers(class_) or timed is not None:
        operator = _Timed(made, columns, *given, operator=name, event_time=timed)
    else:
        operator = GivenKey(made, columns, *given, operator=name)
    operator.emitted = []
    return operator
