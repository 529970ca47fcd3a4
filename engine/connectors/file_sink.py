"""The file sink: a subtask's records between two checkpoints become one file, visible when the
checkpoint is complete.

    <path>/_headrace/<job>/<operator>/<subtask>-<epoch>-<count>-<nonce>.tmp
        written, synced at pre-commit
    <path>/part-<operator>-<subtask>-<checkpoint>-<epoch>-<nonce>-<count>.parquet
        its name after commit

A transaction's id is its temporary file's path below `<path>/_headrace/<job>`, without the suffix.
Each writer draws a nonce as it opens: epochs begin anew when a job starts without its old
checkpoints, and a file of an earlier run must never be taken for a file of this run, nor be written
over.

Commit renames, then syncs the folder. A repeated commit accepts a file that has its final name
already; a file with neither name is lost, and raises. Only temporary files of the same job and sink
are ever deleted.

Readers pass over `_headrace`, as Spark and pyarrow datasets do; other programs that list the folder
should, too.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, get_args
from urllib.parse import quote

import pyarrow as pa
import xxhash

from ..contract.connectors import Delivery
from ..contract.errors import JobFailed, UserError
from ..contract.operators import OperatorContext, RestoredState, StateSnapshot, Transaction
from . import durable
from .filesystem import Location, locate
from .writers import RecordWriter, open_writer, probe

SinkFormat = Literal["parquet", "json"]

_WORK = "_headrace"
_NAME_BYTES_MAX = 150
_SUFFIX = ".tmp"


class CommitLost(JobFailed):
    """A pre-committed file can no longer be made visible: its records are lost or damaged.

    Attributes:
        path: the expected path.
        reason: the state of that path instead.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot commit {self.path}: {self.reason}"


def _nonce() -> str:
    return secrets.token_hex(4)


class FileSink:
    """Writes Parquet or JSON-lines files into a folder, each record once."""

    def __init__(
        self,
        path: str,
        format: SinkFormat = "parquet",
        *,
        compression: str = "snappy",
        storage_options: Mapping[str, Any] | None = None,
        nonce: Callable[[], str] = _nonce,
    ) -> None:
        """Describe the sink; nothing is touched before `check`.

        Args:
            path: the folder, or any fsspec URL of one.
            format: "parquet", or "json" for an object a line.
            compression: of Parquet files: "snappy", "zstd", "gzip", "lz4", "brotli" or "none".
            storage_options: passed to fsspec.
            nonce: makes the part of file names that no other writer has.

        Raises: UserError, for a format or a place that does not exist.
        """
        if format not in get_args(SinkFormat):
            raise UserError(f"format={format!r}: choose one of {', '.join(get_args(SinkFormat))}")
        self._location = locate(path, storage_options or {})
        self._format = format
        self._compression = compression
        self._nonce = nonce

    @property
    def delivery(self) -> Delivery:
        """Files appear with their checkpoint, each once."""
        return "exactly-once"

    def check(self, schema: pa.Schema) -> None:
        """Try out the format, create the folder, and write and delete a file in it.

        Raises: UserError.
        """
        try:
            probe(self._format, schema, self._compression)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise UserError(f"cannot write these records as {self._format}: {error}") from error
        folder = f"{self._location.root}/{_WORK}"
        path = f"{folder}/check-{_nonce()}{_SUFFIX}"
        try:
            durable.make_folder(self._location, folder)
            durable.create(self._location, path).close()
            durable.remove(self._location, path)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(
                f"cannot write to the folder {self._location.root}: {reason}"
            ) from error

    def writer(self) -> FileWriter:
        """Make the writer of one subtask."""
        return FileWriter(self._location, self._format, self._compression, self._nonce)

    def committer(self, job: str, operator: str) -> FileCommitter:
        """Make the committer of this sink, which is `operator` in `job`."""
        return FileCommitter(self._location, job=job, operator=operator)


