"""The local disks of a run's workers: a temporary folder for databases."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import partial

from headrace.recovery.handles import SharedFile
from headrace.recovery.store import Store

from ...contract.operators import HEAP, StateBackend
from ...storage.ahead import FilesAhead
from ..coverage import Coverage

#: Folders here cost no disk. A system without this path uses its temporary files.
_IN_MEMORY = "/dev/shm"


class _CountedFiles(FilesAhead):
    """Fetches in a single thread, so the seed orders the faults; counts a restore's fetched
    files.
    """

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
    """Folders for databases; no process finds a folder of another, or of a dead, process."""

    def __init__(self, rng: random.Random, coverage: Coverage) -> None:
        self._rng = rng
        self._coverage = coverage
        self._root = ""
        self._folders = 0
        self._backends = 0

    def backend(self, *, database: bool) -> StateBackend:
        """Make the state backend of a task."""
        if not database:
            return HEAP
        # Not at the top: runs without databases need not wait for rocksdict.
        from ...state.rocks.backend import open_backend
        from .log_structured import LogStructured

        engine = LogStructured(self._rng, self._coverage)
        databases = partial(open_backend, folder=self.folder, engine=engine)
        self._backends += 1
        # Every other task forgets its rows at each call.
        cache_bytes = (1 << 20) * (self._backends % 2)
        return StateBackend("rocksdb", databases=databases, cache_bytes=cache_bytes)

    def files_ahead(self, store: Store, job: str) -> FilesAhead:
        """Make the files that a worker may fetch before its coordinator begins."""
        return _CountedFiles(store, job, self.folder, self._coverage)

    def close(self) -> None:
        """The run is over."""
        if self._root:
            shutil.rmtree(self._root)

    def folder(self) -> str:
        """Name a new folder; does not create the folder."""
        self._root = self._root or tempfile.mkdtemp(prefix="headrace-simulation-", dir=_place())
        self._folders += 1
        return os.path.join(self._root, str(self._folders))


def _place() -> str | None:
    return _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
