"""The Iceberg sink: workers write Parquet files below the table's location, one place adds them.

A commit is one transaction of the catalog: a snapshot with the files, and a token among the table's
properties, `headrace.<run>`, which is the newest applied checkpoint of the run. pyiceberg would
repeat a transaction that met another one without a look at the token, so its retries are off, and a
refused transaction is tried anew here, token first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...contract.connectors import Delivery
from ...contract.errors import StorageUnreachable, UserError
from ...contract.extras import extra
from ...contract.operators import Transaction
from ...contract.places import redacted
from ..filesystem import Location, locate
from ..partitions import Partitions
from ..writers import RecordFormat
from .committer import TableCommitter
from .data_files import TableFiles, TableWriter
from .stores import fsspec_options
from .types import fitted, table_schema

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

#: Tries against other programs' commits; after these the runtime waits before it tries again.
_TRIES = 5
#: Partition transforms that follow from the lowest and highest value of a file, by their unit.
_UNITS = {"identity": "", "year": "year", "month": "month", "day": "day", "hour": "hour"}


class IcebergSink:
    """Appends records to an Iceberg table, each once."""

    def __init__(
        self,
        table: str,
        catalog: str | Mapping[str, str],
        format: RecordFormat,
        *,
        partitions: Partitions,
        roll_bytes: int,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Describe the sink; nothing is touched before `check`.

        Args:
            table: with its namespace, as in "shop.orders".
            catalog: name of a configured catalog, or its properties.
            storage_options: passed to fsspec; those of the catalog by default.

        Raises: UserError, for a name without a namespace, or if pyiceberg is not installed.
        """
        _pyiceberg()
        if "." not in table:
            raise UserError(f"table={table!r} has no namespace; write 'shop.{table}'")
        self._table = table
        self._catalog = catalog if isinstance(catalog, str) else dict(catalog)
        self._format = format
        self._partitions = partitions
        self._roll_bytes = roll_bytes
        self._storage_options = storage_options
        self._files: TableFiles | None = None
        self._location: Location | None = None
        self._uri = ""

    @property
    def delivery(self) -> Delivery:
        """Files are added with their checkpoint, each once."""
        return "exactly-once"

    def check(self, schema: pa.Schema) -> None:
        """Compare the records with the table, which is created if there is none.

        Raises: UserError, StorageUnreachable.
        """
        fits = table_schema(schema, smallest_integer=pa.int32())
        self._partitions.check(fits)
        table = _load(self._catalog, self._table) or self._create(fits)
        where = f"the Iceberg table {self._table}"
        partitions = _partitions_of(table, where)
        if self._partitions.columns and self._partitions.columns != partitions.columns:
            raise UserError(
                f"{where} is partitioned by {list(partitions.columns)!r}, not by partition_by="
                f"{list(self._partitions.columns)!r}; leave partition_by out"
            )
        written = fitted(fits, table.schema().as_arrow(), where)
        partitions.check(written)
        self._uri = table.location().rstrip("/")
        options = self._storage_options
        if options is None:
            options = {k: v for k, v in table.io.properties.items() if k.startswith("s3.")}
        self._location = locate(self._uri, fsspec_options(self._uri, options))
        self._files = TableFiles(
            self._location, written, self._format, partitions, self._roll_bytes
        )

    def writer(self) -> TableWriter:
        """Make the writer of one subtask."""
        assert self._files is not None, "check() comes first"
        return TableWriter(self._files)

    def committer(self, job: str, operator: str) -> IcebergCommitter:
        """Make the committer of this sink, which is `operator` in `job`."""
        assert self._location is not None, "check() comes first"
        return IcebergCommitter(
            self._location, self._uri, self._catalog, self._table, job=job, operator=operator
        )

    def _create(self, schema: pa.Schema) -> Table:
        catalog = _open(self._catalog)
        try:
            catalog.create_namespace_if_not_exists(self._table.rpartition(".")[0])
            table = catalog.create_table_if_not_exists(self._table, schema)
            if self._partitions.columns and not table.spec().fields:
                with table.update_spec() as spec:
                    for column in self._partitions.columns:
                        spec.add_identity(column)
            return table
        except Exception as error:
            raise UserError(
                f"the Iceberg table {self._table} cannot be created: {redacted(str(error))}"
            ) from error


