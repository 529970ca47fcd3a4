"""The watermark as an operator's state, by key group, and late records.

All key groups of a subtask share one watermark, until a rescale brings together key groups of
subtasks with different watermarks. The runtime then goes on with the lowest watermark; but a window
that its old subtask closed must not open again. So a checkpoint holds a watermark per key group,
and a restore lowers no key group's watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK
from headrace.channels.keygroups import key_group_range, key_groups

from ..contract.operators import OperatorContext, RestoredState, StateKind, StateSnapshot
from ..state.arrays import Mask
from ..state.tables import KEY_GROUP
from .backends import KeyedOperator
from .windows import Times

# Format, never change.
WATERMARK_STATE = "watermark"
_SCHEMA = pa.schema([KEY_GROUP, pa.field("watermark", pa.int64(), nullable=False)])


class Watermarks:
    """The watermark of the running work, and the committed watermark.

    Attributes:
        current: of the running work, in nanoseconds since 1970.
    """

    def __init__(self, context: OperatorContext) -> None:
        self._max_parallelism = context.max_parallelism
        self._owned = key_group_range(context.max_parallelism, context.parallelism, context.index)
        self.current = MIN_WATERMARK
        #: By key group, the restored watermark; None once `current` has passed every restored
        #: watermark.
        self._restored: Times | None = None
        #: The two as committed.
        self._committed: tuple[int, Times | None] = (MIN_WATERMARK, None)

    def advance(self, watermark_ns: int) -> None:
        """Event time has come to here."""
        self.current = max(self.current, watermark_ns)
        if self._restored is not None and self._restored.max() <= self.current:
            self._restored = None

    def of(self, batch: pa.RecordBatch, keys: Sequence[str]) -> Times | int:
        """Return each record's watermark, by the key group of its `keys`; a number if all equal."""
        if self._restored is None:
            return self.current
        groups = key_groups(batch, keys, self._max_parallelism)
        return np.maximum(self._restored[groups], self.current)

    @property
    def committed(self) -> int:
        """The watermark that snapshots see."""
        return self._committed[0]

    def commit(self) -> None:
        """Publish the watermark to snapshots."""
        self._committed = (self.current, self._restored)

    def restore(self, states: Iterable[RestoredState]) -> None:
        """Restore the watermarks of this subtask's key groups."""
        restored = np.full(self._max_parallelism, MIN_WATERMARK, np.int64)
        for state in states:
            if state.name == WATERMARK_STATE:
                groups = state.table[KEY_GROUP.name].to_numpy()
                restored[groups] = np.maximum(restored[groups], state.table["watermark"].to_numpy())
        # The end of input is no event time: records that come all the same are of new input, which
        # a job that had finished was given since. All windows before are closed and gone.
        restored[restored == MAX_WATERMARK] = MIN_WATERMARK
        self._restored = restored if restored.max() > self.current else None
        self.commit()

    def snapshot(self) -> StateSnapshot:
        """Freeze the committed watermark."""
        return StateSnapshot(WATERMARK_STATE, StateKind.KEYED, self._table())

    def _table(self) -> Callable[[], pa.Table]:
        (committed, restored), owned = self._committed, self._owned

        def table() -> pa.Table:
            groups = np.arange(owned.start, owned.stop, dtype=np.uint16)
            found = np.full(len(groups), committed, np.int64)
            if restored is not None:
                found = np.maximum(found, restored[owned.start : owned.stop])
            return pa.table([pa.array(groups), pa.array(found)], schema=_SCHEMA)

        return table


class LateRecords:
    """Late records, until the chain takes the batches."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch, late: Mask) -> None:
        """Keep the records that `late` marks."""
        if late.all():
            self._batches.append(batch)
        elif late.any():
            self._batches.append(batch.filter(pa.array(late)))

    def take(self) -> list[pa.RecordBatch]:
        """Return the late records since the last call."""
        taken, self._batches = self._batches, []
        return taken


class JudgesLateness(KeyedOperator):
    """Base of operators with late records: holds the watermark and the late records."""

    def __init__(self) -> None:
        self._late = LateRecords()
        self._max_parallelism = 0
        self._watermarks: Watermarks | None = None

    def open(self, context: OperatorContext) -> None:
        """Note where this instance runs."""
        self._max_parallelism = context.max_parallelism
        self._watermarks = Watermarks(context)

    def commit(self) -> None:
        """Publish the writes of the last call, and the watermark."""
        self._time.commit()
        super().commit()

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the watermark, and committed tables outside a database."""
        return [*super().snapshot(), self._time.snapshot()]

    def finish(self) -> Iterable[pa.RecordBatch]:
        """The last watermark has emitted all."""
        return ()

    def take_late(self) -> Sequence[pa.RecordBatch]:
        """Hand out the late records."""
        return self._late.take()

    @property
    def _time(self) -> Watermarks:
        assert self._watermarks is not None, "opened"
        return self._watermarks
