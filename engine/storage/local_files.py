"""Checkpoint storage in a local (or mounted) directory.

fsspec's local `open("w")` is not atomic (98 % of reads beside a writer were torn), so this module
goes to the operating system: write a temporary file, fsync it, rename it over the target (`put`) or
hard-link it to the target (`create`, which thereby cannot replace anything), fsync the directory.
Temporary files live in one hidden folder under the root, so that a crash never leaves one beside
the real files; `sweep` removes them a day later.

Nothing leaves the root: parents are resolved and compared with it, and no object may be a symbolic
link. A user who may swap folders for links *while* we run is outside this defence, and could as
well change the files.

Not here: path syntax (`checkpoint_storage.py` checks it before calling) and retries, which are the
caller's.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator

from headrace.recovery.store import (
    AlreadyExists,
    Content,
    NotAFile,
    NotFound,
    StoreError,
    StoreRejected,
    StoreUncertain,
    TooLarge,
    parts_of,
)

#: Folder of unfinished files, under the root.
TEMPORARY_FOLDER = ".headrace-tmp"

#: So many parts fit in one `writev` everywhere (IOV_MAX).
_PARTS_MAX = 1024
#: Parts may be made as they are asked for: this many bytes are written at once.
_WRITE_BYTES = 4 << 20

#: Unfinished files older than this were left by a crash; no write takes a day.
TEMPORARY_AGE_S_MAX = 24 * 3600

#: Errors of an operating system that has certainly done nothing, with words that say what to do.
_REJECTIONS = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EIO: "the device reports an input/output error",
    errno.EACCES: "permission denied",
    errno.EPERM: "the operation is not permitted (file systems without hard links cannot be used)",
    errno.ENOTSUP: "the file system lacks an operation that atomic writes need, such as hard links",
    errno.EROFS: "the file system is read-only",
    errno.EMFILE: "this process has too many open files",
    errno.ENFILE: "the system has too many open files",
    errno.EFBIG: "the file is too large for the file system",
    errno.ENOMEM: "the system is out of memory",
    errno.ENAMETOOLONG: "the name is too long for the file system",
    errno.ELOOP: "it is a symbolic link",
    errno.ENOTDIR: "a file stands where a folder is needed",
    errno.EISDIR: "a folder stands where a file is needed",
}

#: How often publishing starts over because the folder vanished; each time a `delete` must have
#: emptied it.
_PUBLISH_ATTEMPTS_MAX = 8

_TEMPORARY_NUMBERS = itertools.count()


def rejection(error: OSError) -> str | None:
    """Return why storage refused, if the error means that it certainly did; None if the outcome is
    open.
    """
    if error.errno is None:
        return None
    return _REJECTIONS.get(error.errno)


class LocalFiles:
    """Objects as files under `root`.

    Methods are those of `Store`; paths are already checked. Thread-safe.
    """

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        self._temporary = os.path.join(self._root, TEMPORARY_FOLDER)

    def put(self, path: str, data: Content) -> None:
        target = self._target(path)
        with self._written(path, data) as temporary:
            _publish(path, target, lambda: os.replace(temporary, target))

    def create(self, path: str, data: bytes) -> None:
        target = self._target(path)
        with self._written(path, data) as temporary:
            _publish(path, target, lambda: _link(temporary, target))

    def get(
        self, path: str, offset: int, length: int | None, bytes_max: int | None = None
    ) -> bytes:
        with self._opened(path) as file:
            return _read(path, file, offset, length, bytes_max)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        target = self._target(path)
        # Not blocking: opening a pipe planted there would wait for a writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with _refusals(path):
            try:
                file = os.open(target, flags)
            except NotADirectoryError as error:
                raise NotFound(path, "not found") from error
            except OSError as error:
                if error.errno == errno.ELOOP:
                    raise NotAFile(path, _REJECTIONS[errno.ELOOP]) from error
                raise
            try:
                yield file
            finally:
                os.close(file)

    def link(self, path: str, target: str) -> bool:
        """Give the object the second name `target`, outside; False where the file systems or their
        rules forbid it.
        """
        source = self._target(path)
        try:
            os.link(source, target, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError) as error:
            if os.path.isdir(os.path.dirname(target)):
                raise NotFound(path, "not found") from error
            raise
        except FileExistsError:
            raise
        except OSError:
            return False
        if not stat.S_ISREG(os.lstat(target).st_mode):
            os.unlink(target)
            raise NotFound(path, "not found")
        return True

    def list(self, prefix: str) -> list[str]:
        folder = prefix.rpartition("/")[0]
        with _refusals(prefix):
            found = self._walk(self._target(folder) if folder else self._root)
            return sorted(path for path in found if path.startswith(prefix))

    def delete(self, path: str) -> None:
        target = self._target(path)
        parent = os.path.dirname(target)
        with _refusals(path):
            try:
                os.unlink(target)
            except (FileNotFoundError, NotADirectoryError):
                return
            _sync_nearest(parent)
        if parent != self._root:
            # Tidiness only: it fails when the folder is not empty, and `put` makes the folder again
            # when needed.
            with contextlib.suppress(OSError):
                os.rmdir(parent)

    def sweep(self) -> None:
        """Remove unfinished files that a crash left behind a day ago or more. Never fails."""
        with contextlib.suppress(OSError), os.scandir(self._temporary) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    age_s = time.time() - entry.stat(follow_symlinks=False).st_mtime
                    if age_s > TEMPORARY_AGE_S_MAX:
                        os.unlink(entry.path)

    def _target(self, path: str) -> str:
        target = os.path.join(self._root, path)
        parent = os.path.realpath(os.path.dirname(target))
        inside = parent == self._root or parent.startswith(self._root.rstrip("/") + "/")
        if not inside:
            raise StoreRejected(path, "a symbolic link leads out of the checkpoint directory")
        return os.path.join(parent, os.path.basename(target))

    @contextlib.contextmanager
    def _written(self, path: str, data: Content) -> Iterator[str]:
        """Yield a durable temporary file with the data; afterwards the file is gone, also when
        anything fails.
        """
        name = f"{os.getpid()}-{next(_TEMPORARY_NUMBERS)}-{secrets.token_hex(4)}"
        temporary = os.path.join(self._temporary, name)
        try:
            with _refusals(path):
                for changed in _make_folder(self._temporary):
                    _sync_nearest(changed)
                _write(temporary, data)
            yield temporary
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def _walk(self, folder: str) -> Iterator[str]:
        """Yield paths of all regular files below `folder`, relative to the root; folders may vanish
        meanwhile.
        """
        try:
            with os.scandir(folder) as entries:
                children = list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return
        for entry in children:
            if entry.is_dir(follow_symlinks=False):
                if entry.path != self._temporary:
                    yield from self._walk(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield os.path.relpath(entry.path, self._root)


@contextlib.contextmanager
def _refusals(path: str) -> Iterator[None]:
    """Translate OSError where a failure of any kind leaves nothing behind, or where a repeat is
    harmless.
    """
    try:
        yield
    except OSError as error:
        raise _translated(path, error) from error


def _translated(path: str, error: OSError) -> StoreError:
    if error.errno == errno.ENOENT:
        return NotFound(path, "not found")
    if error.errno == errno.EEXIST:
        return AlreadyExists(path, "already exists")
    reason = rejection(error)
    if reason is not None:
        return StoreRejected(path, reason)
    return StoreUncertain(path, os.strerror(error.errno) if error.errno else str(error))


def _publish(path: str, target: str, move: Callable[[], None]) -> None:
    """Make the folder, run the one call that makes the file visible, and make the result durable.

    Raises: StoreUncertain once the file may be visible: after an input/output error of the call,
    and after any later error.
    """
    folder = os.path.dirname(target)
    grown: list[str] = []
    with _refusals(path):
        for attempt in range(_PUBLISH_ATTEMPTS_MAX):
            try:
                grown += _make_folder(folder)
                move()
                break
            except FileNotFoundError:
                # A concurrent `delete` removed the folder while it was still empty.
                if attempt + 1 == _PUBLISH_ATTEMPTS_MAX:
                    raise
            except OSError as error:
                if error.errno == errno.EIO:
                    raise StoreUncertain(path, _REJECTIONS[errno.EIO]) from error
                raise
    try:
        # After the file, since one commit of the file system's journal covers the new folder and
        # its content.
        for changed in (folder, *grown):
            _sync_nearest(changed)
    except OSError as error:
        reason = rejection(error) or str(error)
        raise StoreUncertain(path, f"written, but perhaps not durably: {reason}") from error


def _link(temporary: str, target: str) -> None:
    try:
        os.link(temporary, target)
    except FileExistsError:
        # NFS may repeat a request whose reply was lost: a second link to our file means that we
        # won.
        if os.stat(temporary).st_nlink != 2:
            raise


def _sync_folder(folder: str) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _sync_nearest(folder: str) -> None:
    """fsync `folder` or, if a concurrent `delete` removed it, the nearest folder above, which holds
    that removal.
    """
    while True:
        try:
            _sync_folder(folder)
            return
        except FileNotFoundError:
            folder = os.path.dirname(folder)


def _make_folder(folder: str) -> list[str]:
    """Make a folder and its missing parents.

    Returns the folders that got a new entry, innermost first: to be synced.
    """
    if os.path.isdir(folder):
        return []
    parent = os.path.dirname(folder)
    grown = _make_folder(parent)
    try:
        os.mkdir(folder)
    except FileExistsError:
        # What is gone again was a folder that somebody else has made and removed: the caller, who
        # will miss it, tries once more.
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.stat(folder).st_mode):
                reason = os.strerror(errno.ENOTDIR)
                raise NotADirectoryError(errno.ENOTDIR, reason, folder) from None
    return [parent, *grown]


def _write(path: str, data: Content) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, 0o644)
    try:
        pending: list[memoryview] = []
        pending_bytes = 0
        for part in parts_of(data):
            pending.append(memoryview(part).cast("B"))
            pending_bytes += pending[-1].nbytes
            if len(pending) == _PARTS_MAX or pending_bytes >= _WRITE_BYTES:
                _write_all(file, pending)
                pending, pending_bytes = [], 0
        _write_all(file, pending)
        os.fsync(file)
    finally:
        os.close(file)


def _write_all(file: int, parts: list[memoryview]) -> None:
    """Write all parts in one call, and the remainder in another."""
    while parts:
        written = os.writev(file, parts)
        taken = 0
        while taken < len(parts) and written >= len(parts[taken]):
            written -= len(parts[taken])
            taken += 1
        parts = parts[taken:]
        if parts and written:
            parts[0] = parts[0][written:]


def _read(path: str, file: int, offset: int, length: int | None, bytes_max: int | None) -> bytes:
    """Read after comparing with the file's size: a length from a damaged handle must not
    allocate.
    """
    size_bytes = _size_bytes(path, file)
    available = size_bytes - offset
    wanted = max(available, 0) if length is None else length
    if bytes_max is not None and wanted > bytes_max:
        raise TooLarge(path, bytes_max)
    if offset < 0 or wanted < 0 or wanted > max(available, 0):
        asked = f"{wanted} bytes at offset {offset}"
        raise StoreRejected(path, f"{asked} of a file of {size_bytes} bytes")
    pieces: list[bytes] = []
    while wanted > 0:
        piece = os.pread(file, wanted, offset)
        if not piece:
            raise StoreRejected(path, f"the file ended at {offset} while it was read")
        pieces.append(piece)
        offset += len(piece)
        wanted -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _size_bytes(path: str, file: int) -> int:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode):
        raise NotAFile(path, "not a regular file")
    return status.st_size
