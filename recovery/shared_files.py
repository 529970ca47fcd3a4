"""Reads files that several checkpoints share, and compares their checksums."""

from __future__ import annotations

from headrace.inflight.segment import CorruptBlob, checksum_of

from .handles import SharedFile
from .layout import store_path
from .store import NotFound, Store, StoreRejected, TooLarge, is_short


def read_shared(store: Store, job: str, file: SharedFile) -> bytes:
    """Read a shared file whole and compare its checksum.

    Raises: CorruptBlob, NotFound, StoreError.
    """
    path = store_path(job, file.path)
    try:
        store.get(path, max(0, file.length - 1), min(1, file.length))
    except NotFound:
        raise
    except StoreRejected as refused:
        # A file that ends too early is damaged; other refusals may end when asked again.
        if is_short(store, path, file.length):
            raise CorruptBlob(0, f"{file.length} bytes", refused.reason) from refused
        raise
    try:
        data = store.get(path, bytes_max=file.length)
    except TooLarge as error:
        raise CorruptBlob(0, f"{file.length} bytes", error.reason) from error
    if len(data) != file.length:
        raise CorruptBlob(0, f"{file.length} bytes", f"{len(data)} bytes")
    found = checksum_of(data)
    if found != file.checksum:
        raise CorruptBlob(0, f"xxh3 {file.checksum}", f"xxh3 {found}")
    return data
