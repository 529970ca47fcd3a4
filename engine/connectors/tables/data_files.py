"""Data files of a table: written in place by the workers, visible when the table's log names them.

    <table>/<partition>/part-<operator>-<subtask>-<epoch>-<count>-<owner><nonce>.parquet
        a data file under its final name
    <table>/_headrace/<job>/<operator>/<owner>/<name of a data file>.begun
        the data file may exist, and the log may not name it yet; holds the data file's path

A transaction's id is its note's path below `<table>/_headrace`, without the suffix.

The log decides what readers see, so nothing is renamed. A file is begun after its note, and the
note goes when the file's commit is done. So a recovery finds the files of aborted transactions
without listing the table.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from ...contract.errors import CommitLost, HeadraceError
from ...contract.operators import OperatorContext, RestoredState, StateSnapshot, Transaction
from .. import durable
from ..file_sink import telling
from ..filesystem import Location
from ..partitions import Partitions, Values, is_folder
from ..rolled_files import RolledFile, RolledFiles
from ..work_folder import is_inside, safe_name, work_folder, work_name
from ..writers import RecordFormat
from .statistics import statistics

_BEGUN = ".begun"
_NAME = re.compile(r"part-.*-([0-9]+)-([0-9]+)-([0-9]+)-[0-9a-zA-Z_]*\.parquet")
#: Object stores answer in about 50 ms, however many questions there are.
_LOOKS_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class TableFiles:
    """How a table's data files are written. Picklable.

    Attributes:
        location: the folder of data files.
        schema: of the stream's records, in types of the table.
        partitions: of the files.
        roll_bytes: about how large a file grows.
    """

    location: Location
    schema: pa.Schema
    format: RecordFormat
    partitions: Partitions
    roll_bytes: int


class TableWriter:
    """Writes data files. Keeps no state: transactions carry the files' facts."""

    def __init__(self, files: TableFiles, nonce: Callable[[], str] | None = None) -> None:
        self._table = files
        self._nonce = nonce() if nonce is not None else secrets.token_hex(4)
        self._context: OperatorContext | None = None
        self._count = 0
        self._notes = ""
        self._files = RolledFiles(
            files.location, files.format, files.partitions, files.roll_bytes, self._place
        )

    def open(self, context: OperatorContext) -> None:
        """Create the folder for notes."""
        self._context = context
        self._notes = work_name(context.job, context.operator, context.owner)
        with self._telling():
            folder = f"{work_folder(self._table.location)}/{self._notes}"
            durable.make_folder(self._table.location, folder)

    def restore(self, states: Sequence[RestoredState]) -> None:
        """A writer keeps no state."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records to the open files, or begin some. Raises: HeadraceError."""
        with self._telling():
            self._files.write(self._fitted(batch))

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        """Make the files durable. Raises: HeadraceError."""
        with self._telling():
            return tuple(self._transaction(file) for file in self._files.take())

    def commit(self) -> None:
        """A writer keeps no state."""

    def snapshot(self) -> Sequence[StateSnapshot]:
        """A writer keeps no state."""
        return ()

    def close(self) -> None:
        """Delete files that were not pre-committed, as far as that is possible."""
        self._files.close()

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for column in self._table.schema:
            array = batch.column(column.name)
            if array.null_count and not column.nullable:
                raise HeadraceError(
                    f"sink {self._opened().operator!r}: column {column.name!r} of the table takes"
                    f" no null, and {array.null_count} of {len(array)} records have one"
                )
            arrays.append(array if array.type == column.type else array.cast(column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._table.schema)

    def _place(self, values: Values) -> str:
        context = self._opened()
        self._count += 1
        name = (
            f"part-{safe_name(context.operator)}-{context.index}-{context.epoch}-{self._count}"
            f"-{context.owner}{self._nonce}.parquet"
        )
        below = f"{self._table.partitions.folder(values)}{name}"
        location = self._table.location
        note = f"{work_folder(location)}/{self._notes}/{name}{_BEGUN}"
        location.fs.pipe_file(note, below.encode())
        path = f"{location.root}/{below}"
        if location.is_local:
            durable.make_folder(location, path.rpartition("/")[0])
        return path

    def _transaction(self, file: RolledFile) -> Transaction:
        assert file.footer is not None, "data files are Parquet"
        below = file.path.removeprefix(f"{self._table.location.root}/")
        return Transaction(
            f"{self._notes}/{below.rpartition('/')[2]}",
            {
                "file": below,
                "bytes": file.size_bytes,
                "rows": file.rows,
                "values": msgspec.json.encode(file.values).decode(),
                "statistics": statistics(file.footer),
            },
        )

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Turn an error of the file system into one sentence."""
        with telling(self._table.location, self._opened().operator):
            yield

    def _opened(self) -> OperatorContext:
        assert self._context is not None, "open() comes first"
        return self._context


class Notes:
    """Notes of the data files that a sink has begun, as its committer sees them."""

    def __init__(self, location: Location, *, job: str, operator: str) -> None:
        self._location = location
        self._work = work_folder(location)
        self._job = job
        self._operator = operator

    def refuse_lost(self, transactions: Sequence[Transaction]) -> None:
        """Look at every file: the log must not name one that is gone or damaged.

        Raises: CommitLost.
        """
        with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:
            sizes = list(pool.map(self._size_bytes, transactions))
        for transaction, size_bytes in zip(transactions, sizes, strict=True):
            if size_bytes != transaction.payload["bytes"]:
                told = "is gone" if size_bytes is None else f"has {size_bytes} bytes"
                raise CommitLost(
                    f"cannot commit {self._path(transaction)}: it {told}, and was written with"
                    f" {transaction.payload['bytes']} bytes; begin anew with --fresh"
                )

    def remove(self, transactions: Sequence[Transaction]) -> None:
        """Delete the notes of files that are committed. Raises: OSError."""
        for transaction in transactions:
            self._refuse_strange(transaction)
            durable.remove(self._location, f"{self._work}/{transaction.id}{_BEGUN}")

    def left_over(self, owner: str, epoch: int | None) -> dict[str, str]:
        """Return {note: data file} of files begun in epochs up to `epoch`. Raises: OSError."""
        folder = f"{self._work}/{work_name(self._job, self._operator, owner)}"
        left: dict[str, str] = {}
        for name in durable.names(self._location, folder):
            match = _NAME.fullmatch(name.removesuffix(_BEGUN))
            if match is not None and (epoch is None or int(match[2]) <= epoch):
                note = f"{folder}/{name}"
                left[note] = self._location.fs.cat_file(note).decode()
        return left

    def delete(self, left: Mapping[str, str], named: Collection[str]) -> None:
        """Delete files that no transaction can commit, then their notes; files that the log names
        lose their notes alone. Raises: OSError.
        """
        for note, file in left.items():
            if file not in named and _is_data_file(file):
                durable.remove(self._location, f"{self._location.root}/{file}")
            durable.remove(self._location, note)

    def _size_bytes(self, transaction: Transaction) -> int | None:
        return durable.size_bytes(self._location, self._path(transaction))

    def _path(self, transaction: Transaction) -> str:
        self._refuse_strange(transaction)
        return f"{self._location.root}/{transaction.payload['file']}"

    def _refuse_strange(self, transaction: Transaction) -> None:
        if not (is_inside(transaction.id) and _is_data_file(str(transaction.payload["file"]))):
            raise CommitLost(f"transaction {transaction.id!r} is not one of this sink")


def values_of(transaction: Transaction) -> Values:
    """Return the values of the partition in which a transaction's file lies."""
    return msgspec.json.decode(str(transaction.payload["values"]), type=Values)


def _is_data_file(path: str) -> bool:
    """A checkpoint or a note names it, so it must not lead out of the table's folder."""
    folder, _, name = path.rpartition("/")
    return (not folder or is_folder(folder)) and _NAME.fullmatch(name) is not None
