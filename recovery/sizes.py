"""Sizes of a checkpoint, held and newly written, from its metadata alone.

Every checkpoint with the name of a shared file holds the file's state; the checkpoint that stored
the file wrote the state. A checkpoint *holds* in-flight data, its own or an earlier checkpoint's. A
checkpoint may mean part of a stored buffer, and several subtasks may mean the same buffer; so held
data counts in proportion to the records meant, and written or referenced data by whole blobs, each
once. Records are counted before the filters of a rescale, which only reading would apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.inflight.handle import BufferHandle, ChannelStateHandle

from .handles import FileHandle, SharedFile, StateHandle
from .metadata import CheckpointMetadata, SubtaskSnapshot


@dataclass(frozen=True, slots=True)
class CheckpointSizes:
    """Sizes of one checkpoint.

    Attributes:
        state_bytes: held, written or referenced.
        inflight_bytes: held, written or referenced.
        inflight_written_bytes: in-flight data in the checkpoint's own files.
        inflight_referenced_bytes: needed blobs in files of earlier checkpoints.
        files: written by this checkpoint, metadata included.
        state_referenced_bytes: shared files that earlier checkpoints wrote.
    """

    state_bytes: int
    inflight_records: int
    inflight_bytes: int
    inflight_written_bytes: int
    inflight_referenced_bytes: int
    files: int
    state_referenced_bytes: int = 0

    @property
    def state_written_bytes(self) -> int:
        """State that the checkpoint wrote."""
        return self.state_bytes - self.state_referenced_bytes

    @property
    def written_bytes(self) -> int:
        """State and in-flight data that the checkpoint wrote."""
        return self.state_written_bytes + self.inflight_written_bytes


@dataclass(frozen=True, slots=True)
class Held:
    """In-flight data on one side of a subtask's channels."""

    records: int
    size_bytes: int


def sizes_of(metadata: CheckpointMetadata) -> CheckpointSizes:
    """Add up a checkpoint."""
    number = metadata.checkpoint
    own = (f"chk-{number}/", f"sav-{number}/", f"shared/{number}-")
    databases = [d for s in metadata.subtasks for d in s.databases]
    shared = [file for database in databases for file in database.shared]
    buffers = [b for s in metadata.subtasks for b in _buffers(s.inflight)]
    blobs = {(b.path, b.offset): b.length for b in buffers}
    written = sum(length for (path, _), length in blobs.items() if path.startswith(own))
    paths = {path for path, _ in blobs} | {h.path for s in metadata.subtasks for h in s.states}
    paths |= {file.path for file in shared} | {f.path for d in databases for f in d.own}
    held = _held(buffers)
    return CheckpointSizes(
        state_bytes=sum(state_bytes(subtask) for subtask in metadata.subtasks),
        inflight_records=held.records,
        inflight_bytes=held.size_bytes,
        inflight_written_bytes=written,
        inflight_referenced_bytes=sum(blobs.values()) - written,
        files=1 + sum(path.startswith(own) for path in paths),
        state_referenced_bytes=sum(f.length for f in shared if not f.path.startswith(own)),
    )


def state_bytes(subtask: SubtaskSnapshot) -> int:
    """Bytes of one subtask's operator state."""
    handles: list[StateHandle | SharedFile | FileHandle] = [*subtask.states]
    for database in subtask.databases:
        handles += [*database.shared, *database.own]
    return sum(handle.length for handle in handles)


def held_on(subtask: SubtaskSnapshot, side: str) -> Held:
    """In-flight data of a subtask on a side: "input", "output" or "replay"."""
    return _held(_buffers(handle for handle in subtask.inflight if handle.side == side))


def stored_by(subtask: SubtaskSnapshot, checkpoint: int) -> tuple[int, int]:
    """Return bytes of the blobs with a subtask's in-flight data: (in the checkpoint's own files, in
    earlier files).
    """
    blobs = {(b.path, b.offset): b.length for b in _buffers(subtask.inflight)}
    own = (f"chk-{checkpoint}/", f"sav-{checkpoint}/")
    written = sum(length for (path, _), length in blobs.items() if path.startswith(own))
    return written, sum(blobs.values()) - written


def _buffers(handles: Iterable[ChannelStateHandle]) -> Iterator[BufferHandle]:
    return (buffer for handle in handles for buffer in handle.buffers)


def _held(buffers: Iterable[BufferHandle]) -> Held:
    records = size_bytes = 0
    for buffer in buffers:
        left = buffer.rows - buffer.skip
        records += left
        size_bytes += buffer.length * left // buffer.blob_rows
    return Held(records, size_bytes)
