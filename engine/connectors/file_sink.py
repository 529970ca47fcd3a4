"""The file sink: a subtask's records between two checkpoints become files, visible when the
checkpoint is complete.

    <path>/_headrace/<job>/<operator>/<owner>/<subtask>-<epoch>-<count>-<nonce>.tmp
        written, synced at pre-commit
    <path>/_headrace/<job>/<operator>/<owner>.owner
        empty: the owner has written here
    <path>/_headrace/<run>-<checkpoint>.committed
        where files cannot be renamed: a manifest (`manifests.py`)
    <path>/<partition>/part-<operator>-<subtask>-<checkpoint>-<epoch>-<owner><nonce>-<count>.parquet
        its name after commit

A transaction's id is its temporary file's path below `<path>/_headrace`, without the suffix: so a
committer of any name finds the file, when job or sink were renamed since the checkpoint. The owner
is the job in one checkpoint directory: the same job name with another directory writes beside it,
and neither deletes a file of the other. Each writer draws a nonce as it opens: epochs begin anew
when a job starts without its old checkpoints, and a file of an earlier run must never be taken for
a file of this run, nor be written over.

Commit renames, then syncs the folders; where files cannot be renamed it copies, and leaves a
manifest. A repeated commit accepts a file that has its final name already; a file with neither name
is lost, and raises. A recovery deletes only temporary files of the same owner and sink, and only of
epochs up to the coordinator's own: a coordinator that was frozen deletes no file of its successor.
`remove_output` takes back files of all the job's owners.

Readers pass over `_headrace`, as Spark and pyarrow datasets do; other programs that list the folder
should, too.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from ..contract.connectors import Delivery
from ..contract.errors import CommitLost, HeadraceError, StorageUnreachable, UserError
from ..contract.operators import (
    OperatorContext,
    RestoredState,
    StateSnapshot,
    Transaction,
    run_of,
)
from ..contract.places import redacted
from . import durable
from .filesystem import Location, locate
from .manifests import Manifests
from .partitions import WHOLE, Partitions, Values, is_folder
from .rolled_files import RolledFile, RolledFiles
from .tokens import by_run
from .work_folder import is_inside, safe_name, work_folder, work_name
from .writers import PARQUET, RecordFormat

#: A file grows to about this size by default.
ROLL_BYTES = 256 * 1024 * 1024

#: Object stores answer a copy in about 50 ms, however many there are.
_COPIES_AT_ONCE = 8
_SUFFIX = ".tmp"
_OWNER = ".owner"
_TEMPORARY = re.compile(r"[0-9]+-([0-9]+)-")


def _nonce() -> str:
    return secrets.token_hex(4)


class FileSink:
    """Writes files into a folder, each record once."""

    def __init__(
        self,
        path: str,
        format: RecordFormat = PARQUET,
        *,
        partitions: Partitions = WHOLE,
        roll_bytes: int = ROLL_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        nonce: Callable[[], str] = _nonce,
    ) -> None:
        """Describe the sink; nothing is touched before `check`.

        Args:
            path: the folder, or any fsspec URL of one.
            partitions: columns whose values make folders.
            roll_bytes: about how large a file grows; the next records go into another one.
            storage_options: passed to fsspec.
            nonce: makes the part of file names that no other writer has.

        Raises: UserError, for a place that does not exist.
        """
        self._location = locate(path, storage_options or {})
        self._format = format
        self._partitions = partitions
        self._roll_bytes = roll_bytes
        self._nonce = nonce

    @property
    def delivery(self) -> Delivery:
        """Files appear with their checkpoint, each once."""
        return "exactly-once"

    def check(self, schema: pa.Schema) -> None:
        """Try out the format, create the folder, and write and delete a file in it.

        Raises: UserError.
        """
        self._partitions.check(schema)
        self._format.check(self._partitions.schema(schema))
        folder = work_folder(self._location)
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
        except Exception as error:  # clients of object stores have errors of their own
            raise StorageUnreachable(
                f"cannot write to the folder {self._location.root}: {redacted(str(error))}"
            ) from error

    def spark_format(self) -> tuple[str, str]:
        """See `ReadBySpark`."""
        return self._format.kind, self._location.spark_url

    def writer(self) -> FileWriter:
        """Make the writer of one subtask."""
        return FileWriter(
            self._location, self._format, self._partitions, self._roll_bytes, self._nonce
        )

    def committer(self, job: str, operator: str) -> FileCommitter:
        """Make the committer of this sink, which is `operator` in `job`."""
        return FileCommitter(self._location, job=job, operator=operator)


class FileWriter:
    """Writes temporary files. Keeps no state: transactions carry its files."""

    def __init__(
        self,
        location: Location,
        format: RecordFormat,
        partitions: Partitions,
        roll_bytes: int,
        nonce: Callable[[], str],
    ) -> None:
        self._location = location
        self._format = format
        self._partitions = partitions
        self._make_nonce = nonce
        self._nonce = ""
        self._context: OperatorContext | None = None
        self._count = 0
        self._files = RolledFiles(location, format, partitions, roll_bytes, self._place)

    def open(self, context: OperatorContext) -> None:
        """Create the folder for temporary files."""
        self._context = context
        self._nonce = self._make_nonce()
        with self._telling():
            durable.make_folder(self._location, self._folder())

    def restore(self, states: Sequence[RestoredState]) -> None:
        """A writer keeps no state."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records to the open files, or begin some. Raises: HeadraceError."""
        with self._telling():
            self._files.write(batch)

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        """Make the files durable under their temporary names. Raises: HeadraceError."""
        with self._telling():
            return tuple(self._transaction(file, checkpoint) for file in self._files.take())

    def commit(self) -> None:
        """A writer keeps no state."""

    def snapshot(self) -> Sequence[StateSnapshot]:
        """A writer keeps no state."""
        return ()

    def close(self) -> None:
        """Delete files that were not pre-committed, as far as that is possible."""
        self._files.close()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn an error of the file system into one sentence."""
        with telling(self._location, self._opened().operator):
            yield

    def _place(self, values: Values) -> str:
        """Return the path of a new temporary file. A transaction's id and its final name end with
        its last parts.
        """
        context = self._opened()
        self._count += 1
        name = f"{context.index}-{context.epoch}-{self._count}-{self._nonce}"
        return f"{self._folder()}/{name}{_SUFFIX}"

    def _transaction(self, file: RolledFile, checkpoint: int) -> Transaction:
        context = self._opened()
        temporary = file.path.rsplit("/", 1)[-1].removesuffix(_SUFFIX)
        count = temporary.split("-")[2]
        name = (
            f"{self._partitions.folder(file.values)}part-{safe_name(context.operator)}-{context.index}"
            f"-{checkpoint}-{context.epoch}-{context.owner}{self._nonce}-{count}"
            f"{self._format.suffix}"
        )
        return Transaction(
            f"{work_name(context.job, context.operator, context.owner)}/{temporary}",
            {"file": name, "bytes": file.size_bytes, "rows": file.rows},
        )

    def _folder(self) -> str:
        """Return the folder of temporary files."""
        context = self._opened()
        name = work_name(context.job, context.operator, context.owner)
        return f"{work_folder(self._location)}/{name}"

    def _opened(self) -> OperatorContext:
        assert self._context is not None, "open() comes first"
        return self._context


class FileCommitter:
    """Gives pre-committed files their final names, in the coordinator."""

    def __init__(self, location: Location, *, job: str, operator: str) -> None:
        self._location = location
        self._job = job
        self._name = operator
        self._operator = safe_name(operator)
        self._work = work_folder(location)
        self._owner = ""
        self._manifests = Manifests(location, self._work)

    def own(self, owner: str, *, anew: bool) -> None:
        """See `OwnsOutput`."""
        self._owner = owner
        folder = self._folder("")
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
        parts = self._parts()
        for path in parts:
            durable.remove(self._location, path)
        for owner in self._owners():
            self._manifests.remove(run_of(self._job, self._name, owner))
            folder = self._folder(owner)
            for name in durable.names(self._location, folder):
                durable.remove(self._location, f"{folder}/{name}")
        for folder in sorted({_folder_of(path) for path in parts}):
            durable.sync_folder(self._location, folder)

    def _owners(self) -> list[str]:
        names = durable.names(self._location, self._folder(""))
        return [name.removesuffix(_OWNER) for name in names if name.endswith(_OWNER)]

    def _parts(self) -> list[str]:
        """Paths of the visible files of the job's sink, whichever owner's."""
        owners = tuple(self._owners())
        return [
            file.path
            for file in (self._location.files() if owners else ())
            if (name := file.path.rsplit("/", 1)[-1]).startswith(f"part-{self._operator}-")
            and name.rsplit("-", 2)[1].startswith(owners)
        ]

    def commit(self, checkpoint: int, transactions: Sequence[Transaction]) -> None:
        """Rename and sync, or copy and leave a manifest.

        Raises: CommitLost, when a file has neither name; OSError, and may be repeated.
        """
        if not self._location.is_local:
            for run, group in by_run(transactions).items():
                self._commit_copies(run, group)
            return
        finals = [self._commit_one(transaction, durable.move) for transaction in transactions]
        # Also when all had their names before: the crash may have come between rename and sync.
        for folder in sorted(set(map(_folder_of, finals))):
            durable.sync_folder(self._location, folder)

    def recover(
        self, checkpoint: int, committed: Sequence[Transaction], *, epoch: int | None = None
    ) -> None:
        """Commit again, then delete other temporary files of this owner, up to `epoch`."""
        self.commit(checkpoint, committed)
        folder = self._folder(self._owner)
        for name in durable.names(self._location, folder):
            if name.endswith(_SUFFIX) and (epoch is None or _epoch_of(name) <= epoch):
                durable.remove(self._location, f"{folder}/{name}")

    def _folder(self, owner: str) -> str:
        """Return the folder of an owner's temporary files; without one, of all owners."""
        return f"{self._work}/{work_name(self._job, self._name, owner)}"

    def _commit_copies(self, run: str, transactions: Sequence[Transaction]) -> None:
        applied = self._manifests.newest(run)
        new = [t for t in transactions if t.checkpoint > applied]
        if new:
            with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
                list(pool.map(lambda t: self._commit_one(t, durable.copy), new))
            self._manifests.add(run, max(t.checkpoint for t in new), new)
        for transaction in transactions:
            durable.remove(self._location, self._paths(transaction)[0])

    def _commit_one(
        self, transaction: Transaction, show: Callable[[Location, str, str], None]
    ) -> str:
        """Show a file under its final name; return that path."""
        temporary, final = self._paths(transaction)
        expected_bytes = transaction.payload["bytes"]
        waiting_bytes = durable.size_bytes(self._location, temporary)
        if waiting_bytes == expected_bytes:
            if (folder := _folder_of(final)) != self._location.root:
                durable.make_folder(self._location, folder)
            show(self._location, temporary, final)
            return final
        if waiting_bytes is not None:
            raise _lost(final, f"{temporary} has {waiting_bytes} bytes instead of {expected_bytes}")
        visible_bytes = durable.size_bytes(self._location, final)
        if visible_bytes is None:
            raise _lost(final, f"neither it nor {temporary} exists; {_LOST_HINT}")
        if visible_bytes != expected_bytes:
            raise _lost(final, f"it has {visible_bytes} bytes instead of {expected_bytes}")
        return final

    def _paths(self, transaction: Transaction) -> tuple[str, str]:
        """Return the temporary and the final path; a checkpoint names both, so neither may lead out
        of its folder.
        """
        final = str(transaction.payload["file"])
        folder, _, name = final.rpartition("/")
        inside = (
            is_inside(transaction.id)
            and (not folder or is_folder(folder))
            and is_inside(name)
            and name.startswith("part-")
        )
        if not inside:
            raise _lost(final, f"transaction {transaction.id!r} is not one of this sink")
        return (
            f"{self._work}/{transaction.id}{_SUFFIX}",
            f"{self._location.root}/{final}",
        )


@contextmanager
def telling(location: Location, operator: str) -> Iterator[None]:
    """Turn an error of the file system, or of an object store's client, into one sentence.

    Raises: HeadraceError.
    """
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        if location.is_local and not isinstance(error, OSError):
            raise
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise HeadraceError(
            f"sink {operator!r} cannot write to {location.root}: {redacted(str(reason))}"
        ) from error


_LOST_HINT = (
    "if something has moved it, move it back and start the job again; otherwise begin anew with"
    " fresh=replace"
)


def _lost(path: str, reason: str) -> CommitLost:
    return CommitLost(f"cannot commit {path}: {reason}")


def _epoch_of(name: str) -> int:
    """Return the epoch in the name of a temporary file; 0: there is none."""
    match = _TEMPORARY.match(name)
    return 0 if match is None else int(match[1])


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]
