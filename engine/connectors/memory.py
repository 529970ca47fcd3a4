"""Sources and sinks in memory: for tests, notebooks and benchmarks.

`CollectSink` is a full two-phase-commit sink, not a shortcut: records travel as pre-committed
transactions inside the checkpoint and appear in the driver when it completes. So results must fit a
checkpoint's metadata, and the sink shows exactly the records that a file sink would have published.
"""

from __future__ import annotations

import base64
import itertools
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from headrace.inflight.segment import (
    InvalidTable,
    refuse_extensions,
    table_from_ipc,
    table_to_ipc,
)

from ..contract.connectors import Delivery
from ..contract.errors import CommitLost, UserError
from ..contract.operators import (
    OperatorContext,
    Polled,
    RestoredState,
    SinkCommitter,
    SourceStatus,
    StateKind,
    StateSnapshot,
    Transaction,
)

_OFFSETS = pa.schema([("batch", pa.int64()), ("rows", pa.int64())])

#: {token of a sink: {transaction id: its records}}, in commit order. Filled in the driver's process
#: alone.
_collected: dict[str, dict[str, pa.Table]] = {}
_tokens = itertools.count()


class BatchesSource:
    """Gives out record batches that the program holds; batch k belongs to subtask k mod
    parallelism.

    Raises: UserError, when there is no batch or the batches differ in schema.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._batches = tuple(batches)
        if not self._batches:
            raise UserError("a source of batches needs at least one batch, which may be empty")
        for index, batch in enumerate(self._batches):
            if batch.schema != self.schema:
                raise UserError(
                    f"batch {index} has another schema than batch 0: give all batches the same"
                    " columns"
                )

    @property
    def schema(self) -> pa.Schema:
        """Schema of all batches."""
        return self._batches[0].schema

    def reader(self) -> BatchesReader:
        """Make the reader of one subtask."""
        return BatchesReader(self._batches)


class BatchesReader:
    """Reads its share of the batches in order. State: rows done of each batch that was begun."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._batches = batches
        self._own: range = range(0)
        #: Next row to give out: (position in `_own`, row).
        self._position = (0, 0)
        self._committed = (0, 0)
        #: {batch: rows done} from the checkpoint; the batches that the old subtasks left half read.
        self._restored: dict[int, int] = {}
        #: Those that this subtask is to read on in.
        self._begun: list[int] = []

    def open(self, context: OperatorContext) -> None:
        """Take every `parallelism`-th batch."""
        self._own = range(context.index, len(self._batches), context.parallelism)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Skip the records that the checkpoint covers."""
        rows = [row for state in states for row in state.table.to_pylist()]
        self._restored = {row["batch"]: row["rows"] for row in rows if row["batch"] in self._own}
        sizes = {batch: self._batches[batch].num_rows for batch in self._restored}
        self._begun = [b for b, rows in self._restored.items() if 0 < rows < sizes[b]]

    def poll(self, rows_max: int) -> Polled:
        """Give out the next slice."""
        place, row = self._position
        while place < len(self._own):
            batch = self._batches[self._own[place]]
            row = max(row, self._restored.get(self._own[place], 0))
            if row < batch.num_rows:
                part = batch.slice(row, rows_max)
                self._position = (place, row + part.num_rows)
                return Polled((part,), SourceStatus.MORE, split=str(self._own[place]))
            place, row = place + 1, 0
        self._position = (place, 0)
        return Polled((), SourceStatus.END)

    def open_splits(self) -> frozenset[str]:
        """The current batch, and batches that other subtasks left half read."""
        place, row = self._position
        begun = {batch for batch in self._begun if batch in self._own[place:]}
        if row:
            begun.add(self._own[place])
        return frozenset(map(str, begun))

    def commit(self) -> None:
        """Publish the position."""
        self._committed = self._position

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the position."""
        position = self._committed
        return (StateSnapshot("offsets", StateKind.UNION, lambda: self._offsets(position)),)

    def close(self) -> None:
        """Nothing is held."""

    def _offsets(self, position: tuple[int, int]) -> pa.Table:
        """Return rows done by batch, from data that never changes after `restore`."""
        place, row = position
        done = dict(self._restored)
        for index in self._own[:place]:
            done[index] = self._batches[index].num_rows
        if row:
            done[self._own[place]] = row
        return pa.table({"batch": list(done), "rows": list(done.values())}, schema=_OFFSETS)


def _nonce() -> str:
    """Tells apart two runs of one job whose epochs start anew (no checkpoint folder, or another
    one).
    """
    return secrets.token_hex(4)