class IcebergCommitter(TableCommitter["Table"]):
    """Adds data files to the table, in the coordinator."""

    def __init__(
        self,
        location: Location,
        uri: str,
        catalog: str | Mapping[str, str],
        table: str,
        *,
        job: str,
        operator: str,
    ) -> None:
        super().__init__(f"the Iceberg table {table}", location, job=job, operator=operator)
        self._uri = uri
        self._catalog = catalog
        self._name = table

    def _commit_run(self, run: str, transactions: Sequence[Transaction]) -> None:
        from pyiceberg.exceptions import CommitFailedException

        for tries_left in reversed(range(_TRIES)):
            try:
                return super()._commit_run(run, transactions)
            except CommitFailedException:
                if not tries_left:
                    raise

    def _load(self) -> Table | None:
        return _load(self._catalog, self._name)

    def _token(self, table: Table, run: str) -> int:
        return int(table.properties.get(_property(run), -1))

    def _append(self, table: Table, run: str, transactions: Sequence[Transaction]) -> None:
        # In this copy of the metadata alone: other programs' retries are theirs.
        table.metadata.properties["commit.retry.num-retries"] = "0"
        with table.transaction() as transaction:
            transaction.set_properties({_property(run): str(transactions[-1].checkpoint)})
            transaction.add_files(
                [f"{self._uri}/{t.payload['file']}" for t in transactions],
                snapshot_properties=dict(self._facts(transactions)),
                check_duplicate_files=False,
            )

    def _files(self, table: Table) -> set[str]:
        files = (task.file.file_path for task in table.scan().plan_files())
        return {path.removeprefix(f"{self._uri}/") for path in files}


def _property(run: str) -> str:
    return f"headrace.{run}"


def _partitions_of(table: Table, where: str) -> Partitions:
    """Return the table's partitions as a writer splits records by them. Raises: UserError."""
    from pyiceberg.io.pyarrow import compute_statistics_plan

    kept = compute_statistics_plan(table.schema(), table.properties)
    columns, units = [], []
    for field in table.spec().fields:
        column = table.schema().find_column_name(field.source_id)
        transform = str(field.transform)
        if column is None or "." in column or transform not in _UNITS:
            raise UserError(
                f"{where} is partitioned by {transform}({column}); this sink knows columns taken"
                " whole, and year, month, day and hour of a time"
            )
        if kept[field.source_id].mode.type.name not in ("TRUNCATE", "FULL"):
            raise UserError(
                f"{where} keeps no bounds of column {column!r}, by which its partitions are told"
                f" apart: set write.metadata.metrics.column.{column} to full"
            )
        columns.append(column)
        if _UNITS[transform]:
            units.append((column, _UNITS[transform]))
    return Partitions(tuple(columns), kept=True, units=tuple(units))


def _load(catalog: str | Mapping[str, str], table: str) -> Table | None:
    """Load the table's newest version; None: there is no table. Raises: StorageUnreachable."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    opened = _open(catalog)
    try:
        return opened.load_table(table)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    except Exception as error:
        raise StorageUnreachable(
            f"the Iceberg table {table} cannot be read: {redacted(str(error))}"
        ) from error


def _open(catalog: str | Mapping[str, str]) -> Catalog:
    from pyiceberg.catalog import load_catalog

    properties = {} if isinstance(catalog, str) else dict(catalog)
    name = catalog if isinstance(catalog, str) else properties.pop("name", "default")
    try:
        return load_catalog(name, **properties)
    except Exception as error:
        raise UserError(f"catalog {name!r} cannot be used: {redacted(str(error))}") from error


def _pyiceberg() -> None:
    with extra("iceberg", "write.iceberg"):
        import pyiceberg  # noqa: F401  # only whether it is there
