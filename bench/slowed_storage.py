"""Storage that is as slow as a distant object store: a local directory behind 30 ms a request and
100 MB/s a process, under the scheme `slowed`.

A request is one object: written whole and put in place atomically, as object stores do. Importing
this module registers the scheme with fsspec, in workers too: their plan refers to
`slow_stage.py`, which imports it.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

SCHEME = "slowed"
REQUEST_S = 0.03
BYTES_PER_S = 100e6
_PART = ".part"


class SlowedStorage(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Objects that are files; every call waits."""

    protocol = SCHEME
    #: One transfer at a time has the line.
    _line = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        """The path on the local disk."""
        path = path.removeprefix(f"{SCHEME}://")
        return str(super()._strip_protocol(path))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        """Write an object; with mode "create" only if there is none."""
        self._wait(len(value))
        target = self._strip_protocol(path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        part = f"{target}-{secrets.token_hex(8)}{_PART}"
        with open(part, "xb") as file:
            file.write(value)
        if mode == "create":
            try:
                os.link(part, target)
            finally:
                os.unlink(part)
        else:
            os.replace(part, target)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        """Read an object, or a range of it."""
        content: bytes = super().cat_file(path, start=start, end=end, **options)
        self._wait(len(content))
        return content

    def find(self, path: str, *arguments: Any, **options: Any) -> list[str]:
        """List objects."""
        self._wait(0)
        found = super().find(path, *arguments, **options)
        return [name for name in found if not name.endswith(_PART)]

    def rm_file(self, path: str) -> None:
        """Delete an object."""
        self._wait(0)
        super().rm_file(path)

    def _wait(self, size_bytes: int) -> None:
        time.sleep(REQUEST_S)
        with self._line:
            time.sleep(size_bytes / BYTES_PER_S)


fsspec.register_implementation(SCHEME, SlowedStorage, clobber=True)
