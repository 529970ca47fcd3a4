"""The local disks of a run's workers: a folder that is there while it is needed, and what stands on it."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable

from headrace.recovery.metadata import SharedFile
from headrace.recovery.store import Store

from ...contract.operators import HEAP, StateBackend
from ...storage.ahead import FilesAhead
from ..coverage import Coverage

#: Folders here cost no disk. A system without it has them among its temporary files.
_IN_MEMORY = "/dev/shm"


class _CountedFiles(FilesAhead):
    """Fetches in one thread, so the seed orders the faults, and counts files that a restore takes."""

    def __init__(
        self, store: Store, job: str, folder: Callable[[], str], coverage: Coverage
    ) -> None:
        super().__init__(store, job, folder, threads=1)
        self._coverage = coverage

    def take(self, file: SharedFile, folder: str) -> bool:
        """See `FilesAhead.take`."""
        taken = super().take(file, folder)
        self._coverage.count("files restored that were fetched ahead", taken)
        return taken


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
        return StateBackend("rocksdb", folder=self.folder, engine=engine)

    def files_ahead(self, store: Store, job: str) -> FilesAhead:
        """What a worker that starts before its coordinator begins may fetch."""
        return _CountedFiles(store, job, self.folder, self._coverage)

    def close(self) -> None:
        """The run is over."""
        if self._root:
            shutil.rmtree(self._root)

    def folder(self) -> str:
        """Name a folder that does not exist yet."""
        self._root = self._root or tempfile.mkdtemp(prefix="headrace-simulation-", dir=_place())
        self._folders += 1
        return os.path.join(self._root, str(self._folders))


def _place() -> str | None:
    return _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
