"""Temporary files, made durable and moved into place: the file sink's use of a file system.

On a local file system the operating system keeps every promise: data and names are synced before
anything relies on them, and a rename is atomic. Elsewhere the rule of object stores holds: an
object appears whole when it is closed, or when it has been copied.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import BinaryIO, cast

from .filesystem import Location


def make_folder(location: Location, folder: str) -> None:
    """Create `folder` and its missing parents, durably. Raises: OSError."""
    if not location.is_local:
        location.fs.makedirs(folder, exist_ok=True)
        return
    missing = []
    above = folder
    while not os.path.isdir(above) and above not in ("", "/"):
        missing.append(above)
        above = os.path.dirname(above)
    os.makedirs(folder, exist_ok=True)
    for made in reversed(missing):
        sync_folder(location, os.path.dirname(made))


def create(location: Location, path: str) -> BinaryIO:
    """Open a new file for writing; on a local file system the name must be free.

    Raises: OSError.
    """
    if location.is_local:
        return open(path, "xb")
    return cast(BinaryIO, location.fs.open(path, "wb"))


def close_durably(location: Location, path: str, file: BinaryIO) -> None:
    """Close a file that `create` opened; on return its bytes and its name survive a power cut.

    Raises: OSError.
    """
    if location.is_local:
        file.flush()
        os.fsync(file.fileno())
    file.close()
    sync_folder(location, os.path.dirname(path))


def sync_folder(location: Location, folder: str) -> None:
    """Make the names in a folder durable. Raises: OSError."""
    if not location.is_local:
        return
    descriptor = os.open(folder or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move(location: Location, source: str, target: str) -> None:
    """Give a local file its final name, replacing a file of that name.

    Durable after `sync_folder`. Raises: OSError.
    """
    os.replace(source, target)


def copy(location: Location, source: str, target: str) -> None:
    """Copy a file to another name, replacing a file of that name. Raises: OSError."""
    location.fs.cp_file(source, target)


def create_once(location: Location, path: str, content: bytes) -> None:
    """Write a small file, unless there is one of that name.

    On a file system without conditional writes it is replaced. Raises: OSError.
    """
    try:
        location.fs.pipe_file(path, content, mode="create")
    except FileExistsError:
        return
    except (NotImplementedError, TypeError, ValueError):
        location.fs.pipe_file(path, content)


def publish(location: Location, path: str, content: bytes) -> None:
    """Let a small file appear whole, in place of one of that name; durable on return.

    Raises: OSError.
    """
    temporary = f"{path}-{secrets.token_hex(4)}.tmp"
    file = create(location, temporary)
    file.write(content)
    close_durably(location, temporary, file)
    move(location, temporary, path)
    sync_folder(location, os.path.dirname(path))


def publish_once(location: Location, path: str, content: bytes) -> None:
    """Let a small file appear whole, unless one of that name is there; durable on return.

    Of two writers at once the first one wins on a local file system. Raises: OSError.
    """
    if not location.is_local:
        if size_bytes(location, path) is None:
            publish(location, path, content)
        return
    temporary = f"{path}-{secrets.token_hex(4)}.tmp"
    file = create(location, temporary)
    file.write(content)
    close_durably(location, temporary, file)
    with suppress(FileExistsError):
        os.link(temporary, path)
    os.unlink(temporary)
    sync_folder(location, os.path.dirname(path))


def size_bytes(location: Location, path: str) -> int | None:
    """Size of a file, or None if there is none. Raises: OSError."""
    location.fs.invalidate_cache()
    try:
        return int(location.fs.size(path))
    except FileNotFoundError:
        return None


def remove(location: Location, path: str) -> None:
    """Delete a file; a missing one is no error. Raises: OSError."""
    try:
        location.fs.rm_file(path)
    except FileNotFoundError:
        return


def names(location: Location, folder: str) -> list[str]:
    """Names of what is in a folder, sorted; none if there is no folder. Raises: OSError."""
    location.fs.invalidate_cache()
    try:
        return sorted(path.rsplit("/", 1)[-1] for path in location.fs.ls(folder, detail=False))
    except FileNotFoundError:
        return []
