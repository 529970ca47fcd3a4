"""The files that one writer has open: one for each partition, rolled by size.

A file that has grown to `roll_bytes` is finished at once, and so is the file that was written
longest ago when too many are open. All others are finished at a pre-commit: no file holds records
of two checkpoints, since a file is committed as a whole. What is gathered in memory is bounded for
all files together.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from . import durable
from .filesystem import Location
from .partitions import Partitions, Values
from .writers import ROW_GROUP_BYTES, ParquetRecords, RecordFormat, RecordWriter

#: Each open file costs a buffer, and a connection on an object store.
_FILES_OPEN_MAX = 64
#: Row groups smaller than this are slow to read, however many files are open.
_GATHER_BYTES_MIN = 256 * 1024


@dataclass(frozen=True, slots=True)
class RolledFile:
    """A finished file; its bytes and its name are durable.

    Attributes:
        path: where it lies now.
        values: of its partition.
        footer: of a Parquet file.
    """

    path: str
    values: Values
    rows: int
    size_bytes: int
    footer: pq.FileMetaData | None = None


class RolledFiles:
    """Files that are being written, and finished ones that nobody has taken.

    Args:
        place: makes the path of a new file in the partition with these values.
        roll_bytes: about how large a file grows.
    """

    def __init__(
        self,
        location: Location,
        format: RecordFormat,
        partitions: Partitions,
        roll_bytes: int,
        place: Callable[[Values], str],
    ) -> None:
        self._location = location
        self._format = format
        self._partitions = partitions
        self._roll_bytes = roll_bytes
        self._place = place
        #: In the order of their last writes.
        self._open: dict[Values, tuple[str, RecordWriter]] = {}
        self._finished: list[RolledFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records to the files of their partitions. Raises: OSError, pa.ArrowException."""
        for values, records in self._partitions.split(batch):
            self._write(values, records)

    def take(self) -> list[RolledFile]:
        """Finish all files, and hand them out; they are the caller's from now on. Raises:
        OSError.
        """
        for values in list(self._open):
            self._finish(values)
        finished, self._finished = self._finished, []
        return finished

    def close(self) -> None:
        """Delete files that nobody has taken, as far as that is possible."""
        for path, records in self._open.values():
            records.abandon()
            with suppress(Exception):
                records.file.close()
            self._remove(path)
        for file in self._finished:
            self._remove(file.path)
        self._open, self._finished = {}, []

    def _write(self, values: Values, batch: pa.RecordBatch) -> None:
        opened = self._open.pop(values, None)
        if opened is None:
            if len(self._open) >= _FILES_OPEN_MAX:
                self._finish(next(iter(self._open)))
            opened = self._begin(values, batch.schema)
        self._open[values] = opened
        _, records = opened
        gather_bytes_max = max(ROW_GROUP_BYTES // len(self._open), _GATHER_BYTES_MIN)
        records.write(batch, min(gather_bytes_max, self._roll_bytes))
        if records.file.tell() >= self._roll_bytes:
            self._finish(values)

    def _begin(self, values: Values, schema: pa.Schema) -> tuple[str, RecordWriter]:
        path = self._place(values)
        file = durable.create(self._location, path)
        return path, self._format.open(file, schema)

    def _finish(self, values: Values) -> None:
        path, records = self._open[values]
        rows = records.finish()
        durable.close_durably(self._location, path, records.file)
        footer = records.metadata if isinstance(records, ParquetRecords) else None
        size_bytes = durable.size_bytes(self._location, path)
        assert size_bytes is not None, f"{path} is gone as soon as it was written"
        # Only now: until here `close` has to delete it.
        del self._open[values]
        self._finished.append(RolledFile(path, values, rows, size_bytes, footer))

    def _remove(self, path: str) -> None:
        # The committer deletes what stays behind, before the next attempt.
        with suppress(Exception):
            durable.remove(self._location, path)
