"""The file source: Parquet, CSV, JSON lines, Arrow and text, from any file system that fsspec
knows.

The source reads the present files and ends, or follows a folder: new files are read as they appear,
and text files may grow at their end, by whole lines. A Parquet or Arrow file that appears in a
followed folder is read when two listings have seen it at one size; a writer that pauses longer
should write elsewhere and rename.

The splits' offsets are the only state (see splits.py), so a restart reads on at the next record, at
any parallelism. Splits are read one after the other, so only splits that have begun hold event time
back: the open split, text files that may grow, and splits that another subtask left half read. A
text file that has gone from a followed folder holds nothing back. Files are not locked or copied:
changing a file elsewhere than at its end, or removing it, breaks the promise, and the job fails
where the change can be noticed (gone, shorter).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow as pa

from ..contract.errors import UserError
from ..contract.operators import (
    OperatorContext,
    Polled,
    RestoredState,
    SourceStatus,
    StateSnapshot,
)
from .columnar import ArrowFormat, ParquetFormat
from .filesystem import FileInfo, Location, UnreadableFile, locate
from .formats import Cursor, Expected, Format
from .splits import (
    OPEN_END,
    Progress,
    Split,
    SplitLedger,
    beginning,
    deal,
    known_progress,
    owner_of_new,
    plan_splits,
    progress_rows,
    whole,
)
from .textual import LINE_SCHEMA, CsvFormat, Errors, JsonFormat, TextFormat

FormatName = Literal["parquet", "csv", "json", "arrow", "text"]

#: Ranges that large files are cut into.
SPLIT_BYTES = 64 * 1024 * 1024
#: This many files, evenly spread, are compared with the schema when the pipeline is built; the
#: others when they are read.
_CHECK_FILES = 16
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".snappy")


@dataclass(frozen=True, slots=True)
class Scan:
    """What a reader must know; found out in the driver and shipped with the program.

    Attributes:
        planned: splits of the files that were there when the pipeline was built, sorted.
        sizes: {path: bytes} of these files then.
        follow_ns: time between two listings of a followed folder; None if what is there is all.
    """

    location: Location
    format: Format
    expected: Expected
    planned: tuple[Split, ...]
    sizes: Mapping[str, int]
    follow_ns: int | None
    path_column: str | None
    batch_rows: int
    clock: Callable[[], int]

    @property
    def schema(self) -> pa.Schema:
        """Schema of the source's batches."""
        schema = self.expected.schema
        if self.path_column is None:
            return schema
        return schema.append(pa.field(self.path_column, pa.string()))


