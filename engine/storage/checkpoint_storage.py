"""Checkpoint storage behind any URL that fsspec knows: local directories, object stores, memory.

`FsspecStore` checks every path and hands over to one of two backends: `LocalFiles` for directories,
`ObjectFiles` for object stores. Both need little of the storage, but strictly: replacing a whole
object atomically, and creating one exclusively (fencing rests on it). Object stores do both in one
request. File systems over a network protocol that fsspec merely streams to (SFTP, FTP, HDFS, ...)
do neither; opening refuses them, rather than trusting them until a crash. `open_store` tries out
whether `create` is really exclusive.

An exception other than OSError comes from a storage client whose errors we cannot list: it counts
as StoreUncertain, the kind that promises least.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
from collections.abc import Iterator
from typing import Any, Protocol

from headrace.recovery.store import (
    AlreadyExists,
    Content,
    NotFound,
    Store,
    StoreRejected,
    StoreUncertain,
    TooLarge,
    joined,
)

from ..contract.errors import StorageUnreachable, UserError
from .local_files import LocalFiles, rejection

_COMPONENT = re.compile(r"[^/\x00]{1,255}")


class _Backend(Protocol):
    """`Store` with checked paths."""

    def put(self, path: str, data: Content) -> None: ...
    def create(self, path: str, data: bytes) -> None: ...
    def get(self, path: str, offset: int, length: int | None, bytes_max: int | None) -> bytes: ...
    def list(self, prefix: str) -> list[str]: ...
    def delete(self, path: str) -> None: ...


class FsspecStore:
    """A `Store` under the directory or prefix `url`. Thread-safe; pickles as its URL.

    Raises: UserError if the URL cannot be used at all; whether the storage answers shows in the
    first call.
    """

    def __init__(self, url: str) -> None:
        filesystem, root = _filesystem(url)
        self.url = url
        self._backend: _Backend
        if _is_local(filesystem):
            self._backend = LocalFiles(root)
        else:
            self._backend = ObjectFiles(filesystem, root)

    def __reduce__(self) -> tuple[type[FsspecStore], tuple[str]]:
        return type(self), (self.url,)

    def put(self, path: str, data: Content) -> None:
        """See `Store.put`."""
        self._backend.put(_checked(path), data)

    def create(self, path: str, data: bytes) -> None:
        """See `Store.create`."""
        self._backend.create(_checked(path), data)

    def get(
        self,
        path: str,
        offset: int = 0,
        length: int | None = None,
        bytes_max: int | None = None,
    ) -> bytes:
        """See `Store.get`."""
        return self._backend.get(_checked(path), offset, length, bytes_max)

    def list(self, prefix: str) -> list[str]:
        """See `Store.list`."""
        if prefix:
            _checked(prefix.removesuffix("/"), prefix)
        return self._backend.list(prefix)

    def delete(self, path: str) -> None:
        """See `Store.delete`."""
        self._backend.delete(_checked(path))

    def link(self, path: str, target: str) -> bool:
        """Give the object a second name, the local file `target`; False if that is not possible."""
        backend = self._backend
        return isinstance(backend, LocalFiles) and backend.link(_checked(path), target)

    def sweep(self) -> None:
        """Remove remains of crashes, where that is possible. Never fails."""
        if isinstance(self._backend, LocalFiles):
            self._backend.sweep()


class ObjectFiles:
    """Objects of an fsspec file system whose `pipe_file` is one atomic request.

    Methods are those of `Store`.
    """

    def __init__(self, filesystem: Any, root: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")

    def put(self, path: str, data: Content) -> None:
        with _translated(path):
            self._filesystem.pipe_file(self._key(path), joined(data))

    def create(self, path: str, data: bytes) -> None:
        # fsspec's memory file system looks before it writes, without a lock of its own.
        with _CREATING, _translated(path):
            self._filesystem.pipe_file(self._key(path), data, mode="create")

    def get(
        self, path: str, offset: int, length: int | None, bytes_max: int | None = None
    ) -> bytes:
        if offset < 0 or (length is not None and length < 0):
            raise StoreRejected(path, f"{length} bytes at offset {offset} cannot be read")
        if length == 0:
            return b""
        end = None if length is None else offset + length
        if length is None and bytes_max is not None:
            end = offset + bytes_max + 1  # a byte too many tells
        with _translated(path):
            data: bytes = self._filesystem.cat_file(self._key(path), start=offset, end=end)
        if length is not None and len(data) != length:
            asked = f"{length} bytes at offset {offset}"
            raise StoreRejected(path, f"{asked}, but only {len(data)} are there")
        if bytes_max is not None and len(data) > bytes_max:
            raise TooLarge(path, bytes_max)
        return data

    def list(self, prefix: str) -> list[str]:
        folder = prefix.rpartition("/")[0]
        with _translated(prefix):
            self._filesystem.invalidate_cache()
            try:
                keys = self._filesystem.find(self._key(folder))
            except FileNotFoundError:
                return []
        start = len(self._root) + 1
        return sorted(key[start:] for key in keys if key[start:].startswith(prefix))

    def delete(self, path: str) -> None:
        with _translated(path), contextlib.suppress(FileNotFoundError):
            self._filesystem.rm_file(self._key(path))

    def _key(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root


#: One creation at a time in this process; the storage decides between processes.
_CREATING = threading.Lock()


def open_store(url: str) -> Store:
    """Open checkpoint storage for writing, having tried that it can be written and that `create` is
    exclusive.

    Makes a missing local directory. Raises: UserError if the directory cannot be used,
    StorageUnreachable if the storage does not answer.
    """
    store = FsspecStore(url)
    probe = f"headrace-probe-{os.getpid()}-{secrets.token_hex(8)}"
    try:
        try:
            store.create(probe, b"may be deleted\n")
            exclusive = _refuses_second(store, probe)
        finally:
            store.delete(probe)
    except StoreUncertain as error:
        message = f"checkpoint directory {url} cannot be reached: {error.reason}"
        raise StorageUnreachable(message) from error
    except StoreRejected as error:
        raise UserError(f"checkpoint directory {url} is not writable: {error.reason}") from error
    if not exclusive:
        raise UserError(
            f"checkpoint directory {url} cannot be used: its storage does not create objects "
            "exclusively, so a stale worker could not be fenced off; use another storage"
        )
    store.sweep()
    return store


def _refuses_second(store: Store, path: str) -> bool:
    try:
        store.create(path, b"may be deleted\n")
    except AlreadyExists:
        return True
    return False


def _filesystem(url: str) -> tuple[Any, str]:
    if not url:
        raise UserError("the checkpoint directory is empty: give a folder or a URL")
    # Here and below not at the top: only a job with checkpoints need wait for it.
    import fsspec
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    try:
        filesystem, root = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise UserError(f"checkpoint directory {url} cannot be used: {error}") from error
    except Exception as error:  # some clients log in at once, and raise errors of their own
        reason = str(error) or type(error).__name__
        raise StorageUnreachable(
            f"checkpoint directory {url} cannot be reached: {reason}"
        ) from error
    # The generic `pipe_file` streams into place and looks before it creates: neither atomic nor
    # exclusive.
    streams = type(filesystem).pipe_file is AbstractFileSystem.pipe_file
    if streams and not (_is_local(filesystem) or isinstance(filesystem, AsyncFileSystem)):
        raise UserError(
            f"checkpoint directory {url} cannot be used: its storage cannot replace files "
            "atomically; use a local directory or an object store"
        )
    return filesystem, root


def _is_local(filesystem: object) -> bool:
    """Whether files may be written past fsspec; a subclass has something of its own to say."""
    from fsspec.implementations.local import LocalFileSystem

    return type(filesystem) is LocalFileSystem


def _checked(path: str, shown: str | None = None) -> str:
    """Refuse every path that is not relative and normalised."""
    components = path.split("/")
    plain = all(_COMPONENT.fullmatch(name) and not name.startswith(".") for name in components)
    if not plain:
        raise StoreRejected(shown or path, "not a relative, normalised path without hidden parts")
    return path


@contextlib.contextmanager
def _translated(path: str) -> Iterator[None]:
    """Turn a storage client's exception into one of the three kinds that callers tell apart."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(path, "not found") from error
    except FileExistsError as error:
        raise AlreadyExists(path, "already exists") from error
    except PermissionError as error:
        raise StoreRejected(path, "permission denied") from error
    except TimeoutError as error:
        raise StoreUncertain(path, "the storage did not answer in time") from error
    except OSError as error:
        reason = None if isinstance(error, ConnectionError) else rejection(error)
        if reason is not None:
            raise StoreRejected(path, reason) from error
        raise StoreUncertain(path, str(error) or type(error).__name__) from error
    except Exception as error:
        raise StoreUncertain(path, f"{type(error).__name__}: {error}") from error
