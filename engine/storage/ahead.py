"""Files of a checkpoint that a standby worker fetches while the job that it replaces still runs.

A rescale stands still from the stop of the old job on. Most data of the new workers lies in storage
by then: the immutable files that the last complete checkpoint names, most of which the final
checkpoint will name again. So a standby worker links or copies its files of that checkpoint, and
compares each with its checksum. At the restore it takes files from here by a further link; a file
that is missing here, or was changed since, is fetched and compared then. So no file is opened that
its process has not read to the end and found whole; only the time of reading moves.

A file that cannot be fetched is left out, whatever the reason: the restore meets the reason again,
if it still matters, and reports it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from msgspec.structs import replace

from headrace.inflight.segment import CorruptBlob
from headrace.recovery.metadata import SharedFile
from headrace.recovery.store import Store, StoreError

from .shared_files import Identity, bring, identity_of

#: Files that are fetched at once.
_FETCH_THREADS = 4

#: Path in storage, length, checksum.
_Key = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A local file, and its identity when it was compared."""

    place: str
    identity: Identity


class FilesAhead:
    """Files that one worker has fetched of its job's own checkpoints. Thread-safe.

    Args:
        folder: names a folder that does not exist; its parent does, on the file system where
            databases are opened.
        threads: number of files fetched at once.
    """

    def __init__(
        self, store: Store, job: str, folder: Callable[[], str], threads: int = _FETCH_THREADS
    ) -> None:
        self._store = store
        self._job = job
        self._new_folder = folder
        self._threads = threads
        self._lock = threading.Lock()
        self._folders: list[str] = []
        self._fetched: dict[_Key, _Fetched] = {}
        self._over = False

    def fetch(self, files: Sequence[SharedFile]) -> int:
        """Fetch these files, until `stop`; return the bytes fetched."""
        try:
            folder = self._new_folder()
            with self._lock:
                if self._over:
                    return 0
                self._folders.append(folder)
                os.mkdir(folder)
        except OSError:
            return 0
        numbered = [replace(file, name=f"{n}-{file.name}") for n, file in enumerate(files)]
        with ThreadPoolExecutor(self._threads, thread_name_prefix="ahead") as pool:
            return sum(pool.map(lambda file: self._fetch(file, folder), numbered))

    def take(self, file: SharedFile, folder: str) -> bool:
        """Put the file into `folder` under its database's name. False: it is missing or changed."""
        found = self._fetched.get(_key(file))
        try:
            if found is None or identity_of(found.place) != found.identity:
                return False
            os.link(found.place, os.path.join(folder, file.name))
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """Begin to fetch no further file: the restore is here."""
        self._over = True

    def drop(self) -> None:
        """Delete the files. Links that were taken stay."""
        with self._lock:
            self._over = True
            folders, self._folders, self._fetched = self._folders, [], {}
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)

    def _fetch(self, file: SharedFile, folder: str) -> int:
        if self._over:
            return 0
        place = os.path.join(folder, file.name)
        try:
            identity = bring(self._store, self._job, file, folder, links=True)
        except (CorruptBlob, StoreError, OSError):
            # Half a copy takes space that the restore may need.
            with contextlib.suppress(OSError):
                os.unlink(place)
            return 0
        self._fetched[_key(file)] = _Fetched(place, identity)
        return file.length


def _key(file: SharedFile) -> _Key:
    return file.path, file.length, file.checksum
