"""The local disks of a run's workers: a folder that is there while it is needed, and what stands on it."""

from __future__ import annotations

import os
import random
import shutil
import tempfile

from ...contract.operators import HEAP, StateBackend
from ..coverage import Coverage

#: Folders here cost no disk. A system without it has them among its temporary files.
_IN_MEMORY = "/dev/shm"


class LocalDisk:
    """Folders for databases; nobody finds that of another, or of a dead process, again."""

    def __init__(self, rng: random.Random, coverage: Coverage) -> None:
        self._rng = rng
        self._coverage = coverage
        self._root = ""
        self._folders = 0

    def backend(self, *, database: bool) -> StateBackend:
        """Where a task keeps its state."""
        if not database:
            return HEAP
        # Not at the top: runs without databases need not wait for rocksdict.
        from .log_structured import LogStructured

        engine = LogStructured(self._rng, self._coverage)
        return StateBackend("rocksdb", folder=self._folder, engine=engine)

    def close(self) -> None:
        """The run is over."""
        if self._root:
            shutil.rmtree(self._root)

    def _folder(self) -> str:
        self._root = self._root or tempfile.mkdtemp(prefix="headrace-simulation-", dir=_place())
        self._folders += 1
        return os.path.join(self._root, str(self._folders))


def _place() -> str | None:
    return _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
