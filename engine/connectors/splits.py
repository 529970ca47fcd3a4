"""Splits: the pieces of a file source, the subtasks that read them, and the offsets.

A split is a byte range of one file; the format says which records lie in a range. The driver plans
the splits when the pipeline is built, and this list travels with the program: subtasks that each
listed the folder could see different files and deal differently.

One rule deals splits at every parallelism and on every restart:
- *known* splits, planned or in the checkpoint: the unfinished ones, sorted, are dealt out round
  robin;
- files that appear later: by a hash of the path. A file with any split in the checkpoint is not
  planned again, so a file that has changed its size meanwhile is never cut in two ways. Finished
  splits are dealt out too, as memories: one subtask keeps each, and the union of all tells every
  subtask what has been read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import xxhash

from ..contract.operators import StateKind, StateSnapshot
from .filesystem import FileInfo

#: `Split.end` of a split that reaches to the end of its file, wherever that will be.
OPEN_END = -1
_PROGRESS = pa.schema(
    [
        ("path", pa.string()),
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("offset", pa.int64()),
        ("done", pa.bool_()),
    ]
)


@dataclass(frozen=True, slots=True, order=True)
class Split:
    """The records of `path` that begin in bytes `[start, end)`."""

    path: str
    start: int
    end: int

    @property
    def name(self) -> str:
        """Name of the split's watermark."""
        return f"{self.path}[{self.start}:{'' if self.end == OPEN_END else self.end}]"


@dataclass(frozen=True, slots=True)
class Progress:
    """Offset within a split.

    Attributes:
        offset: of the next record, in the format's measure: bytes from the beginning of the file in
            text formats, rows from the beginning of the split in the others.
        done: the split has been read to its end, for good.
    """

    split: Split
    offset: int
    done: bool


def whole(path: str) -> Split:
    """The split that is all of a file."""
    return Split(path, 0, OPEN_END)


def beginning(split: Split, *, in_bytes: bool) -> Progress:
    """Return the progress of an unread split."""
    return Progress(split, split.start if in_bytes else 0, False)


def plan_splits(files: Sequence[FileInfo], split_bytes: int | None) -> list[Split]:
    """Cut files into ranges of about `split_bytes`; None leaves them whole."""
    splits = []
    for file in files:
        count = 1 if split_bytes is None else max(1, file.size_bytes // split_bytes)
        bounds = [file.size_bytes * part // count for part in range(count)] + [OPEN_END]
        splits += [Split(file.path, start, end) for start, end in pairwise(bounds)]
    return splits


def known_progress(
    planned: Sequence[Split], restored: Iterable[Progress], *, in_bytes: bool
) -> list[Progress]:
    """Join plan and checkpoint: the checkpoint's splits, and planned splits of files that it does
    not mention.
    """
    known = list(restored)
    splits = {progress.split for progress in known}
    assert len(splits) == len(known), "a split is in the restored state twice"
    paths = {split.path for split in splits}
    known += [beginning(split, in_bytes=in_bytes) for split in planned if split.path not in paths]
    return known


def deal(known: Iterable[Progress], *, parallelism: int, index: int) -> list[Progress]:
    """Return the splits of `known` that subtask `index` reads, and the finished ones that it
    remembers.
    """
    in_order = sorted(known, key=lambda progress: progress.split)
    unfinished = [progress for progress in in_order if not progress.done]
    finished = [progress for progress in in_order if progress.done]
    return unfinished[index::parallelism] + finished[index::parallelism]


def owner_of_new(path: str, parallelism: int) -> int:
    """Return the subtask that reads a file which appeared after the start."""
    return int(xxhash.xxh3_64_intdigest(path.encode("utf-8", "surrogateescape"))) % parallelism


class SplitLedger:
    """Progress of one subtask's splits: `note` in the subtask's thread, the rest as `Stateful`
    says.
    """

    def __init__(self) -> None:
        #: {split: last committed progress}.
        self._committed: dict[Split, Progress] = {}
        #: Noted since the last commit, in order.
        self._pending: list[Progress] = []

    def reset(self, own: Iterable[Progress]) -> None:
        """Start from `own`, which counts as committed."""
        self._committed = {progress.split: progress for progress in own}
        self._pending = []

    def note(self, progress: Progress) -> None:
        """Remember progress until the next commit."""
        self._pending.append(progress)

    def commit(self) -> None:
        """Publish the noted progress."""
        for progress in self._pending:
            self._committed[progress.split] = progress
        self._pending.clear()

    def forget(self, gone: Callable[[Split], bool]) -> None:
        """Drop the published progress of splits that will never be read again."""
        self._committed = {s: p for s, p in self._committed.items() if not gone(s)}

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the committed progress."""
        frozen = tuple(self._committed.values())
        return (StateSnapshot("splits", StateKind.UNION, lambda: progress_table(frozen)),)


def progress_table(rows: Sequence[Progress]) -> pa.Table:
    """Encode progress as state."""
    columns = {
        "path": [row.split.path for row in rows],
        "start": [row.split.start for row in rows],
        "end": [row.split.end for row in rows],
        "offset": [row.offset for row in rows],
        "done": [row.done for row in rows],
    }
    return pa.table(columns, schema=_PROGRESS)


def progress_rows(table: pa.Table) -> list[Progress]:
    """Decode a table of `progress_table`."""
    return [
        Progress(Split(row["path"], row["start"], row["end"]), row["offset"], row["done"])
        for row in table.to_pylist()
    ]
