"""Sinks of a stream: `stream.write.<format>(...)`.

Methods import their connectors, so that only a connector's users wait for its libraries.

A sink is a leaf: writing gives a `SinkHandle`, which a `Job` takes. The stream can be used further,
by other sinks too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from ..contract.connectors import Delivery, Sink
from ..contract.errors import UserError
from ..contract.extras import extra
from ..contract.suggestion import did_you_mean
from ..contract.units import Duration, Size, duration_ns, size_bytes
from ..plan.graph import Node, Role
from ..plan.validate import check_parallelism, require_name
from .call_site import call_site
from .flow import Flow

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

    from ..connectors.postgres.sink import Mode as PostgresMode
    from ..connectors.writers import FormatOfSink


@dataclass(frozen=True, slots=True)
class SinkHandle:
    """A stream that ends in a sink, ready to be given to a `Job`.

    Attributes:
        node: the sink in the logical graph.
        sink: the connector.
    """

    node: Node
    sink: Sink

    @property
    def delivery(self) -> Delivery:
        """The sink's promise when checkpoints are on."""
        return self.sink.delivery

    @property
    def name(self) -> str:
        """The user's `name=`."""
        assert self.node.name is not None, "a sink is made with a name"
        return self.node.name


class FileSinkOptions(TypedDict, total=False):
    """Options of all file sinks.

    Attributes:
        name: required.
        partition_by: columns whose values make folders, as in `day=2026-11-23/`; they are not in
            the files.
        roll_bytes: about how large a file grows ("256MiB" by default). A file ends at each
            checkpoint, too.
        storage_options: passed to fsspec.
        parallelism: number of writing subtasks.
    """

    name: str | None
    partition_by: str | Sequence[str]
    roll_bytes: Size
    storage_options: Mapping[str, Any] | None
    parallelism: int | None


