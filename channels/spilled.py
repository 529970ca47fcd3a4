"""Records of a channel that lie on local disk for a time, in place of their buffers.

A *run* is a file with neighbouring records of a channel. A run knows nothing of its channel, and
several ranges may lie in a run: a watermark between the records stays in the channel's queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from .buffer import Buffer


@dataclass(frozen=True, slots=True)
class RunFile:
    """A run as written: `length` bytes with xxh3-64 `checksum` in hex.

    `number` tells the runs of one subtask and attempt apart.
    """

    number: int
    rows: int
    length: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Spilled:
    """The records `[first, first + rows)` of a channel, from record `start` of a run on.

    `size_bytes`: as in `Buffer`.
    """

    first: int
    rows: int
    size_bytes: int
    file: RunFile
    start: int

    @property
    def end(self) -> int:
        """Position after the last record."""
        return self.first + self.rows

    def split(self, rows: int) -> tuple[Spilled, Spilled]:
        """Cut after `rows` records; see `Buffer.split`."""
        assert 0 < rows < self.rows, f"cannot cut {self.rows} rows at {rows}"
        left_bytes = self.size_bytes * rows // self.rows
        right_bytes = self.size_bytes - left_bytes
        return (
            Spilled(self.first, rows, left_bytes, self.file, self.start),
            Spilled(self.first + rows, self.rows - rows, right_bytes, self.file, self.start + rows),
        )

    def followed_by(self, behind: Spilled) -> Spilled | None:
        """Both as one; None: they are no neighbours in one run."""
        here = self.file is behind.file and self.start + self.rows == behind.start
        if not here or self.end != behind.first:
            return None
        size_bytes = self.size_bytes + behind.size_bytes
        return Spilled(self.first, self.rows + behind.rows, size_bytes, self.file, self.start)

    def loaded(self, run: pa.Table) -> Buffer:
        """Return the records as a buffer. `run`: all records of the run."""
        parts = run.slice(self.start, self.rows).to_batches()
        assert sum(part.num_rows for part in parts) == self.rows, f"a short run {self.file}"
        return Buffer(self.first, self.rows, self.size_bytes, tuple(parts))


#: A run of records of a channel, wherever they lie.
Records = Buffer | Spilled

_T = TypeVar("_T")


def with_spilled(
    items: Iterable[Records | _T], file: RunFile, first: int, end: int
) -> list[Records | _T]:
    """Replace the buffers within `[first, end)`, the range that `file` holds."""
    found: list[Records | _T] = []
    for item in items:
        if not isinstance(item, Buffer) or item.first < first or item.end > end:
            found.append(item)
            continue
        spilled = Spilled(item.first, item.rows, item.size_bytes, file, item.first - first)
        last = found[-1] if found else None
        joined = last.followed_by(spilled) if isinstance(last, Spilled) else None
        found[-1:] = [joined] if joined is not None else [*found[-1:], spilled]
    return found
