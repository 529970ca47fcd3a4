"""The file sink: a subtask's records between two checkpoints become one file, visible when the
checkpoint is complete.

    <path>/_headrace/<job>/<operator>/<owner>/<subtask>-<epoch>-<count>-<nonce>.tmp
        written, synced at pre-commit
    <path>/_headrace/<job>/<operator>/<owner>.owner
        empty: the owner has written here
    <path>/part-<operator>-<subtask>-<checkpoint>-<epoch>-<owner><nonce>-<count>.parquet
        its name after commit

A transaction's id is its temporary file's path below `<path>/_headrace/<job>`, without the suffix.
The owner is the job in one checkpoint directory: the same job name with another directory writes
beside it, and neither deletes a file of the other. Each writer draws a nonce as it opens: epochs
begin anew when a job starts without its old checkpoints, and a file of an earlier run must never be
taken for a file of this run, nor be written over.

Commit renames, then syncs the folder. A repeated commit accepts a file that has its final name
already; a file with neither name is lost, and raises. A recovery deletes only temporary files of
the same owner and sink, and only of epochs up to the coordinator's own: a coordinator that was
frozen deletes no file of its successor. `remove_output` takes back files of all the job's owners.

Readers pass over `_headrace`, as Spark and pyarrow datasets do; other programs that list the folder
should, too.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, get_args
from urllib.parse import quote

import pyarrow as pa
import xxhash

from ..contract.connectors import Delivery
from ..contract.errors import CommitLost, HeadraceError, UserError
from ..contract.operators import OperatorContext, RestoredState, StateSnapshot, Transaction
from . import durable
from .filesystem import Location, locate
from .writers import RecordWriter, open_writer, probe

SinkFormat = Literal["parquet", "json"]

_WORK = "_headrace"
_NAME_BYTES_MAX = 150
_SUFFIX = ".tmp"
_OWNER = ".owner"
_TEMPORARY = re.compile(r"[0-9]+-([0-9]+)-")


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
        folder = f"{_job_folder(self._location, context.job)}/{self._folder()}"
        with self._telling():
            durable.make_folder(self._location, folder)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """A writer keeps no state."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records to the open file, or begin one. Raises: HeadraceError."""
        with self._telling():
            if self._records is None:
                self._records = self._begin(batch.schema)
            self._records.write(batch)

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        """Make the file durable under its temporary name. Raises: HeadraceError."""
        if self._records is None:
            return ()
        context = self._opened()
        path = self._temporary()
        with self._telling():
            rows = self._records.finish()
            durable.close_durably(self._location, path, self._records.file)
            # From here on the file is the committer's, and `close` leaves it alone.
            self._records = None
            size_bytes = durable.size_bytes(self._location, path)
        assert size_bytes is not None, f"{path} is gone as soon as it was written"
        name = (
            f"part-{_safe(context.operator)}-{context.index}-{checkpoint}-{context.epoch}"
            f"-{context.owner}{self._nonce}-{self._count}.{self._format}"
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

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn an error of the file system into one sentence."""
        try:
            yield
        except OSError as error:
            raise HeadraceError(
                f"sink {self._opened().operator!r} cannot write to {self._location.root}:"
                f" {error.strerror or error}"
            ) from error

    def _begin(self, schema: pa.Schema) -> RecordWriter:
        context = self._opened()
        self._count += 1
        name = f"{context.index}-{context.epoch}-{self._count}-{self._nonce}"
        self._id = f"{self._folder()}/{name}"
        file = durable.create(self._location, self._temporary())
        return open_writer(self._format, file, schema, self._compression)

    def _folder(self) -> str:
        context = self._opened()
        return _owned(_safe(context.operator), context.owner)

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
        self._owner = ""

    def own(self, owner: str, *, anew: bool) -> None:
        """See `OwnsOutput`."""
        self._owner = owner
        folder = f"{self._job_folder}/{self._operator}"
        if f"{owner}{_OWNER}" in durable.names(self._location, folder):
            return
        durable.make_folder(self._location, folder)
        path = f"{folder}/{owner}{_OWNER}"
        durable.close_durably(self._location, path, durable.create(self._location, path))

    def output(self) -> str:
        """See `OwnsOutput`."""
        return self._location.root if self._parts() else ""

    def remove_output(self) -> None:
        """See `OwnsOutput`. A repetition finishes what a crash has left."""
        for name in self._parts():
            durable.remove(self._location, f"{self._location.root}/{name}")
        for owner in self._owners():
            folder = f"{self._job_folder}/{self._operator}/{owner}"
            for name in durable.names(self._location, folder):
                durable.remove(self._location, f"{folder}/{name}")
        durable.sync_folder(self._location, self._location.root)

    def _owners(self) -> list[str]:
        names = durable.names(self._location, f"{self._job_folder}/{self._operator}")
        return [name.removesuffix(_OWNER) for name in names if name.endswith(_OWNER)]

    def _parts(self) -> list[str]:
        """Visible files of the job's sink, whichever owner's."""
        owners = tuple(self._owners())
        return [
            name
            for name in (durable.names(self._location, self._location.root) if owners else ())
            if name.startswith(f"part-{self._operator}-")
            and name.rsplit("-", 2)[1].startswith(owners)
        ]

    def commit(self, transactions: Sequence[Transaction]) -> None:
        """Rename and sync.

        Raises: CommitLost, when a file has neither name; OSError, and may be repeated.
        """
        for transaction in transactions:
            self._commit_one(transaction)
        if transactions:
            # Also when all had their names before: the crash may have come between rename and sync.
            durable.sync_folder(self._location, self._location.root)

    def recover(self, committed: Sequence[Transaction], *, epoch: int | None = None) -> None:
        """Commit again, then delete other temporary files of this owner, up to `epoch`."""
        self.commit(committed)
        folder = f"{self._job_folder}/{_owned(self._operator, self._owner)}"
        for name in durable.names(self._location, folder):
            if name.endswith(_SUFFIX) and (epoch is None or _epoch_of(name) <= epoch):
                durable.remove(self._location, f"{folder}/{name}")

    def _commit_one(self, transaction: Transaction) -> None:
        temporary, final = self._paths(transaction)
        expected_bytes = transaction.payload["bytes"]
        waiting_bytes = durable.size_bytes(self._location, temporary)
        if waiting_bytes == expected_bytes:
            durable.move(self._location, temporary, final)
            return
        if waiting_bytes is not None:
            raise _lost(final, f"{temporary} has {waiting_bytes} bytes instead of {expected_bytes}")
        visible_bytes = durable.size_bytes(self._location, final)
        if visible_bytes is None:
            raise _lost(final, f"neither it nor {temporary} exists; {_LOST_HINT}")
        if visible_bytes != expected_bytes:
            raise _lost(final, f"it has {visible_bytes} bytes instead of {expected_bytes}")

    def _paths(self, transaction: Transaction) -> tuple[str, str]:
        """Return the temporary and the final path; a checkpoint names both, so neither may lead out
        of its folder.
        """
        operator, *parts = transaction.id.split("/")
        final = str(transaction.payload["file"])
        inside = (
            operator == self._operator
            and 1 <= len(parts) <= 2
            and all(map(_is_name, parts))
            and _is_name(final)
            and final.startswith("part-")
        )
        if not inside:
            raise _lost(final, f"transaction {transaction.id!r} is not one of this sink")
        return (
            f"{self._job_folder}/{transaction.id}{_SUFFIX}",
            f"{self._location.root}/{final}",
        )


_LOST_HINT = (
    "if something has moved it, move it back and start the job again; otherwise begin anew with"
    " fresh=replace"
)


def _lost(path: str, reason: str) -> CommitLost:
    return CommitLost(f"cannot commit {path}: {reason}")


def _job_folder(location: Location, job: str) -> str:
    return f"{location.root}/{_WORK}/{_safe(job)}"


def _owned(operator: str, owner: str) -> str:
    """Return the folder of an owner's temporary files, below the job's."""
    return f"{operator}/{owner}" if owner else operator


def _safe(name: str) -> str:
    """Return a user's name as one part of a path, different for different names.

    A long one is cut and ends in its hash: file systems take 255 bytes, of which other parts of the
    file's name need some.
    """
    safe = quote(name, safe=" ").replace(".", "%2E")
    if len(safe) <= _NAME_BYTES_MAX:
        return safe
    return f"{safe[: _NAME_BYTES_MAX - 17]}-{xxhash.xxh3_64_hexdigest(name.encode())}"


def _epoch_of(name: str) -> int:
    """Return the epoch in the name of a temporary file; 0: there is none."""
    match = _TEMPORARY.match(name)
    return 0 if match is None else int(match[1])


def _is_name(part: str) -> bool:
    return bool(part) and "/" not in part and "\\" not in part and not part.startswith(".")
