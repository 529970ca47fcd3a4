"""Storage in a dict that fails as planned."""

from __future__ import annotations

from collections.abc import Callable

from headrace.recovery.store import (
    AlreadyExists,
    Content,
    NotFound,
    StoreError,
    joined,
)


class FakeStore:
    """Objects in a dict. The next calls of a method fail as `plan` says, before or after they took effect."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        #: {method: (error, it happened nevertheless) of its next calls}
        self.plan: dict[str, list[tuple[type[StoreError], bool]]] = {}
        self.calls: list[str] = []

    def fail(self, method: str, *errors: type[StoreError], happened: bool = False) -> None:
        self.plan[method] = [(error, happened) for error in errors]

    def put(self, path: str, data: Content) -> None:
        self._do("put", path, lambda: self.objects.update({path: joined(data)}))

    def create(self, path: str, data: bytes) -> None:
        if path in self.objects:
            raise AlreadyExists(path, "already exists")
        self._do("create", path, lambda: self.objects.update({path: data}))

    def get(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        self._do("get", path, lambda: None)
        if path not in self.objects:
            raise NotFound(path, "not found")
        return self.objects[path][offset : None if length is None else offset + length]

    def list(self, prefix: str) -> list[str]:
        self._do("list", prefix, lambda: None)
        return sorted(path for path in self.objects if path.startswith(prefix))

    def delete(self, path: str) -> None:
        self._do("delete", path, lambda: self.objects.pop(path, None))

    def _do(self, method: str, path: str, act: Callable[[], object]) -> None:
        self.calls.append(method)
        planned = self.plan.get(method)
        if not planned:
            act()
            return
        error, happened = planned.pop(0)
        if happened:
            act()
        raise error(path, "as planned")
