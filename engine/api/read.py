"""Sources: `hr.read.<format>(...)`.

Every function takes `name=`, which is required, since a restart finds the offsets in a checkpoint
by it, and `parallelism=`, the number of reading subtasks (the job's by default). The schema is
looked up at once, so the line that names a missing file refuses it. All raise `UserError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import pyarrow as pa

from ..contract.connectors import PreparesRun, Source, SplitSource
from ..contract.errors import UserError
from ..contract.extras import extra
from ..contract.suggestion import did_you_mean
from ..contract.units import Duration, Size, duration_ns, size_bytes
from ..operators.batch import DecodeOperator
from ..plan.graph import Input, Node, Role
from ..plan.validate import check_parallelism, check_schema, require_name
from .call_site import call_site
from .stream import Stream
from .write import proposed_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.datasource import DataSource

    from ..connectors.files import FormatName
    from ..connectors.kafka.source import Isolation, OnMissing
    from ..connectors.kafka.values import Decoded


class FileOptions(TypedDict, total=False):
    """Options of all file sources.

    Attributes:
        name: required.
        schema: columns to read and their types; None infers them from the first file.
        follow: None reads the present files and ends; a duration looks for more that often.
        path_column: name of a column to add that holds the file's path.
        storage_options: passed to fsspec.
        parallelism: number of reading subtasks.
    """

    name: str | None
    schema: pa.Schema | None
    follow: Duration | None
    path_column: str | None
    storage_options: Mapping[str, Any] | None
    parallelism: int | None


def parquet(path: str, **options: Unpack[FileOptions]) -> Stream:
    """Read Parquet files. `path` is a file, a folder or a pattern, local or any fsspec URL.

    Files and folders below it whose names begin with "_" or "." are passed over.
    """
    return _files("parquet", path, options)


def csv(
    path: str,
    *,
    delimiter: str = ",",
    column_names: Sequence[str] | None = None,
    **options: Unpack[FileOptions],
) -> Stream:
    """Read CSV files.

    Args:
        path: see `parquet`.
        column_names: for files without a header line.
    """
    return _files("csv", path, options, delimiter=delimiter, column_names=column_names)


def json(path: str, **options: Unpack[FileOptions]) -> Stream:
    """Read files of one JSON object per line. `path`: see `parquet`."""
    return _files("json", path, options)


def arrow(path: str, **options: Unpack[FileOptions]) -> Stream:
    """Read Arrow IPC files and streams. `path`: see `parquet`."""
    return _files("arrow", path, options)


def text(path: str, **options: Unpack[FileOptions]) -> Stream:
    """Read text files, one record a line, in the column `line`. `path`: see `parquet`."""
    return _files("text", path, options)


def sequence(
    rows: int | None,
    *,
    name: str | None = None,
    rate: float | None = None,
    keys: int | None = 1000,
    payload: Size = 0,
    parallelism: int | None = None,
) -> Stream:
    """Make numbered records with the int64 columns `sequence`, `timestamp` (nanoseconds) and `key`,
    for tests and benchmarks.

    Args:
        rows: how many in all; None never ends.
        rate: records per second, of all subtasks together; None: as fast as they are taken.
        keys: number of distinct keys; None: each record its own.
        payload: size of a binary column `payload`; 0 leaves it out.
    """
    from ..connectors.sequence import SequenceSource

    source = SequenceSource(
        rows=rows,
        rate_per_s=rate,
        key_count=keys,
        payload_bytes=size_bytes(payload, option="read.sequence: payload"),
    )
    return stream_of(source, "read.sequence", name, "numbers", parallelism)


def batches(
    batches: Sequence[pa.RecordBatch],
    *,
    name: str | None = None,
    parallelism: int | None = None,
) -> Stream:
    """Read record batches that the program holds; they are shipped with it.

    For tests and small tables.
    """
    from ..connectors.memory import BatchesSource

    return stream_of(BatchesSource(batches), "read.batches", name, "rows", parallelism)


def dataframe(
    df: DataFrame,
    *,
    name: str | None = None,
    staging: str | None = None,
    parallelism: int | None = None,
) -> Stream:
    """Read a batch DataFrame of Spark, whichever runner runs the job.

    Spark's executors stage the records once as Arrow files, when the job starts.

    Args:
        staging: a folder or URL that executors and workers share, where the records stay; None:
            beside the job's checkpoints until the job has finished.
    """
    with extra("spark", "read.dataframe"):
        from ..connectors.spark.dataframe import DataFrameSource

    return stream_of(DataFrameSource(df, staging), "read.dataframe", name, "rows", parallelism)


def stream(
    df: DataFrame,
    *,
    name: str | None = None,
    follow: Duration | None = "1s",
    staging: str | None = None,
    parallelism: int | None = None,
) -> Stream:
    """Read a streaming DataFrame of Spark, whichever runner runs the job.

    A streaming query of the DataFrame's session runs as long as the job: its executors stage each
    micro-batch as Arrow files, which are read when the batch is complete.

    Args:
        follow: time between two micro-batches; None reads what is there and ends.
        staging: see `dataframe`.
    """
    kind = "read.stream"
    with extra("spark", kind):
        from ..connectors.spark.stream import StreamSource

    follow_ns = None if follow is None else duration_ns(follow, option=f"{kind}: follow")
    return stream_of(StreamSource(df, follow_ns, staging), kind, name, "rows", parallelism)


def data_source(
    source: str | type[DataSource],
    *,
    name: str | None = None,
    options: Mapping[str, object] | None = None,
    schema: str | None = None,
    follow: Duration | None = None,
    parallelism: int | None = None,
) -> Stream:
    """Read a PySpark Python data source, on any runner and without a Spark session.

    One subtask plans the partitions, `parallelism` subtasks read them. A checkpoint never cuts a
    partition, whose rows are in memory while it is read, unless the class says
    `headrace_repeatable = True`: its partitions give the same rows whenever they are read.

    Args:
        source: its class, "module:Class", or the name of one in an installed `pyspark_...` package.
        options: as `spark.read.options(...)` takes them.
        schema: DDL text such as "id bigint, tags array<string>"; None: the source's own.
        follow: None reads what is there and ends; a duration reads the source as a stream, and asks
            for more that often while it has none.
    """
    kind = "read.data_source"
    with extra("spark", kind):
        from ..connectors.spark.hosted import hosted
        from ..connectors.spark.partitions import PartitionSource, SimpleSource

    follow_ns = None if follow is None else duration_ns(follow, option=f"{kind}: follow")
    found = hosted(source, options or {}, schema)
    check_schema(found.arrow, where=kind)
    simple = found.has("simpleStreamReader") and not found.has("streamReader")
    if follow_ns is not None and simple:
        return stream_of(SimpleSource(found, follow_ns), kind, name, "rows", 1)
    needed = "reader" if follow_ns is None else "streamReader"
    if not found.has(needed):
        other = "with follow='1s'" if follow_ns is None else "without follow"
        raise UserError(f"{kind}: {found.what} has no {needed}; read it {other}")
    return splits(PartitionSource(found, follow_ns), name=name, parallelism=parallelism)


def postgres(
    table: str,
    *,
    url: str,
    column: str | None = None,
    follow: Duration | None = None,
    retry: Duration = "2m",
    name: str | None = None,
    parallelism: int | None = None,
) -> Stream:
    """Read a PostgreSQL table, view or query.

    Rows that are there now are read and the stream ends; each is read once if nobody changes it
    meanwhile. With `follow`, rows that are added later are read too, in the order of `column` and
    each once, by one subtask.

    Args:
        table: as SQL spells it (`orders`, `sales.orders`, `"Orders"`), or a query.
        url: see `Stream.write.postgres`.
        column: rows are read in its order, so it should have an index, and is never NULL; required
            for queries and views, and for `follow`. None: a table is read in the order in which it
            lies on disk.
        follow: how often to look for more. The column is drawn from a sequence by the transaction
            that inserts the row, or is the time of `now()`. New rows wait until transactions have
            ended that were open beside theirs, for those may still add a row before them.
        retry: for how long a subtask tries when the server is away, before its attempt fails.
    """
    from ..connectors.postgres.connection import Database
    from ..connectors.postgres.source import PostgresSource

    kind = "read.postgres"
    if follow is not None and parallelism not in (None, 1):
        raise UserError(f"{kind}: parallelism={parallelism}: one subtask follows a table")
    source = PostgresSource(
        Database(url),
        table,
        column,
        None if follow is None else duration_ns(follow, option=f"{kind}: follow"),
        duration_ns(retry, option=f"{kind}: retry"),
    )
    width = parallelism if follow is None else 1
    return stream_of(source, kind, name, "rows", width)


def kafka(
    topics: str | Sequence[str],
    *,
    servers: str | Sequence[str],
    name: str | None = None,
    start: str | datetime | Mapping[Any, int] = "earliest",
    stop: Literal["latest"] | None = None,
    isolation: Isolation = "read_committed",
    columns: Sequence[str] | None = None,
    key: Decoded = "binary",
    value: Decoded | pa.Schema = "binary",
    discover: Duration | None = "30s",
    group: str | None = None,
    on_missing: OnMissing = "error",
    options: Mapping[str, Any] | None = None,
    parallelism: int | None = None,
) -> Stream:
    """Read topics of Kafka. Needs `pip install 'headrace[kafka]'`.

    Each partition is a split: it has a watermark of its own, and its offset is in the checkpoint.

    Args:
        servers: "host:port", several with commas or as a list.
        start: where to begin without a checkpoint: "earliest", "latest", a datetime, or offsets as
            {(topic, partition): offset}, {partition: offset} for one topic.
        stop: None reads on; "latest" ends at what is there when the pipeline is built.
        isolation: "read_uncommitted" also reads records of open and aborted transactions.
        columns: from key, value, timestamp, topic, partition, offset and headers, in the order
            wanted; None: all.
        key, value: "binary", "text", and for values a schema: JSON objects, whose fields become
            columns in place of `value`.
        discover: how often to look for new partitions, which are read from their beginning; None:
            never.
        group: a consumer group that is told the offsets of complete checkpoints, for others to
            see; reading never begins there.
        on_missing: what to do when records to be read are gone, as after the topic's retention:
            "error", or go on from the "earliest" there is.
        options: encryption and authentication, by their names in kafka-python
            (security_protocol=, sasl_mechanism=, ssl_cafile=...).
        parallelism: number of reading subtasks.
    """
    with extra("kafka", "read.kafka"):
        from ..connectors.kafka.source import kafka_source

    source = kafka_source(
        [topics] if isinstance(topics, str) else list(topics),
        servers,
        start=start,
        stop=stop,
        isolation=isolation,
        columns=columns,
        key=key,
        value=value,
        discover_ns=None
        if discover is None
        else duration_ns(discover, option="read.kafka: discover"),
        group=group,
        on_missing=on_missing,
        options=options or {},
    )
    proposal = proposed_name(source.topics[0], "records")
    return stream_of(source, "read.kafka", name, proposal, parallelism)


def from_source(
    source: Source, *, name: str | None = None, parallelism: int | None = None
) -> Stream:
    """Read from any `Source`.

    Readers that tell their splits apart (`ReadsSplits`) give each split a watermark.
    """
    return stream_of(source, "from_source", name, "records", parallelism)


def splits(
    source: SplitSource, *, name: str | None = None, parallelism: int | None = None
) -> Stream:
    """Read a source whose splits one place plans and `parallelism` subtasks read.

    Splits are dealt out evenly as they are planned, and dealt out anew at a rescale.
    """
    from ..connectors.planned import PlannerReader
    from ..operators.splits import SPLITS, SplitsOperator

    kind = "read.splits"
    name = require_name(
        name, kind=kind, proposal="records", why="by which its splits are found again"
    )
    if parallelism is not None:
        check_parallelism(parallelism, where=f"{kind}: parallelism")
    schema = source.schema
    planner = Node(
        kind=kind,
        role=Role.SOURCE,
        name=f"{name}-splits",
        inputs=(),
        schema=SPLITS,
        reader=partial(PlannerReader, source),
        parallelism=1,
        stateful=True,
        built_at=call_site(),
    )
    planned = Stream((Input(planner),), SPLITS).rebalance()
    read = planned.then(
        kind,
        partial(SplitsOperator, source),
        schema,
        name=name,
        parallelism=parallelism,
        runs_user_code=True,
        stateful=True,
    )
    return _decoded(read, f"{kind} {name!r}", name, parallelism)


def stream_of(
    source: Source, kind: str, name: str | None, proposal: str, parallelism: int | None
) -> Stream:
    """Begin a stream; dictionary columns, whose slices cannot be merged, views and run-end-encoded
    columns become plain.

    Args:
        kind: the API's word, for errors.
        proposal: a name for the error about a missing one.
    """
    name = require_name(
        name, kind=kind, proposal=proposal, why="by which its offsets are found again"
    )
    if parallelism is not None:
        check_parallelism(parallelism, where=f"{kind}: parallelism")
    schema = source.schema
    node = Node(
        kind=kind,
        role=Role.SOURCE,
        name=name,
        inputs=(),
        schema=schema,
        reader=source.reader,
        prepare=source.prepare if isinstance(source, PreparesRun) else None,
        parallelism=parallelism,
        stateful=True,
        built_at=call_site(),
    )
    return _decoded(Stream((Input(node),), schema), f"{kind} {name!r}", name, parallelism)


def _decoded(stream: Stream, where: str, name: str, parallelism: int | None) -> Stream:
    fields = [f.with_type(f.type.value_type) if _is_coded(f) else f for f in stream.schema]
    out = check_schema(pa.schema(fields, metadata=stream.schema.metadata), where=where)
    if out.equals(stream.schema):
        return stream
    operator = partial(DecodeOperator, out)
    return stream.then("decode", operator, out, name=f"{name}-decoded", parallelism=parallelism)


def _is_coded(field: pa.Field) -> bool:
    return bool(pa.types.is_dictionary(field.type))


def _files(format: FormatName, path: str, options: FileOptions, **more: Any) -> Stream:
    # Here and above: connectors bring libraries that only their users should wait for.
    from ..connectors.files import FileSource

    kind = f"read.{format}"
    for option in options:
        known = [*FileOptions.__annotations__, *more]
        if option not in known:
            raise UserError(f"{kind} has no option {option!r}; {did_you_mean(option, known)}")
    schema, follow = options.get("schema"), options.get("follow")
    if schema is not None:
        schema = check_schema(schema, where=kind)
    source = FileSource(
        path,
        format,
        schema,
        follow_ns=None if follow is None else duration_ns(follow, option=f"{kind}: follow"),
        path_column=options.get("path_column"),
        storage_options=options.get("storage_options"),
        **more,
    )
    proposal = proposed_name(path, "records")
    return stream_of(source, kind, options.get("name"), proposal, options.get("parallelism"))
