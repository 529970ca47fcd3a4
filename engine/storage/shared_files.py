"""A shared file of a checkpoint in a local folder: by a hard link if possible, else as a copy.

A link needs storage in a directory of the same file system. It is safe because neither side changes
a shared file: an open database only reads the file and removes its own name, and storage replaces
or removes names, never contents. (RocksDB would write into a file at ingestion, which is not used
here, or cut a file short at slow deletion, which it does not do while there is another link.) Files
of a savepoint, or of another job's checkpoint, are copied all the same: their owner may write over
them in place.

Linked or copied, a file is read once to the end and compared with its handle before any use.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

from headrace.inflight.segment import CorruptBlob, checksum_of_parts
from headrace.recovery.handles import SharedFile
from headrace.recovery.layout import parse_shared_path, store_path
from headrace.recovery.shared_files import read_shared
from headrace.recovery.store import Store

#: Fits into the processor's cache, where the checksum finds the bytes just read.
_BLOCK_BYTES = 1 << 20


@runtime_checkable
class Linking(Protocol):
    """An offer of storage beyond `Store`."""

    def link(self, path: str, target: str) -> bool:
        """Give the object a second name, the local file `target`.

        False: not possible here. Raises: StoreError.
        """
        ...


class Identity(NamedTuple):
    """The identity of a file in its file system; a write into the file changes `changed_ns`."""

    device: int
    inode: int
    size_bytes: int
    changed_ns: int


def identity_of(place: str) -> Identity:
    """The identity of a local file now. Raises: OSError."""
    return _identity(os.lstat(place))


def bring(store: Store, job: str, file: SharedFile, folder: str, *, links: bool) -> Identity:
    """Put the file into `folder` under its database's name, and check it.

    The file is unchanged as long as its identity is the returned one.

    Args:
        links: a link will do, if the file is of a checkpoint.

    Raises: CorruptBlob, NotFound, StoreError; OSError when `folder` cannot be written.
    """
    target = os.path.join(folder, file.name)
    ours = links and parse_shared_path(file.path) is not None
    if ours and isinstance(store, Linking) and store.link(store_path(job, file.path), target):
        return _verify(target, file)
    data = read_shared(store, job, file)
    with open(target, "xb") as copy:
        copy.write(data)
    return identity_of(target)


def _verify(target: str, file: SharedFile) -> Identity:
    with open(target, "rb", buffering=0) as opened:
        # Before the file is read: a file changed meanwhile has another identity afterwards.
        identity = _identity(os.fstat(opened.fileno()))
        if identity.size_bytes != file.length:
            raise CorruptBlob(0, f"{file.length} bytes", f"{identity.size_bytes} bytes")
        found = checksum_of_parts(_blocks(opened.fileno()))
    if found != file.checksum:
        raise CorruptBlob(0, f"xxh3 {file.checksum}", f"xxh3 {found}")
    return identity


def _identity(status: os.stat_result) -> Identity:
    return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _blocks(descriptor: int) -> Iterator[memoryview]:
    """Yield the contents, in one buffer again and again."""
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    while read := os.readv(descriptor, [buffer]):
        yield buffer[:read]
