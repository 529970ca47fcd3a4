"""A sink for a look at a stream: the first records, in this process, as soon as they are there.

Nothing is committed, so a record may be seen of a job that fails later. Workers are threads of the
process that looks.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from ..contract.connectors import Delivery
from ..contract.operators import (
    OperatorContext,
    RestoredState,
    SinkCommitter,
    StateSnapshot,
    Transaction,
)

_tokens = itertools.count()


class Seen:
    """Records of one look; any thread adds."""

    def __init__(self, rows_max: int) -> None:
        self.enough = threading.Event()
        self._lock = threading.Lock()
        self._left = rows_max
        self._batches: list[pa.RecordBatch] = []
        if not rows_max:
            self.enough.set()

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep records as long as there are too few."""
        with self._lock:
            taken = batch.slice(0, self._left)
            self._left -= taken.num_rows
            if taken.num_rows:
                self._batches.append(taken)
            if not self._left:
                self.enough.set()

    def table(self, schema: pa.Schema) -> pa.Table:
        """Return all records."""
        with self._lock:
            return pa.Table.from_batches(self._batches, schema=schema)


#: {token of a sink: its records}.
_seen: dict[str, Seen] = {}


@dataclass(frozen=True, slots=True)
class LookSink:
    """Keeps the first records for whoever looks.

    Attributes:
        token: names the look in this process.
    """

    token: str = field(default_factory=lambda: f"{os.getpid()}-{next(_tokens)}")

    @property
    def delivery(self) -> Delivery:
        """Records of a failed job were seen, too."""
        return "at-least-once"

    def check(self, schema: pa.Schema) -> None:
        """Take every schema."""

    def writer(self) -> LookWriter:
        """Make the writer of one subtask."""
        return LookWriter(self.token)

    def committer(self, job: str, operator: str) -> SinkCommitter | None:
        """Commit nothing."""
        return None

    def begin(self, rows_max: int) -> Seen:
        """Begin to look."""
        seen = _seen[self.token] = Seen(rows_max)
        return seen

    def end(self) -> None:
        """Forget the records."""
        _seen.pop(self.token, None)


class LookWriter:
    """Adds records to the look, if it is not over."""

    def __init__(self, token: str) -> None:
        self._token = token

    def open(self, context: OperatorContext) -> None:
        """Open nothing."""

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Keep no state."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records."""
        if (seen := _seen.get(self._token)) is not None:
            seen.add(batch)

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        """Commit nothing."""
        return ()

    def commit(self) -> None:
        """Keep no state."""

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Keep no state."""
        return ()

    def close(self) -> None:
        """Hold nothing."""