@dataclass(frozen=True, slots=True)
class Write:
    """The sinks of `stream`.

    Every method takes `name=`, which is required, and `parallelism=`, the number of writing
    subtasks (the job's by default), and raises `UserError` when a record of the stream has no place
    in the sink.
    """

    stream: Flow[Any]

    def parquet(
        self, path: str, *, compression: str = "snappy", **options: Unpack[FileSinkOptions]
    ) -> SinkHandle:
        """Write Parquet files into the folder `path`; files appear when their checkpoint is
        complete.

        Args:
            path: local or any fsspec URL.
            compression: "snappy", "zstd", "gzip", "lz4", "brotli" or "none".
        """
        return self._files("parquet", path, compression, options)

    def json(
        self, path: str, *, compression: str = "none", **options: Unpack[FileSinkOptions]
    ) -> SinkHandle:
        """Write files of one JSON object per line into the folder `path`, as `parquet` does.

        Args:
            compression: of the text: "none", "gzip" or "zstd".
        """
        return self._files("json", path, compression, options)

    def csv(
        self,
        path: str,
        *,
        delimiter: str = ",",
        compression: str = "none",
        **options: Unpack[FileSinkOptions],
    ) -> SinkHandle:
        """Write CSV files with a header line into the folder `path`, as `parquet` does.

        Args:
            compression: of the text: "none", "gzip" or "zstd".
        """
        return self._files("csv", path, compression, options, delimiter)

    def arrow(
        self, path: str, *, compression: str = "lz4", **options: Unpack[FileSinkOptions]
    ) -> SinkHandle:
        """Write Arrow IPC files into the folder `path`, as `parquet` does.

        Args:
            compression: of the columns: "lz4", "zstd" or "none".
        """
        return self._files("arrow", path, compression, options)

    def delta(
        self, path: str, *, compression: str = "snappy", **options: Unpack[FileSinkOptions]
    ) -> SinkHandle:
        """Append to the Delta table at `path`, which is created if there is none; rows appear when
        their checkpoint is complete.

        Needs `pip install 'headrace[delta]'`.

        Args:
            path: local or a URL of an object store; `storage_options` are fsspec's or deltalake's.
            compression: of the data files, as of `parquet`.
        """
        kind = "write.delta"
        given = _of_files(kind, options)
        from ..connectors.tables.delta import DeltaSink
        from ..connectors.writers import record_format

        sink = DeltaSink(path, record_format("parquet", compression), **given)
        return self._to_files(kind, sink, options, proposed_name(path, "out"))

    def iceberg(
        self,
        table: str,
        *,
        catalog: str | Mapping[str, str] = "default",
        compression: str = "zstd",
        **options: Unpack[FileSinkOptions],
    ) -> SinkHandle:
        """Append to an Iceberg table, which is created if there is none; rows appear when their
        checkpoint is complete.

        Needs `pip install 'headrace[iceberg]'`.

        Args:
            table: with its namespace, as in "shop.orders".
            catalog: name of a catalog that pyiceberg's configuration knows, or its properties.
            compression: of the data files, as of `parquet`.
        """
        kind = "write.iceberg"
        given = _of_files(kind, options, partitions_kept=True)
        from ..connectors.tables.iceberg import IcebergSink
        from ..connectors.writers import record_format

        sink = IcebergSink(table, catalog, record_format("parquet", compression), **given)
        return self._to_files(kind, sink, options, table.rpartition(".")[2] or "out")

    def data_source(
        self,
        source: str | type[DataSource],
        *,
        name: str | None = None,
        options: Mapping[str, object] | None = None,
        parallelism: int | None = None,
    ) -> SinkHandle:
        """Write to a PySpark Python data source with a `streamWriter`, on any runner and without a
        Spark session.

        Such a writer sends records before their checkpoint is complete, so delivery is
        at-least-once. It is exactly-once for a writer with `headrace_idempotent = True`, which
        promises that nothing is visible before its `commit`, and that a second `commit` with the
        same batch id does nothing. Batch ids are 0, 1, 2 ...

        Args:
            source: its class, "module:Class", or the name of one in an installed `pyspark_...`
                package.
            options: as `writeStream.options(...)` takes them.
        """
        kind = "write.data_source"
        with extra("spark", kind):
            from ..connectors.spark.data_sink import DataSourceSink
            from ..connectors.spark.hosted import hosted_sink

        sink = DataSourceSink(hosted_sink(source, options or {}, self.stream.schema))
        return self._to(kind, sink, name, parallelism, "out")

    def postgres(
        self,
        table: str,
        *,
        url: str,
        mode: PostgresMode = "insert",
        key: Sequence[str] = (),
        retry: Duration = "2m",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> SinkHandle:
        """Write rows into a PostgreSQL table; they appear when their checkpoint is complete.

        The table exists, and has each column of the stream.

        Args:
            table: as SQL spells it: `orders`, `sales.orders`, `"Orders"`.
            url: `postgresql://user@host:5432/database`, or libpq's `host=... dbname=...`; a
                password is best left to PGPASSWORD or `~/.pgpass`.
            mode: "insert" adds rows, by prepared transactions; "upsert" replaces the row with the
                same key.
            key: for upsert: the columns by which a row is found; the table has a unique index on
                them. Records of one key belong to one subtask (`key_by`) if their order matters.
            retry: for how long a subtask tries when the server is away, before its attempt fails.
        """
        from ..connectors.postgres.connection import Database
        from ..connectors.postgres.sink import PostgresSink

        retry_ns = duration_ns(retry, option="write.postgres: retry")
        sink = PostgresSink(Database(url), table, mode, tuple(key), retry_ns)
        return self._to("write.postgres", sink, name, parallelism, proposed_name(table, "rows"))

    def kafka(
        self,
        topic: str | None = None,
        *,
        servers: str | Sequence[str],
        name: str | None = None,
        key: str | None = None,
        value: str | None = None,
        headers: str | None = None,
        timestamp: str | None = None,
        partition: str | None = None,
        topic_column: str | None = None,
        delivery: Delivery = "exactly-once",
        transaction_timeout: Duration = "15m",
        compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none",
        batch_size: Size = "512KiB",
        options: Mapping[str, Any] | None = None,
        parallelism: int | None = None,
    ) -> SinkHandle:
        """Write records to a Kafka topic; readers of committed records see each once, when its
        checkpoint is complete. Needs `pip install 'headrace[kafka]'`; see docs/kafka.md.

        Args:
            topic: an existing topic; or `topic_column`, the column with each record's topic.
            servers: "host:port,host:port", or a list.
            key: column with the key; equal keys go to one partition, as with Kafka's own clients.
            value: column with the value; without it, all columns as an object of JSON.
            headers: column of type list<struct<key: string, value: binary>>.
            timestamp: column with the record's time; without it, the time of writing.
            partition: column with the number of the partition; without it, the key's hash, or one
                partition after the other.
            delivery: "at-least-once" writes without transactions, and a record is seen at once.
            transaction_timeout: after which Kafka aborts what was not committed; at most the
                broker's `transaction.max.timeout.ms`.
            compression: "none", "gzip", "snappy", "lz4" or "zstd".
            batch_size: of a batch of records, before compression; below the topic's
                `max.message.bytes`.
            options: encryption and authentication, by their names in kafka-python
                (security_protocol=, sasl_mechanism=, ssl_cafile=...).
        """
        with extra("kafka", "write.kafka"):
            from ..connectors.kafka.outgoing import Layout
            from ..connectors.kafka.sink import KafkaSink

        layout = Layout(topic, topic_column, key, value, headers, timestamp, partition)
        sink = KafkaSink(
            layout,
            servers,
            delivery=delivery,
            transaction_timeout=transaction_timeout,
            compression=compression,
            batch_size=batch_size,
            options=options,
        )
        return self._to("write.kafka", sink, name, parallelism, topic or "out")

    def collect(self, *, name: str | None = None, parallelism: int | None = None) -> SinkHandle:
        """Gather all records in the driver, as `JobResult.collected[name]`.

        For results that fit in memory.
        """
        from ..connectors.memory import CollectSink

        return self._to("write.collect", CollectSink(), name, parallelism, "collected")

    def blackhole(self, *, name: str | None = None, parallelism: int | None = None) -> SinkHandle:
        """Drop all records, for benchmarks."""
        from ..connectors.memory import BlackholeSink

        return self._to("write.blackhole", BlackholeSink(), name, parallelism, "dropped")

    def to(
        self, sink: Sink, *, name: str | None = None, parallelism: int | None = None
    ) -> SinkHandle:
        """Write to any `Sink`."""
        return self._to("write.to", sink, name, parallelism, "out")

    def _files(
        self,
        format: FormatOfSink,
        path: str,
        compression: str,
        options: FileSinkOptions,
        delimiter: str = ",",
    ) -> SinkHandle:
        kind = f"write.{format}"
        given = _of_files(kind, options)
        from ..connectors.file_sink import FileSink
        from ..connectors.writers import record_format

        sink = FileSink(path, record_format(format, compression, delimiter), **given)
        return self._to_files(kind, sink, options, proposed_name(path, "out"))

    def _to_files(
        self, kind: str, sink: Sink, options: FileSinkOptions, proposal: str
    ) -> SinkHandle:
        return self._to(kind, sink, options.get("name"), options.get("parallelism"), proposal)

    def _to(
        self, kind: str, sink: Sink, name: str | None, parallelism: int | None, proposal: str
    ) -> SinkHandle:
        name = require_name(
            name, kind=kind, proposal=proposal, why="by which its transactions are found again"
        )
        if parallelism is not None:
            check_parallelism(parallelism, where=f"{kind}: parallelism")
        sink.check(self.stream.schema)
        node = Node(
            kind=kind,
            role=Role.SINK,
            name=name,
            inputs=self.stream.inputs,
            schema=self.stream.schema,
            writer=sink.writer,
            committer=sink.committer,
            parallelism=parallelism,
            stateful=True,
            built_at=call_site(),
        )
        return SinkHandle(node, sink)


def _of_files(
    kind: str, options: FileSinkOptions, *, partitions_kept: bool = False
) -> dict[str, Any]:
    """Return the options of files as sinks take them. Raises: UserError, for unknown ones."""
    from ..connectors.file_sink import ROLL_BYTES
    from ..connectors.partitions import partitions_by

    known = list(FileSinkOptions.__annotations__)
    for option in options:
        if option not in known:
            raise UserError(f"{kind} has no option {option!r}; {did_you_mean(option, known)}")
    return {
        "partitions": partitions_by(options.get("partition_by", ()), kept=partitions_kept),
        "roll_bytes": size_bytes(options.get("roll_bytes", ROLL_BYTES), option="roll_bytes"),
        "storage_options": options.get("storage_options"),
    }


def proposed_name(path: str, otherwise: str) -> str:
    """Propose a name for a reader or writer of `path`: the last part without a pattern, without an
    extension.
    """
    for part in reversed(re.split(r"[/\\]", path)):
        stem = part.split(".")[0]
        if stem and not re.search(r"[*?\[\]:]", part):
            return stem
    return otherwise
