"""The keyed aggregate: on the heap, where its columns hold all keys, or on RocksDB, where they hold those of one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from ..contract.operators import (
    DatabaseSnapshot,
    OperatorContext,
    RestoredDatabase,
    RestoredState,
    StateBackend,
    StateSnapshot,
)
from .aggregations import Aggregation
from .heap_aggregate import STATE_NAME, Emit, HeapAggregate


class AggregateOperator:
    """Aggregates by key, where `backend` says or else the job does. See `HeapAggregate` for the errors."""

    def __init__(
        self,
        keys: Sequence[str],
        aggregations: Mapping[str, Aggregation],
        schema_in: pa.Schema,
        emit: Emit = "changes",
        *,
        operator: str = STATE_NAME,
        backend: StateBackend | None = None,
    ) -> None:
        self._stated = backend
        self._make: Callable[[type[HeapAggregate]], HeapAggregate] = lambda class_: class_(
            keys, aggregations, schema_in, emit, operator=operator
        )
        # Made even if it will not be used: it finds the user's mistakes.
        self._aggregate = self._make(HeapAggregate)

    def open(self, context: OperatorContext) -> None:
        """Choose the backend and open it."""
        if (self._stated or context.backend).kind != "heap":
            # Not at the top: jobs on the heap need not wait for rocksdict.
            from .rocks_aggregate import RocksAggregate

            self._aggregate = self._make(RocksAggregate)
            context = replace(context, backend=self._merged(context.backend))
        self._aggregate.open(context)

    def restore_databases(self, databases: Sequence[RestoredDatabase]) -> bool:
        """See `KeepsDatabase`."""
        return self._aggregate.restore_databases(databases)

    def check_states(self, states: Sequence[RestoredState]) -> None:
        """See `ChecksStates`."""
        self._aggregate.check_states(states)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Take back the keys that this subtask owns now."""
        self._aggregate.restore(states)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Take in a batch."""
        return self._aggregate.process(batch, port)

    def finish(self) -> Iterable[pa.RecordBatch]:
        """In "final" mode, emit every key."""
        return self._aggregate.finish()

    def commit(self) -> None:
        """Publish the values of the touched keys."""
        self._aggregate.commit()

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the committed values on the heap."""
        return self._aggregate.snapshot()

    def freeze_database(self) -> DatabaseSnapshot | None:
        """Freeze the committed values in the database."""
        return self._aggregate.freeze_database()

    def close(self) -> None:
        """Release what is held outside memory."""
        self._aggregate.close()

    def _merged(self, job: StateBackend) -> StateBackend:
        return job if self._stated is None else replace(self._stated, folder=job.folder)
