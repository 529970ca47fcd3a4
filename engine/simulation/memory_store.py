"""A `Store` in memory, for tests and simulations, that fails as planned.

Tests see the calls, and may act between two calls.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.recovery.store import (
    AlreadyExists,
    Content,
    NotFound,
    StoreError,
    StoreRejected,
    TooLarge,
    joined,
)


class MemoryStore:
    """Objects in a dictionary.

    Attributes:
        objects: {path: content}.
        calls: (method, path) of every call.
        before: called with method and path before each call; may raise, or change the store.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] = lambda method, path: None
        #: {method: (error, the call takes effect all the same) of its next calls}
        self._failures: dict[str, list[tuple[type[StoreError], bool]]] = {}

    @property
    def methods(self) -> list[str]:
        """The methods of all calls, in order."""
        return [method for method, _ in self.calls]

    def fail(self, method: str, *errors: type[StoreError], happened: bool = False) -> None:
        """Let further calls of `method` fail, one error each; `happened`: after their effect."""
        self._failures.setdefault(method, []).extend((error, happened) for error in errors)

    def put(self, path: str, data: Content) -> None:
        """See `Store.put`."""
        self._called("put", path)
        self._change("put", path, lambda: self._write(path, joined(data)))

    def create(self, path: str, data: bytes) -> None:
        """See `Store.create`."""
        self._called("create", path)
        if path in self.objects:
            raise AlreadyExists(path, "already exists")
        self._change("create", path, lambda: self._write(path, bytes(data)))

    def get(
        self,
        path: str,
        offset: int = 0,
        length: int | None = None,
        bytes_max: int | None = None,
    ) -> bytes:
        """See `Store.get`."""
        self._called("get", path)
        self._change("get", path, lambda: None)
        if path not in self.objects:
            raise NotFound(path, "not found")
        data = self.objects[path][offset:]
        if bytes_max is not None and len(data) > bytes_max and length is None:
            raise TooLarge(path, bytes_max)
        if length is None:
            return data
        if len(data) < length:
            raise StoreRejected(path, f"{length} bytes at {offset}, only {len(data)} are there")
        return data[:length]

    def list(self, prefix: str) -> list[str]:
        """See `Store.list`."""
        self._called("list", prefix)
        self._change("list", prefix, lambda: None)
        return sorted(path for path in self.objects if path.startswith(prefix))

    def delete(self, path: str) -> None:
        """See `Store.delete`."""
        self._called("delete", path)
        self._change("delete", path, lambda: self._remove(path))

    def _write(self, path: str, data: bytes) -> None:
        self.objects[path] = data

    def _remove(self, path: str) -> None:
        self.objects.pop(path, None)

    def _called(self, method: str, path: str) -> None:
        self.calls.append((method, path))
        self.before(method, path)

    def _change(self, method: str, path: str, act: Callable[[], None]) -> None:
        failures = self._failures.get(method)
        if not failures:
            act()
            return
        error, happened = failures.pop(0)
        if happened:
            act()
        raise error(path, "as planned")
