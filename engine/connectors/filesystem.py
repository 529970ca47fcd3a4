"""Files as the connectors see them: found by path, folder, glob or any fsspec URL.

Paths inside this room are fsspec's stripped paths (absolute, without the protocol). A path travels
with its file system, so that a relative path means the driver's folder in every worker.

Below the user's folder, names that start with `_` or `.` are working areas (ours is `_headrace`,
Spark's is `_temporary`) and are not seen.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import fsspec
import fsspec.implementations.local

from ..contract.errors import JobFailed, StorageUnreachable, UserError


class UnreadableFile(JobFailed):
    """A file that a source must read is missing, damaged or of another form.

    Attributes:
        path: the file.
        reason: the fault, and its place in the file.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot read {self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file as a listing shows it."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Location:
    """A file, folder or glob on a file system. Picklable.

    Attributes:
        fs: the fsspec file system.
        root: stripped path or glob.
    """

    fs: Any
    root: str

    @property
    def is_local(self) -> bool:
        """Whether files can be synced and renamed through the operating system.

        Not those of a subclass: its own `open` or `mv` would be passed over.
        """
        return type(self.fs) is fsspec.implementations.local.LocalFileSystem

    @property
    def spark_url(self) -> str:
        """The place in Spark's spelling."""
        url = str(self.fs.unstrip_protocol(self.root))
        return f"s3a://{url.removeprefix('s3://')}" if url.startswith("s3://") else url

    def files(self) -> list[FileInfo]:
        """Return the files there now, sorted by path; none is [], no error.

        Raises: OSError; UnreadableFile for a name that is not UTF-8.
        """
        self.fs.invalidate_cache()
        if self.fs.isfile(self.root):
            return [FileInfo(_readable(self.root), int(self.fs.size(self.root)))]
        if not _has_magic(self.root) or self.fs.isdir(self.root):
            return self._visible(self._below(self.root), len(self.root))
        found: dict[str, Mapping[str, Any]] = {}
        for path, info in self.fs.glob(self.root, detail=True).items():
            found.update(self._below(path) if info["type"] == "directory" else {path: info})
        return self._visible(found, _magic_start(self.root))

    def exists(self) -> bool:
        """Whether the folder (for a glob: the one in which it begins) is there. Raises: OSError."""
        root = self.root[: _magic_start(self.root)] if _has_magic(self.root) else self.root
        return bool(self.fs.exists(root))

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading. Raises: UnreadableFile."""
        try:
            return cast(BinaryIO, self.fs.open(path, "rb"))
        except FileNotFoundError:
            raise UnreadableFile(
                path, "it was there when the folder was listed, and is gone"
            ) from None
        except OSError as error:
            raise UnreadableFile(path, error.strerror or str(error)) from error

    def _below(self, folder: str) -> dict[str, Mapping[str, Any]]:
        return cast("dict[str, Mapping[str, Any]]", self.fs.find(folder, detail=True))

    def _visible(self, found: Mapping[str, Mapping[str, Any]], base: int) -> list[FileInfo]:
        return [
            FileInfo(_readable(path), int(info["size"] or 0))
            for path, info in sorted(found.items())
            if info["type"] == "file" and not _is_hidden(path[base:])
        ]


def locate(path: str, storage_options: Mapping[str, Any]) -> Location:
    """Find the file system of a path or URL. Raises: UserError, if fsspec knows none."""
    try:
        fs, root = fsspec.core.url_to_fs(path, **storage_options)
    except (ValueError, ImportError) as error:
        raise UserError(f"cannot use {path!r}: {error}") from error
    except Exception as error:  # some clients log in at once, and raise errors of their own
        reason = str(error) or type(error).__name__
        raise StorageUnreachable(f"{path!r} cannot be reached: {reason}") from error
    # "s3://bucket/" and "/" keep their slash in some file systems and lose it in others.
    return Location(fs, root.rstrip("/") or "/")


def refuse_shorter(file: BinaryIO, path: str, size_bytes_min: int) -> None:
    """Refuse an open file that has lost bytes since it was listed or read.

    Raises: UnreadableFile.
    """
    here = file.tell()
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(here)
    if size_bytes < size_bytes_min:
        raise UnreadableFile(
            path,
            f"it is {size_bytes} bytes long and was {size_bytes_min}; a file that is being read "
            "must not become shorter",
        )


def _readable(path: str) -> str:
    """Return `path`; refuse a name that no checkpoint could hold. Raises: UnreadableFile."""
    told = path.encode("utf-8", "backslashreplace").decode()
    if told != path:
        raise UnreadableFile(told, "its name is not UTF-8; rename it")
    return path


def _has_magic(path: str) -> bool:
    return any(character in path for character in "*?[")


def _magic_start(pattern: str) -> int:
    first = min(pattern.find(character) % (len(pattern) + 1) for character in "*?[")
    return pattern.rfind("/", 0, first) + 1


def _is_hidden(relative: str) -> bool:
    return any(part[:1] in ("_", ".") for part in relative.split("/") if part)
