"""DataFrames staged as Arrow files by Spark's executors, without a way through the driver.

    FOLDER/NAME-NONCE/PARTITION-ATTEMPT-N.arrow   written and synced by an executor
    FOLDER/NAME.json                              exists when its files are there: the manifest

A socket to the workers would be quicker, and a lost worker could not read its records again: Spark
gives them once. A task that Spark runs twice writes twice, under names of its own; the manifest
names the files of the task whose result counted.
"""

from __future__ import annotations

import json
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ...contract.connectors import SourceRun
from ...contract.errors import HeadraceError, StorageUnreachable, UserError
from .. import durable
from ..columnar import ArrowFormat
from ..files import Scan
from ..filesystem import FileInfo, Location, locate
from ..formats import Expected, plain_schema
from ..splits import plan_splits
from .columns import arrow_schema

#: A file of this size is closed, and the next one begun: pieces that subtasks share out.
FILE_BYTES = 64 << 20

#: Most rows of a batch. Spark's have 10,000 unless its settings say otherwise.
_BATCH_ROWS = 1 << 16
_ROWS_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
_ROWS_OF_SPARK = "10000"
_RESULT = "path string, rows long, bytes long"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A staged DataFrame.

    Attributes:
        fingerprint: of the DataFrame's plan.
        files: {path of an Arrow file: its size in bytes}.
        rows: of all files.
    """

    fingerprint: str
    files: dict[str, int]
    rows: int

    @property
    def listing(self) -> list[FileInfo]:
        """The files, sorted by path."""
        return [FileInfo(path, size) for path, size in sorted(self.files.items())]


class StagedFrame:
    """What sources of DataFrames share: the DataFrame, in the driver alone, and its columns."""

    def __init__(self, df: DataFrame, kind: str, staging: str | None) -> None:
        """Look at the DataFrame's columns; Spark runs nothing.

        Args:
            kind: the API's word, for errors.
            staging: path or URL of a folder that executors and workers share; None: beside the
                job's checkpoints.

        Raises: UserError, for what is no DataFrame of a live session, or has no columns, or one of
            a type without a place in Arrow.
        """
        if not hasattr(df, "mapInArrow"):
            raise UserError(f"{kind} takes a DataFrame of Spark, got a {type(df).__name__}")
        try:
            columns = df.schema
            self.is_streaming = df.isStreaming
        except (PySparkException, Py4JError, OSError, AttributeError) as error:
            raise UserError(
                f"{kind}: the DataFrame's Spark session has ended ({first_line(error)}); make the"
                " DataFrame in a session that lives as long as the job"
            ) from error
        if not columns.fields:
            raise UserError(f"{kind}: the DataFrame has no columns; select some")
        self._schema = plain_schema(arrow_schema(columns, kind))
        self._kind = kind
        self._staging = staging
        self._df: DataFrame | None = df

    def __getstate__(self) -> dict[str, Any]:
        """A worker has no use for the DataFrame, which lives in the driver."""
        return {**self.__dict__, "_df": None}

    @property
    def schema(self) -> pa.Schema:
        """The DataFrame's columns."""
        return self._schema

    @property
    def frame(self) -> DataFrame:
        """The DataFrame, in the driver."""
        assert self._df is not None, "prepared in the driver"
        return self._df

    def place(self, run: SourceRun) -> tuple[Location, bool]:
        """Return where the records of a run lie, and whether they go with the job.

        Raises: UserError, when executors and workers share no folder.
        """
        if self._staging is not None:
            return locate(f"{self._staging.rstrip('/')}/{run.job}/{run.operator}", {}), False
        if run.folder:
            return locate(run.folder, {}), True
        context = getattr(self.frame.sparkSession, "_sc", None)
        if context is None or not context.master.startswith("local"):
            raise UserError(
                f"{self._kind} {run.operator!r}: a job without checkpoints has no folder that"
                " Spark's executors share; give it checkpoints=DIR, or staging=URL"
            )
        return locate(tempfile.mkdtemp(prefix="headrace-staged-"), {}), True


def stage(
    df: DataFrame, schema: pa.Schema, location: Location, name: str, *, fingerprint: str = ""
) -> Manifest:
    """Write the DataFrame's records below the location's root, and then the manifest `name`, unless
    it is there by then.

    Raises: HeadraceError, when Spark fails; StorageUnreachable.
    """
    folder = f"{location.root}/{name.removesuffix('.json')}-{secrets.token_hex(8)}"
    with _telling(location):
        durable.make_folder(location, folder)
        what = f"headrace: staging records in {location.root}"
        with _described(df, what), _large_batches(df.sparkSession):
            rows = df.mapInArrow(_writing(location, folder, schema), _RESULT).collect()
        files = {row["path"]: row["bytes"] for row in rows}
        manifest = Manifest(fingerprint, files, sum(row["rows"] for row in rows))
        content = json.dumps(asdict(manifest)).encode()
        durable.publish_once(location, f"{location.root}/{name}", content)
    return manifest


