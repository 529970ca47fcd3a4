"""PySpark Python data sources as sinks: a `DataSourceStreamWriter` without a session.

The writer is made in the driver and shipped, as Spark does it. A subtask's records between two
checkpoints are one call of `write`, in a thread of its own; its message is the transaction.
`commit` gets the messages of one checkpoint under a batch id: 0, 1, 2 ... through the life of the
job's folder, and the same id when it is repeated.

    FOLDER/batches.json    {"next": 8, "done": {RUN: CHECKPOINT}, "pending": [RUN, CHECKPOINT, 7]}

The pending batch is noted before `commit` is called, and done after it. Without checkpoints the
notes are in memory, and nothing is repeated.

Not here: `abort`. Messages of a checkpoint that did not become complete never reach the driver.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from ...contract.connectors import Delivery
from ...contract.errors import HeadraceError, UserError
from ...contract.operators import OperatorContext, RestoredState, StateSnapshot, Transaction
from .. import durable
from ..filesystem import locate
from ..tokens import by_run
from .columns import spark_batch
from .hosted import Hosted
from .plain import from_plain, to_plain

#: Batches that wait for a writer: little, since they are in no checkpoint.
_WAITING = 2
_NOTES = "batches.json"


class DataSourceSink:
    """Writes to a Python data source."""

    def __init__(self, hosted: Hosted) -> None:
        """Make the stream writer, for driver and subtasks alike.

        Raises: UserError, when the data source has none, or refuses its options.
        """
        if not hosted.has("streamWriter"):
            raise UserError(f"write.data_source: {hosted.what} has no streamWriter")
        self._hosted = hosted
        try:
            self._writer: Any = hosted.make().streamWriter(hosted.schema, False)
        except Exception as error:
            raise UserError(
                f"write.data_source: {hosted.what} makes no writer: {type(error).__name__}: {error}"
            ) from error

    @property
    def delivery(self) -> Delivery:
        """What the writer promises."""
        promised = getattr(self._writer, "headrace_idempotent", False)
        return "exactly-once" if promised is True else "at-least-once"

    def check(self, schema: pa.Schema) -> None:
        """The schema was checked as the data source was found."""

    def writer(self) -> SubtaskWriter:
        """Make the writer of one subtask."""
        return SubtaskWriter(self._hosted, self._writer)

    def committer(self, job: str, operator: str) -> BatchCommitter:
        """Make the committer, which runs in the driver."""
        return BatchCommitter(self._hosted, self._writer)


class SubtaskWriter:
    """Runs `write` of the data source, one call a checkpoint."""

    def __init__(self, hosted: Hosted, writer: Any) -> None:
        self._hosted = hosted
        self._writer = writer
        self._context: OperatorContext | None = None
        self._count = 0
        self._call: _Call | None = None

    def open(self, context: OperatorContext) -> None:
        """Know the subtask."""
        self._context = context

    def restore(self, states: Sequence[RestoredState]) -> None:
        """A writer keeps no state."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Hand records to the call of `write`, or begin one. Raises: HeadraceError."""
        assert self._context is not None, "open() comes first"
        if self._call is None:
            self._count += 1
            self._call = _Call(self._hosted, self._writer, self._context)
        self._call.give(batch)

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        """End the records of the call, and wait for its message. Raises: HeadraceError."""
        if self._call is None:
            return ()
        call, self._call = self._call, None
        message = call.finish()
        where = self._context
        assert where is not None, "open() comes first"
        what = f"the commit message of {self._hosted.what}"
        text = "" if message is None else to_plain(message, what)
        name = f"{where.operator}-{where.index}-{where.epoch}-{self._count}"
        return (Transaction(name, {"message": text}),)

    def commit(self) -> None:
        """A writer keeps no state."""

    def snapshot(self) -> Sequence[StateSnapshot]:
        """A writer keeps no state."""
        return ()

    def close(self) -> None:
        """Give the call up that is under way."""
        if self._call is not None:
            self._call.abandon()
            self._call = None


class _Abandoned(Exception):
    """The attempt has ended."""


