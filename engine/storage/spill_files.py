"""The runs of an attempt on local disk: records that channels spill, scratch of one process.

A run is a segment (`inflight/segment.py`) with one blob: an Arrow stream. Nothing is synced: a run
is of no use to another process, and a killed worker's folder is removed by the next worker
(`working_folder.py`). A run is checked when it is read, by its length and its checksum.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import threading
from collections.abc import Callable

import pyarrow as pa

from headrace.channels.spilled import RunFile
from headrace.inflight.segment import (
    HEADER_BYTES,
    InvalidTable,
    SegmentBuilder,
    checksum_of,
    table_from_ipc,
    table_to_ipc,
)
from headrace.inflight.spill import WriteRun

from ..contract.execution import SubtaskId

#: (subtask, its run) -> the run's blob, checked. Raises: CorruptRun.
RunContent = Callable[[SubtaskId, RunFile], bytes | memoryview]


class CorruptRun(Exception):
    """Spilled records are missing or damaged; the message says where."""


class SpillFiles:
    """The runs of one attempt. Calls take time; threads may share it.

    `folder`: names a folder to make, at the first write. Raises: HeadraceError.
    """

    def __init__(self, folder: Callable[[], str]) -> None:
        self._new_folder = folder
        self._mutex = threading.Lock()
        self._folder = ""

    def write(self, subtask: SubtaskId, order: WriteRun) -> RunFile:
        """Write a run. Raises OSError or HeadraceError, and leaves nothing behind."""
        segment, file = encoded(order)
        path = self._path(subtask, order.number)
        try:
            with open(path, "wb") as run:
                run.writelines(segment.parts())
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise
        return file

    def read(self, subtask: SubtaskId, file: RunFile) -> pa.Table:
        """Read a run back. Raises: CorruptRun."""
        return decoded(file, self.content(subtask, file))

    def content(self, subtask: SubtaskId, file: RunFile) -> bytes | memoryview:
        """Return the blob of a run, checked: see `RunContent`.

        The blob stays on disk, and a deletion of the run does no harm.
        """
        path = self._path(subtask, file.number)
        try:
            with open(path, "rb") as run:
                found, expected = os.fstat(run.fileno()).st_size, HEADER_BYTES + file.length
                if found != expected:
                    raise CorruptRun(f"{path}: expected {expected} bytes, found {found}")
                mapped = mmap.mmap(run.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CorruptRun(f"{path}: {error.strerror or error}") from error
        content = memoryview(mapped)[HEADER_BYTES:]
        if (checksum := checksum_of(content)) != file.checksum:
            raise CorruptRun(f"{path}: expected xxh3 {file.checksum}, found xxh3 {checksum}")
        return content

    def delete(self, subtask: SubtaskId, file: RunFile) -> None:
        """Delete a run; one that stays goes with the folder."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(subtask, file.number))

    def close(self) -> None:
        """Remove everything. Never fails."""
        with self._mutex:
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, subtask: SubtaskId, number: int) -> str:
        with self._mutex:
            if not self._folder:
                folder = self._new_folder()
                os.mkdir(folder)
                self._folder = folder
            return os.path.join(self._folder, f"{subtask.task}-{subtask.subtask}-{number}")


def encoded(order: WriteRun) -> tuple[SegmentBuilder, RunFile]:
    """Return the run as a segment, and its description."""
    table = pa.Table.from_batches([part for buffer in order.buffers for part in buffer.parts])
    segment = SegmentBuilder()
    blob = segment.append(*table_to_ipc(table))
    return segment, RunFile(order.number, table.num_rows, blob.length, blob.checksum)


def decoded(file: RunFile, content: bytes | memoryview) -> pa.Table:
    """Return the records of a run's blob. Raises: CorruptRun."""
    try:
        # Not a view: the run may go while its records are still queued.
        table = table_from_ipc(bytes(content))
    except InvalidTable as error:
        raise CorruptRun(f"run {file.number}: {error}") from error
    if table.num_rows != file.rows:
        raise CorruptRun(f"run {file.number}: expected {file.rows} rows, found {table.num_rows}")
    return table


def no_runs(subtask: SubtaskId, file: RunFile) -> bytes:
    """Nothing was spilled."""
    raise CorruptRun(f"run {file.number} of {subtask} was never written")