def staged(location: Location, name: str) -> Manifest | None:
    """Read a manifest; None: it is not there, or not whole. Raises: StorageUnreachable."""
    with _telling(location):
        try:
            text = location.fs.cat_file(f"{location.root}/{name}")
        except FileNotFoundError:
            return None
    with suppress(ValueError, TypeError):
        return Manifest(**json.loads(text))
    return None


def remove_staged(location: Location) -> None:
    """Delete everything below the location's root. Raises: StorageUnreachable."""
    with _telling(location):
        location.fs.invalidate_cache()
        if location.fs.exists(location.root):
            location.fs.rm(location.root, recursive=True)


def fingerprint_of(df: DataFrame) -> str:
    """Return a text that is equal for equal plans of a DataFrame over the same inputs."""
    return f"{df.semanticHash()} {df.schema.json()}"


def first_line(error: BaseException) -> str:
    """Return the line of Spark's pages about a failure that tells most.

    It is the exception of a Python worker, else the first line.
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    _, raised, traceback = str(error).rpartition("Traceback (most recent call last):\n")
    if raised:
        lines = [line for line in traceback.splitlines() if line[:1].strip()]
    return lines[0].strip() if lines else type(error).__name__


def scan_of(
    location: Location, schema: pa.Schema, files: list[FileInfo], follow_ns: int | None
) -> Scan:
    """Describe staged files for their readers."""
    return Scan(
        location=location,
        format=ArrowFormat(),
        expected=Expected(schema, given=True),
        planned=tuple(plan_splits(files, None)),
        sizes={file.path: file.size_bytes for file in files},
        follow_ns=follow_ns,
        path_column=None,
        batch_rows=_BATCH_ROWS,
        clock=time.monotonic_ns,
    )


def _writing(
    location: Location, folder: str, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that each task runs."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return write_files(location, folder, schema, batches)

    return write


def write_files(
    location: Location,
    folder: str,
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    file_bytes: int = FILE_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Write batches as Arrow files; yield path, rows and bytes of each, as a batch."""
    context = TaskContext.get()
    assert context is not None, "runs inside a Spark task"
    prefix = f"{folder}/{context.partitionId():06d}-{context.taskAttemptId()}"
    rest = (batch for batch in batches if batch.num_rows)
    for number, first in enumerate(iter(lambda: next(rest, None), None)):
        yield _write_file(location, f"{prefix}-{number:04d}.arrow", schema, first, rest, file_bytes)


def _write_file(
    location: Location,
    path: str,
    schema: pa.Schema,
    first: pa.RecordBatch,
    rest: Iterator[pa.RecordBatch],
    file_bytes: int,
) -> pa.RecordBatch:
    rows = 0
    file = durable.create(location, path)
    with pa.ipc.new_file(file, schema) as writer:
        batch: pa.RecordBatch | None = first
        while batch is not None:
            # Spark's batches carry the session's time zone.
            writer.write_batch(batch if batch.schema == schema else batch.cast(schema))
            rows += batch.num_rows
            batch = next(rest, None) if file.tell() < file_bytes else None
    size_bytes = file.tell()
    durable.close_durably(location, path, file)
    return pa.record_batch({"path": [path], "rows": [rows], "bytes": [size_bytes]})


@contextmanager
def _described(df: DataFrame, what: str) -> Iterator[None]:
    """Let Spark's page say what the jobs in this thread are for; Spark Connect shows none."""
    context = getattr(df.sparkSession, "_sc", None)
    if context is None:
        yield
        return
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(what)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)


@contextmanager
def _large_batches(session: SparkSession) -> Iterator[None]:
    """Let Spark hand over larger batches, for a sixth less processor time, unless the user has
    chosen a size; not in versions that do not limit a batch's bytes as well.
    """
    settings = session.conf
    if settings.get(_ROWS_SETTING) != _ROWS_OF_SPARK or not settings.isModifiable(_BYTES_SETTING):
        yield
        return
    settings.set(_ROWS_SETTING, str(_BATCH_ROWS))
    try:
        yield
    finally:
        settings.set(_ROWS_SETTING, _ROWS_OF_SPARK)


@contextmanager
def _telling(location: Location) -> Iterator[None]:
    """Turn failures into one sentence."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise StorageUnreachable(f"cannot stage in {location.root}: {reason}") from error
    except (PySparkException, Py4JError) as error:
        raise HeadraceError(f"Spark cannot stage the records: {first_line(error)}") from error
