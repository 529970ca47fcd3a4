"""The Delta sink: workers write Parquet files into the table's folder, one place adds them to the
table's log.

The log's entry of a commit holds a token beside the files, in one atomic write: the newest applied
checkpoint of the run, as Delta's application transaction `headrace/<run>`. The token is read and
the entry written on the same handle of the table. A twin that has committed in between makes the
entry fail, and the commit is tried anew, token first. Commits of other programs are in nobody's
way: an append goes after them.

deltalake names its options as object stores do (`AWS_ACCESS_KEY_ID`), fsspec as its file systems do
(`key`); either spelling is taken here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa

from ...contract.connectors import Delivery
from ...contract.errors import StorageUnreachable, UserError
from ...contract.extras import extra
from ...contract.operators import Transaction
from ..filesystem import Location, locate
from ..partitions import Partitions
from ..writers import RecordFormat
from .committer import TableCommitter
from .data_files import TableFiles, TableWriter, values_of
from .stores import fsspec_options, object_store_options
from .types import fitted, table_schema

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: Features of tables that take plain appends of files.
_FEATURES = {
    "appendOnly",
    "changeDataFeed",
    "deletionVectors",
    "domainMetadata",
    "inCommitTimestamp",
    "timestampNtz",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}
#: Features that ask for something only where a setting or a column uses them.
_FEATURES_IN_USE = {
    "allowColumnDefaults",
    "checkConstraints",
    "columnMapping",
    "generatedColumns",
    "identityColumns",
    "invariants",
    "rowTracking",
}
#: Settings of a table that ask its writers for more than files.
_DEMANDS = ("delta.columnMapping.mode", "delta.constraints.", "delta.enableRowTracking")
#: The same of a column.
_COLUMN_DEMANDS = ("delta.generationExpression", "delta.identity.", "delta.invariants")


class DeltaSink:
    """Appends records to a Delta table, each once."""

    def __init__(
        self,
        path: str,
        format: RecordFormat,
        *,
        partitions: Partitions,
        roll_bytes: int,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Describe the sink; nothing is touched before `check`.

        Raises: UserError, for a place that does not exist, or if deltalake is not installed.
        """
        _deltalake()
        self._location = locate(path, fsspec_options(path, storage_options or {}))
        self._uri = self._location.root if self._location.is_local else path
        self._options = object_store_options(path, storage_options or {})
        self._format = format
        self._partitions = partitions
        self._roll_bytes = roll_bytes
        self._files: TableFiles | None = None

    @property
    def delivery(self) -> Delivery:
        """Files are added with their checkpoint, each once."""
        return "exactly-once"

    def check(self, schema: pa.Schema) -> None:
        """Compare the records with the table, which is created if there is none.

        Raises: UserError.
        """
        fits = table_schema(schema, smallest_integer=pa.int8())
        self._partitions.check(fits)
        table = _open(self._uri, self._options) or self._create(fits)
        where = f"the Delta table {self._uri}"
        _refuse_demands(table, where)
        parted = tuple(table.metadata().partition_columns)
        if self._partitions.columns and self._partitions.columns != parted:
            raise UserError(
                f"{where} is partitioned by {list(parted)!r}, not by partition_by="
                f"{list(self._partitions.columns)!r}; leave partition_by out"
            )
        there = pa.schema(table.schema().to_arrow())
        written = fitted(fits, there, where)
        partitions = Partitions(parted)
        partitions.check(written)
        self._files = TableFiles(
            self._location, written, self._format, partitions, self._roll_bytes
        )

    def writer(self) -> TableWriter:
        """Make the writer of one subtask."""
        assert self._files is not None, "check() comes first"
        return TableWriter(self._files)

    def committer(self, job: str, operator: str) -> DeltaCommitter:
        """Make the committer of this sink, which is `operator` in `job`."""
        return DeltaCommitter(self._location, self._uri, self._options, job=job, operator=operator)

    def _create(self, schema: pa.Schema) -> DeltaTable:
        from deltalake import DeltaTable, Schema

        try:
            return DeltaTable.create(
                self._uri,
                Schema.from_arrow(schema),
                mode="ignore",
                partition_by=list(self._partitions.columns),
                storage_options=self._options,
            )
        except Exception as error:  # of Rust, without a class of their own
            raise UserError(
                f"the Delta table {self._uri} cannot be created: {_sentence(error)}"
            ) from error


class DeltaCommitter(TableCommitter["DeltaTable"]):
    """Adds data files to the log, in the coordinator."""

    def __init__(
        self, location: Location, uri: str, options: Mapping[str, str], *, job: str, operator: str
    ) -> None:
        super().__init__(f"the Delta table {uri}", location, job=job, operator=operator)
        self._uri = uri
        self._options = options

    def _load(self) -> DeltaTable | None:
        return _open(self._uri, self._options)

    def _token(self, table: DeltaTable, run: str) -> int:
        applied = table.transaction_version(_application(run))
        return -1 if applied is None else applied

    def _append(self, table: DeltaTable, run: str, transactions: Sequence[Transaction]) -> None:
        from deltalake import CommitProperties
        from deltalake import Transaction as Token

        columns = table.metadata().partition_columns
        table.create_write_transaction(
            [_added(transaction, columns) for transaction in transactions],
            mode="append",
            schema=table.schema(),
            partition_by=columns,
            commit_properties=CommitProperties(
                app_transactions=[Token(_application(run), transactions[-1].checkpoint)],
                custom_metadata=dict(self._facts(transactions)),
            ),
        )

    def _files(self, table: DeltaTable) -> set[str]:
        """See `TableCommitter`. The log holds paths as parts of URLs."""
        actions = pa.table(table.get_add_actions(flatten=True))
        return set(map(unquote, actions["path"].to_pylist()))


def _application(run: str) -> str:
    return f"headrace/{run}"


def _added(transaction: Transaction, columns: Sequence[str]) -> Any:
    from deltalake.transaction import AddAction

    values = values_of(transaction)
    return AddAction(
        path=str(transaction.payload["file"]),
        size=int(transaction.payload["bytes"]),
        partition_values=dict(zip(columns, (value or None for value in values), strict=True)),
        modification_time=time.time_ns() // 1_000_000,
        data_change=True,
        stats=str(transaction.payload["statistics"]),
    )


def _open(uri: str, options: Mapping[str, str]) -> DeltaTable | None:
    """Open the table's newest version; None: there is no table.

    Raises: StorageUnreachable.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    try:
        return DeltaTable(uri, storage_options=dict(options))
    except TableNotFoundError:
        return None
    except Exception as error:
        raise StorageUnreachable(
            f"the Delta table {uri} cannot be read: {_sentence(error)}"
        ) from error


def _refuse_demands(table: DeltaTable, where: str) -> None:
    """Refuse a table that asks its writers for more than files. Raises: UserError."""
    protocol = table.protocol()
    features = set(protocol.writer_features or ()) - _FEATURES - _FEATURES_IN_USE
    settings = [
        name
        for name, value in table.metadata().configuration.items()
        if name.startswith(_DEMANDS) and value not in ("none", "false")
    ]
    columns = [
        f"{demand} of column {field.name!r}"
        for field in table.schema().fields
        for demand in field.metadata
        if demand.startswith(_COLUMN_DEMANDS)
    ]
    used = [*settings, *columns, *sorted(features)]
    if used:
        raise UserError(f"{where} uses {used[0]}, which this sink does not know")


def _sentence(error: Exception) -> str:
    """First line of an error of Rust, which may have a whole story below."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _deltalake() -> None:
    with extra("delta", "write.delta"):
        import deltalake  # noqa: F401  # only whether it is there