class FileSource:
    """Records of a file, a folder (with what is below it), a glob, or any fsspec URL of these."""

    def __init__(
        self,
        path: str,
        format: FormatName,
        schema: pa.Schema | None = None,
        *,
        batch_rows: int = 8192,
        follow_ns: int | None = None,
        path_column: str | None = None,
        delimiter: str = ",",
        column_names: Sequence[str] | None = None,
        errors: Errors = "strict",
        split_bytes: int = SPLIT_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Describe the source; files are looked at when `schema` is asked for.

        Args:
            path: where; below it, files and folders that begin with `_` or `.` are passed over.
            format: "parquet", "csv", "json" (an object a line), "arrow" (IPC file or stream) or
                "text".
            schema: columns to read, by name, and their types; None to infer them from the first
                file.
            batch_rows: most rows of a batch.
            follow_ns: None to read what is there and end; else look for more this often.
            path_column: name of a column to add that holds the file's path; None for none.
            delimiter: between the fields of CSV, one ASCII character.
            column_names: for CSV whose files have no header line.
            errors: what text formats do about bytes that are not UTF-8.
            split_bytes: size of the ranges that large Parquet, text and JSON files are cut into.
            storage_options: passed to fsspec.
            clock: monotonic nanoseconds, for `follow_ns` alone.

        Raises: UserError, for options that make no sense.
        """
        self._format = _format(format, delimiter, column_names, errors)
        if batch_rows < 1 or split_bytes < 1 or (follow_ns is not None and follow_ns < 1):
            raise UserError(
                f"source {path!r}: batch_rows={batch_rows}, split_bytes={split_bytes}, "
                f"follow_ns={follow_ns}: each must be at least 1"
            )
        if format == "text" and schema is not None:
            raise UserError(f"source {path!r}: text has the one column 'line'; leave schema= out")
        self._path = path
        self._schema = LINE_SCHEMA if format == "text" else schema
        self._batch_rows = batch_rows
        self._follow_ns = follow_ns
        self._path_column = path_column
        self._split_bytes = split_bytes
        self._storage_options = dict(storage_options or {})
        self._clock = clock
        self._scan: Scan | None = None

    @property
    def schema(self) -> pa.Schema:
        """Schema of every batch.

        The first call lists the files, and the pipeline reads the files of that list.

        Raises: UserError, when no file is there or a file cannot be read or has other columns.
        """
        return self._planned().schema

    def reader(self) -> FileReader:
        """Make the reader of one subtask.

        Ask for `schema` in the driver first, so that all subtasks share one listing.
        """
        return FileReader(self._planned())

    def _planned(self) -> Scan:
        if self._scan is None:
            try:
                self._scan = self._plan()
            except UnreadableFile as error:
                raise UserError(str(error)) from error
            except OSError as error:
                raise UserError(f"cannot list {self._path!r}: {error}") from error
        return self._scan

    def _plan(self) -> Scan:
        location = locate(self._path, self._storage_options)
        files = location.files()
        self._check_files(location, files)
        if self._schema is None:
            expected = Expected(self._format.infer(location, files[0].path), given=False)
        else:
            expected = Expected(self._schema, given=True)
        if self._path_column in expected.schema.names:
            raise UserError(
                f"path_column={self._path_column!r}: the files have a column of that name"
            )
        # A text file may hold half a header while its writer is busy; it is compared when the
        # header is whole.
        checked = [] if self._grows() else files[:: max(1, len(files) // _CHECK_FILES)]
        for file in checked:
            self._format.check(location, file.path, expected)
        return Scan(
            location=location,
            format=self._format,
            expected=expected,
            planned=tuple(plan_splits(files, self._cut_bytes())),
            sizes={file.path: file.size_bytes for file in files},
            follow_ns=self._follow_ns,
            path_column=self._path_column,
            batch_rows=self._batch_rows,
            clock=self._clock,
        )

    def _check_files(self, location: Location, files: Sequence[FileInfo]) -> None:
        if not files and (self._follow_ns is None or not location.exists()):
            raise UserError(f"no file matches {self._path!r}: check the path, or create it first")
        if not files and self._schema is None:
            raise UserError(
                f"no file matches {self._path!r} yet, so its columns are unknown: give schema="
            )
        packed = [file.path for file in files if file.path.endswith(_COMPRESSED)]
        if packed and self._format.in_bytes:
            raise UserError(
                f"{packed[0]} is compressed: unpack it, since offsets are bytes of text"
            )

    def _grows(self) -> bool:
        return self._follow_ns is not None and self._format.in_bytes

    def _cut_bytes(self) -> int | None:
        """Return the size of ranges; a file that may grow stays whole."""
        return self._split_bytes if self._format.can_cut and not self._grows() else None


class FileReader:
    """Reads the splits of one subtask, one after the other."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._schema = scan.schema
        self._growing = scan.follow_ns is not None and scan.format.in_bytes
        self._ledger = SplitLedger()
        self._index = 0
        self._parallelism = 1
        #: Splits with something to read, and the one that is open.
        self._queue: deque[Progress] = deque()
        self._cursor: Cursor | None = None
        self._split: Split | None = None
        #: Files that need no owner any more: all files known at the start, and own later ones.
        self._known: set[str] = set()
        #: {path of an own growing file that is read to its present end: progress of its last
        #: split}.
        self._followed: dict[str, Progress] = {}
        #: Paths of those that the last listing did not have.
        self._gone: set[str] = set()
        #: See `open_splits`; None: to be made anew.
        self._begun: frozenset[str] | None = None
        #: {path of a planned or new file: its size at the listing that planned or last saw it}.
        self._sizes = dict(scan.sizes)
        self._next_listing_ns = 0

    def open(self, context: OperatorContext) -> None:
        """Take this subtask's share of the planned splits."""
        self._index, self._parallelism = context.index, context.parallelism
        self._deal([])

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Take this subtask's share of the splits of the checkpoint and of the plan."""
        self._deal([row for state in states for row in progress_rows(state.table)])

    def poll(self, rows_max: int) -> Polled:
        """Read a batch of the open split, or open the next one that has any."""
        rows_max = min(rows_max, self._scan.batch_rows)
        while True:
            while self._split is not None or self._open_next():
                batch = self._read(rows_max)
                if batch is not None and batch.num_rows:
                    assert self._split is not None, "it has just been read"
                    return Polled((batch,), SourceStatus.MORE, split=self._split.name)
            if self._scan.follow_ns is None:
                return Polled((), SourceStatus.END)
            wait_ns = self._next_listing_ns - self._scan.clock()
            if wait_ns > 0:
                return Polled((), SourceStatus.IDLE, wait_ns)
            self._next_listing_ns = self._scan.clock() + self._scan.follow_ns
            self._look_for_more()

    def open_splits(self) -> frozenset[str]:
        """Splits that were begun and may have more."""
        if self._begun is None:
            followed = [p for path, p in self._followed.items() if path not in self._gone]
            waiting = [*self._queue, *followed]
            begun = {p.split.name for p in waiting if p.offset > self._beginning(p.split)}
            self._begun = frozenset(begun | ({self._split.name} if self._split else set()))
        return self._begun

    def commit(self) -> None:
        """Publish the offsets."""
        self._ledger.commit()

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the published offsets."""
        return self._ledger.snapshot()

    def close(self) -> None:
        """Close the open file."""
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _deal(self, restored: Sequence[Progress]) -> None:
        in_bytes = self._scan.format.in_bytes
        known = known_progress(self._scan.planned, restored, in_bytes=in_bytes)
        own = deal(known, parallelism=self._parallelism, index=self._index)
        self._ledger.reset(own)
        self._known = {progress.split.path for progress in known}
        self._queue = deque(progress for progress in own if not progress.done)
        self._followed, self._gone = {}, set()
        self._begun = None

    def _beginning(self, split: Split) -> int:
        return beginning(split, in_bytes=self._scan.format.in_bytes).offset

    def _open_next(self) -> bool:
        """Open the next split that waits; False if none does."""
        if not self._queue:
            return False
        progress = self._queue.popleft()
        self._split = progress.split
        self._begun = None
        self._cursor = self._scan.format.open(
            self._scan.location,
            progress.split,
            offset=progress.offset,
            expected=self._scan.expected,
            growing=self._growing,
            size_bytes_min=self._sizes.get(progress.split.path, 0),
        )
        return True

    def _read(self, rows_max: int) -> pa.RecordBatch | None:
        """Read on in the open split and note its offset; close it at its end."""
        assert self._cursor is not None
        assert self._split is not None
        batch = self._cursor.read(rows_max)
        split = self._split
        stays_open = self._growing and split.end == OPEN_END
        progress = Progress(split, self._cursor.offset, batch is None and not stays_open)
        self._ledger.note(progress)
        if batch is None:
            self.close()
            self._split = None
            self._begun = None
            if stays_open:
                self._followed[split.path] = progress
        if batch is None or self._scan.path_column is None:
            return batch
        paths = pa.repeat(pa.scalar(split.path), batch.num_rows)
        return pa.RecordBatch.from_arrays([*batch.columns, paths], schema=self._schema)

    def _look_for_more(self) -> None:
        """List the folder: own text files that grew, and new files that this subtask owns."""
        try:
            files = self._scan.location.files()
        except OSError as error:
            raise UnreadableFile(self._scan.location.root, f"listing failed: {error}") from error
        for file in files:
            if file.path in self._followed:
                self._look_for_growth(file)
            elif file.path not in self._known and self._owns(file) and self._is_whole(file):
                self._known.add(file.path)
                self._take_up(file)
        gone = self._followed.keys() - {file.path for file in files}
        if gone != self._gone:
            self._gone, self._begun = gone, None

    def _look_for_growth(self, file: FileInfo) -> None:
        progress = self._followed[file.path]
        offset = progress.offset
        if file.size_bytes < offset:
            raise UnreadableFile(
                file.path,
                f"it is {file.size_bytes} bytes long after {offset} were read; "
                "a followed file must only grow",
            )
        if file.size_bytes > offset:
            del self._followed[file.path]
            self._queue.append(progress)

    def _owns(self, file: FileInfo) -> bool:
        return owner_of_new(file.path, self._parallelism) == self._index

    def _is_whole(self, file: FileInfo) -> bool:
        """Return whether a new file may be read: text always, others once they have stopped
        growing.
        """
        before = self._sizes.get(file.path)
        self._sizes[file.path] = file.size_bytes
        return self._growing or (file.size_bytes > 0 and file.size_bytes == before)

    def _take_up(self, file: FileInfo) -> None:
        in_bytes = self._scan.format.in_bytes
        progress = beginning(whole(file.path), in_bytes=in_bytes)
        self._ledger.note(progress)
        self._queue.append(progress)


def _format(
    name: str, delimiter: str, column_names: Sequence[str] | None, errors: Errors
) -> Format:
    if errors not in get_args(Errors):
        raise UserError(f"errors={errors!r}: choose one of {', '.join(get_args(Errors))}")
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise UserError(
            f"delimiter={delimiter!r}: must be one ASCII character, not a quote or line end"
        )
    names = None if column_names is None else tuple(column_names)
    formats: dict[str, Format] = {
        "parquet": ParquetFormat(),
        "csv": CsvFormat(delimiter=delimiter, column_names=names, errors=errors),
        "json": JsonFormat(errors=errors),
        "arrow": ArrowFormat(),
        "text": TextFormat(errors=errors),
    }
    if name not in formats:
        raise UserError(f"format={name!r} is unknown: choose one of {', '.join(formats)}")
    return formats[name]
