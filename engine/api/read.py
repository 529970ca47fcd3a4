"""Sources: `hr.read.<format>(...)`.

Every function takes `name=`, which is required, since a restart finds the offsets in a checkpoint
by it, and `parallelism=`, the number of reading subtasks (the job's by default). The schema is
looked up at once, so the line that names a missing file refuses it. All raise `UserError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import pyarrow as pa

from ..contract.connectors import Source
from ..contract.errors import UserError
from ..contract.suggestion import did_you_mean
from ..contract.units import Duration, Size, duration_ns, size_bytes
from ..operators.batch import DecodeOperator
from ..plan.graph import Input, Node, Role
from ..plan.validate import check_parallelism, check_schema, require_name
from .call_site import call_site
from .stream import Stream
from .write import proposed_name

if TYPE_CHECKING:
    from ..connectors.files import FormatName


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


def from_source(
    source: Source, *, name: str | None = None, parallelism: int | None = None
) -> Stream:
    """Read from any `Source`.

    Readers that tell their splits apart (`ReadsSplits`) give each split a watermark.
    """
    return stream_of(source, "from_source", name, "records", parallelism)


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