class FileWriter:
    """Writes one temporary file a checkpoint. Keeps no state: transactions carry its files."""

    def __init__(
        self, location: Location, format: SinkFormat, compression: str, nonce: Callable[[], str]
    ) -> None:
        self._location = location
        self._format = format
        self._compression = compression
        self._make_nonce = nonce
        self._nonce = ""
        self._context: OperatorContext | None = None
        self._count = 0
        self._records: RecordWriter | None = None
        #: Id of the open transaction, when there is one.
        self._id = ""

    def open(self, context: OperatorContext) -> None:
        """Create the folder for temporary files."""
        self._context = context
        self._nonce = self._make_nonce()
        folder = f"{_job_folder(self._location, context.job)}/{_safe(context.operator)}"
        durable.make_folder(self._location, folder)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """A writer keeps no state."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records to the open file, or begin one."""
        if self._records is None:
            self._records = self._begin(batch.schema)
        self._records.write(batch)

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        """Make the file durable under its temporary name."""
        if self._records is None:
            return ()
        context = self._opened()
        rows = self._records.finish()
        path = self._temporary()
        durable.close_durably(self._location, path, self._records.file)
        # From here on the file is the committer's, and `close` leaves it alone.
        self._records = None
        size_bytes = durable.size_bytes(self._location, path)
        assert size_bytes is not None, f"{path} is gone as soon as it was written"
        name = (
            f"part-{_safe(context.operator)}-{context.index}-{checkpoint}-{context.epoch}"
            f"-{self._nonce}-{self._count}.{self._format}"
        )
        payload: dict[str, str | int] = {"file": name, "bytes": size_bytes, "rows": rows}
        return (Transaction(self._id, payload),)

    def commit(self) -> None:
        """A writer keeps no state."""

    def snapshot(self) -> Sequence[StateSnapshot]:
        """A writer keeps no state."""
        return ()

    def close(self) -> None:
        """Delete the file that was not pre-committed, as far as that is possible."""
        if self._records is None:
            return
        records, self._records = self._records, None
        # The committer deletes what stays behind, before the next attempt.
        records.abandon()
        with suppress(Exception):
            records.file.close()
        with suppress(Exception):
            durable.remove(self._location, self._temporary())

    def _begin(self, schema: pa.Schema) -> RecordWriter:
        context = self._opened()
        self._count += 1
        name = f"{context.index}-{context.epoch}-{self._count}-{self._nonce}"
        self._id = f"{_safe(context.operator)}/{name}"
        file = durable.create(self._location, self._temporary())
        return open_writer(self._format, file, schema, self._compression)

    def _temporary(self) -> str:
        return f"{_job_folder(self._location, self._opened().job)}/{self._id}{_SUFFIX}"

    def _opened(self) -> OperatorContext:
        assert self._context is not None, "open() comes first"
        return self._context


class FileCommitter:
    """Gives pre-committed files their final names, in the coordinator."""

    def __init__(self, location: Location, *, job: str, operator: str) -> None:
        self._location = location
        self._job_folder = _job_folder(location, job)
        self._operator = _safe(operator)

    def commit(self, transactions: Sequence[Transaction]) -> None:
        """Rename and sync.

        Raises: CommitLost, when a file has neither name; OSError, and may be repeated.
        """
        for transaction in transactions:
            self._commit_one(transaction)
        if transactions:
            # Also when all had their names before: the crash may have come between rename and sync.
            durable.sync_folder(self._location, self._location.root)

    def recover(self, committed: Sequence[Transaction]) -> None:
        """Commit again, then delete every other temporary file of this job's sink."""
        self.commit(committed)
        folder = f"{self._job_folder}/{self._operator}"
        for name in durable.names(self._location, folder):
            if name.endswith(_SUFFIX):
                durable.remove(self._location, f"{folder}/{name}")

    def _commit_one(self, transaction: Transaction) -> None:
        temporary, final = self._paths(transaction)
        expected_bytes = transaction.payload["bytes"]
        waiting_bytes = durable.size_bytes(self._location, temporary)
        if waiting_bytes == expected_bytes:
            durable.move(self._location, temporary, final)
            return
        if waiting_bytes is not None:
            raise CommitLost(
                final, f"{temporary} has {waiting_bytes} bytes instead of {expected_bytes}"
            )
        visible_bytes = durable.size_bytes(self._location, final)
        if visible_bytes is None:
            raise CommitLost(final, f"neither it nor {temporary} exists; {_LOST_HINT}")
        if visible_bytes != expected_bytes:
            raise CommitLost(final, f"it has {visible_bytes} bytes instead of {expected_bytes}")

    def _paths(self, transaction: Transaction) -> tuple[str, str]:
        """Return the temporary and the final path; a checkpoint names both, so neither may lead out
        of its folder.
        """
        operator, _, temporary = transaction.id.partition("/")
        final = str(transaction.payload["file"])
        inside = (
            operator == self._operator
            and _is_name(temporary)
            and _is_name(final)
            and final.startswith("part-")
        )
        if not inside:
            raise CommitLost(final, f"transaction {transaction.id!r} is not one of this sink")
        return (
            f"{self._job_folder}/{operator}/{temporary}{_SUFFIX}",
            f"{self._location.root}/{final}",
        )


_LOST_HINT = "its records are lost unless an older checkpoint is restored into an empty folder"


def _job_folder(location: Location, job: str) -> str:
    return f"{location.root}/{_WORK}/{_safe(job)}"


def _safe(name: str) -> str:
    """Return a user's name as one part of a path, different for different names.

    A long one is cut and ends in its hash: file systems take 255 bytes, of which other parts of the
    file's name need some.
    """
    safe = quote(name, safe=" ").replace(".", "%2E")
    if len(safe) <= _NAME_BYTES_MAX:
        return safe
    return f"{safe[: _NAME_BYTES_MAX - 17]}-{xxhash.xxh3_64_hexdigest(name.encode())}"


def _is_name(part: str) -> bool:
    return bool(part) and "/" not in part and "\\" not in part and not part.startswith(".")