class _Call:
    """One call of `write`, in its thread."""

    def __init__(self, hosted: Hosted, writer: Any, context: OperatorContext) -> None:
        self._hosted = hosted
        self._writer = writer
        self._context = context
        #: None: there are no more; an exception: the call is given up.
        self._queue: queue.Queue[pa.RecordBatch | _Abandoned | None] = queue.Queue(_WAITING)
        self._message: Any = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        name = f"write-{context.operator}-{context.index}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def give(self, item: pa.RecordBatch | _Abandoned | None) -> None:
        """Hand an item over when there is room. Raises: HeadraceError, when the call has failed."""
        while not self._ended.is_set():
            with suppress(queue.Full):
                self._queue.put(item, timeout=0.1)
                return
        self._tell()

    def finish(self) -> Any:
        """Return the message. Raises: HeadraceError."""
        self.give(None)
        self._thread.join()
        self._tell()
        return self._message

    def abandon(self) -> None:
        """Let the call fail; waits for nothing that the data source may be busy with."""
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        with suppress(queue.Full):
            self._queue.put_nowait(_Abandoned())

    def _tell(self) -> None:
        if self._error is not None:
            raise HeadraceError(
                f"{self._hosted.what} cannot write: {type(self._error).__name__}: {self._error}"
            ) from self._error

    def _run(self) -> None:
        enter_task(self._context)
        try:
            takes_batches = _takes_batches(self._writer)
            self._message = self._writer.write(self._batches() if takes_batches else self._rows())
            # A writer may stop before the end of its records.
            while (item := self._queue.get()) is not None and not isinstance(item, _Abandoned):
                pass
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        schema: StructType = self._hosted.schema
        while (item := self._queue.get()) is not None:
            if isinstance(item, _Abandoned):
                raise item
            yield spark_batch(item, schema, self._hosted.what)
        # Whoever asks again, and the end of the call, find the end.
        self._queue.put(None)

    def _rows(self) -> Iterator[Any]:
        for batch in self._batches():
            table = pa.Table.from_batches([batch])
            yield from ArrowTableToRowsConversion.convert(table, self._hosted.schema)


def _takes_batches(writer: Any) -> bool:
    """`DataSourceStreamArrowWriter`, of PySpark 4.1 and later."""
    return any(base.__name__ == "DataSourceStreamArrowWriter" for base in type(writer).__mro__)


class _TaskContext(TaskContext):
    """What writers ask a task of Spark for, where there is none; of the asking thread."""

    def partitionId(self) -> int:
        """The subtask."""
        return int(getattr(_here, "index", 0))

    def attemptNumber(self) -> int:
        """The attempt of the job."""
        return int(getattr(_here, "epoch", 0))

    def taskAttemptId(self) -> int:
        """Another one for each subtask and attempt."""
        return self.attemptNumber() << 20 | self.partitionId()

    def stageId(self) -> int:
        """There is one."""
        return 0

    def getLocalProperty(self, key: str) -> str | None:
        """There are none."""
        return None


_here = threading.local()


def enter_task(context: OperatorContext) -> None:
    """Give this thread a `TaskContext`, unless it runs inside a task of Spark."""
    _here.index, _here.epoch = context.index, context.epoch
    if TaskContext._taskContext is None:
        TaskContext._taskContext = object.__new__(_TaskContext)


@dataclass
class Notes:
    """Batch ids.

    Attributes:
        next: id of the next batch.
        done: {run: the last checkpoint that is committed}.
        pending: run, checkpoint and id of a batch whose `commit` was called.
    """

    next: int = 0
    done: dict[str, int] = field(default_factory=dict)
    pending: list[Any] | None = None


class BatchCommitter:
    """Calls `commit` of the data source, with a batch id for each checkpoint."""

    def __init__(self, hosted: Hosted, writer: Any) -> None:
        self._hosted = hosted
        self._writer = writer
        self._folder = ""
        self._notes = Notes()

    def keep_in(self, folder: str) -> None:
        """See `KeepsNotes`."""
        self._folder = folder
        if folder:
            location = locate(folder, {})
            with suppress(FileNotFoundError):
                text = location.fs.cat_file(f"{location.root}/{_NOTES}")
                self._notes = Notes(**json.loads(text))

    def commit(self, checkpoint: int, transactions: Sequence[Transaction]) -> None:
        """Commit each checkpoint's messages as a batch, unless it is noted as done."""
        for run, group in by_run(transactions).items():
            for number in sorted({t.checkpoint for t in group}):
                if number > self._notes.done.get(run, 0):
                    self._commit(run, number, [t for t in group if t.checkpoint == number])

    def recover(
        self, checkpoint: int, committed: Sequence[Transaction], *, epoch: int | None = None
    ) -> None:
        """Commit again."""
        self.commit(checkpoint, committed)

    def _commit(self, run: str, checkpoint: int, transactions: Sequence[Transaction]) -> None:
        what = f"a commit message of {self._hosted.what}"
        texts = [str(t.payload["message"]) for t in transactions]
        messages = [
            from_plain(text, WriterCommitMessage, self._writer, what) if text else None
            for text in texts
        ]
        batch = self._begun(run, checkpoint)
        self._writer.commit(messages, batch)
        self._notes.done[run] = checkpoint
        self._notes.pending = None
        self._keep()

    def _begun(self, run: str, checkpoint: int) -> int:
        """Return the id of a batch, noted as pending."""
        pending = self._notes.pending
        if pending is not None and pending[:2] == [run, checkpoint]:
            return int(pending[2])
        batch = self._notes.next
        self._notes.next += 1
        self._notes.pending = [run, checkpoint, batch]
        self._keep()
        return batch

    def _keep(self) -> None:
        if self._folder:
            location = locate(self._folder, {})
            durable.make_folder(location, location.root)
            durable.publish(
                location, f"{location.root}/{_NOTES}", json.dumps(asdict(self._notes)).encode()
            )