@dataclass(frozen=True)
class CollectSink:
    """Collects committed records in the driver; `table()` returns them.

    Attributes:
        token: names this sink in the driver's registry; copies of it in other processes carry the
            same one.
        nonce: makes the last part of transaction ids.
    """

    token: str = field(default_factory=lambda: f"{os.getpid()}-{next(_tokens)}")
    nonce: Callable[[], str] = _nonce

    @property
    def delivery(self) -> Delivery:
        """Transactions are committed with the checkpoint, each once."""
        return "exactly-once"

    def check(self, schema: pa.Schema) -> None:
        """Refuse extension types, which no checkpoint holds. Raises: UserError."""
        try:
            refuse_extensions(schema)
        except InvalidTable as reason:
            raise UserError(f"collect: {reason}") from None

    def writer(self) -> CollectWriter:
        """Make the writer of one subtask."""
        return CollectWriter(self.nonce)

    def committer(self, job: str, operator: str) -> CollectCommitter:
        """Make the committer, which runs in the driver."""
        return CollectCommitter(self.token)

    def table(self) -> pa.Table:
        """Return all committed records, in commit order; without any, an empty table without
        columns.
        """
        tables = list(_collected.get(self.token, {}).values())
        return pa.concat_tables(tables) if tables else pa.table({})


class CollectWriter:
    """Keeps the batches of the open transaction; pre-commit turns them into text for the
    checkpoint.
    """

    def __init__(self, nonce: Callable[[], str] = _nonce) -> None:
        self._nonce = nonce
        self._prefix = ""
        self._count = 0
        self._batches: list[pa.RecordBatch] = []

    def open(self, context: OperatorContext) -> None:
        """Fix the first part of the transaction ids."""
        where = f"{context.operator}-{context.index}-{context.epoch}"
        self._prefix = f"{where}-{self._nonce()}"

    def restore(self, states: Sequence[RestoredState]) -> None:
        """A writer keeps no state."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records to the open transaction."""
        self._batches.append(batch)

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        """Hand the records over as Arrow IPC in base64."""
        if not self._batches:
            return ()
        stream = b"".join(table_to_ipc(pa.Table.from_batches(self._batches)))
        self._batches = []
        self._count += 1
        data = base64.b64encode(stream).decode("ascii")
        return (Transaction(f"{self._prefix}-{self._count}", {"arrow": data}),)

    def commit(self) -> None:
        """A writer keeps no state."""

    def snapshot(self) -> Sequence[StateSnapshot]:
        """A writer keeps no state."""
        return ()

    def close(self) -> None:
        """Drop records that were not pre-committed."""
        self._batches = []


class CollectCommitter:
    """Appends transactions to the driver's registry, each once."""

    def __init__(self, token: str) -> None:
        self._token = token

    def own(self, owner: str, *, anew: bool) -> None:
        """Forget the records of an earlier run, which a run that begins anew collects again."""
        if anew:
            self.remove_output()

    def output(self) -> str:
        """Records of an earlier run are in nobody's way."""
        return ""

    def remove_output(self) -> None:
        """Forget all records."""
        _collected.pop(self._token, None)

    def commit(self, checkpoint: int, transactions: Sequence[Transaction]) -> None:
        """Show the transactions' records, each transaction once."""
        shown = _collected.setdefault(self._token, {})
        for transaction in transactions:
            if transaction.id not in shown:
                shown[transaction.id] = _table_of(transaction)

    def recover(
        self, checkpoint: int, committed: Sequence[Transaction], *, epoch: int | None = None
    ) -> None:
        """Commit again; transactions of lost attempts never left their checkpoint and need no
        abort.
        """
        self.commit(checkpoint, committed)


def _table_of(transaction: Transaction) -> pa.Table:
    try:
        data = base64.b64decode(str(transaction.payload.get("arrow", "")), validate=True)
        return table_from_ipc(data)
    except (ValueError, InvalidTable) as error:
        raise CommitLost(
            f"transaction {transaction.id!r} of a collect sink cannot be committed: its records"
            f" are damaged ({error})"
        ) from error


@dataclass(frozen=True, slots=True)
class BlackholeSink:
    """Counts records and drops them: for benchmarks."""

    @property
    def delivery(self) -> Delivery:
        """Nothing is delivered, so nothing twice."""
        return "exactly-once"

    def check(self, schema: pa.Schema) -> None:
        """Records of every schema can be dropped."""

    def writer(self) -> BlackholeWriter:
        """Make the writer of one subtask."""
        return BlackholeWriter()

    def committer(self, job: str, operator: str) -> SinkCommitter | None:
        """There is nothing to commit."""
        return None


class BlackholeWriter:
    """Counts rows.

    Attributes:
        rows: written by this attempt.
    """

    def __init__(self) -> None:
        self.rows = 0

    def open(self, context: OperatorContext) -> None:
        """Nothing to prepare."""

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Counts begin anew with each attempt."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Count the rows."""
        self.rows += batch.num_rows

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        """There is nothing to commit."""
        return ()

    def commit(self) -> None:
        """There is no state."""

    def snapshot(self) -> Sequence[StateSnapshot]:
        """There is no state."""
        return ()

    def close(self) -> None:
        """Nothing is held."""
