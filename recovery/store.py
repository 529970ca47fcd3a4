"""The engine's demands on checkpoint storage: a seam with few, strong promises.

The implementation on fsspec is `engine/storage/checkpoint_storage.py`; the simulation has its own,
which tears, loses and delays. Paths are relative, `/`-separated, and resolved under one root that
nothing can leave.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

#: Content of an object: its bytes, or parts of it, so that no caller copies them into one.
Content = bytes | memoryview | Sequence[bytes | memoryview]


class StoreError(Exception):
    """A call to storage failed; `path` is its object. See the two kinds below."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class StoreRejected(StoreError):
    """The call had *no* effect: repeat it or give up."""


class StoreUncertain(StoreError):
    """The call may have had its effect: only an idempotent repeat is safe."""


class AlreadyExists(StoreRejected):
    """`create` found the path taken."""


class NotFound(StoreRejected):
    """No object of that path."""


class NotAFile(NotFound):
    """Something else than a file stands in the object's place, which no run puts there."""


class TooLarge(StoreRejected):
    """`get` found an object larger than the limit, and did not read the object."""

    def __init__(self, path: str, bytes_max: int) -> None:
        super().__init__(path, f"more than {bytes_max} bytes")
        self.bytes_max = bytes_max

    def __reduce__(self) -> tuple[type[TooLarge], tuple[str, int]]:
        return type(self), (self.path, self.bytes_max)


def parts_of(data: Content) -> Sequence[bytes | memoryview]:
    """Return the content as parts, none of them copied."""
    return [data] if isinstance(data, bytes | memoryview) else data


def joined(data: Content) -> bytes:
    """The content in one piece."""
    return data if isinstance(data, bytes) else b"".join(parts_of(data))


class Store(Protocol):
    """Durable named objects. Every method may raise StoreError."""

    def put(self, path: str, data: Content) -> None:
        """Write the whole object atomically: readers see the old object, or all of the new one.

        Durable on return.
        """
        ...

    def create(self, path: str, data: bytes) -> None:
        """Like `put`, but raises AlreadyExists if the path is taken. At most one caller wins."""
        ...

    def get(
        self,
        path: str,
        offset: int = 0,
        length: int | None = None,
        bytes_max: int | None = None,
    ) -> bytes:
        """Read `length` bytes; None: to the end, at most `bytes_max`.

        Raises NotFound; raises StoreRejected if fewer bytes exist, and TooLarge, before anything
        large is read, if more than `bytes_max` are left.
        """
        ...

    def list(self, prefix: str) -> list[str]:
        """Return all paths that start with `prefix` (a folder ends in "/"), sorted, recursive; []
        without any.
        """
        ...

    def delete(self, path: str) -> None:
        """Remove the object; a missing one is no error."""
        ...


def holds(store: Store, path: str, data: bytes) -> bool:
    """Return whether the object's content is `data`. Raises: StoreError."""
    try:
        return store.get(path, bytes_max=len(data)) == data
    except TooLarge:
        return False


def is_short(store: Store, path: str, size_bytes: int) -> bool:
    """Return whether the object has fewer bytes. Raises: StoreError."""
    try:
        return len(store.get(path, bytes_max=size_bytes)) < size_bytes
    except TooLarge:
        return False
