"""Local folders for databases and spilled records: one for each worker, made at its first use, gone
when the worker is.

A killed worker leaves its folder behind. The operating system took back its lock on a file in the
folder; so the next worker that makes a folder in the same place tries the locks of the others, and
removes folders without a holder.

Not here: the content of the folders (`engine/state/rocks` removes each database's own when its
attempt ends).
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import tempfile
import threading

from ..contract.errors import HeadraceError

_PREFIX = "headrace-state-"
_LOCK = "lock"


class WorkingFolder:
    """A worker's place for databases and spilled records.

    `parent`: None: the system's place for temporary files.

    Thread-safe.
    """

    def __init__(self, parent: str | None) -> None:
        self._parent = parent or tempfile.gettempdir()
        self._mutex = threading.Lock()
        self._numbers = itertools.count()
        self._folder: str | None = None
        self._lock = -1
        self._closed = False

    def new(self, kind: str = "database") -> str:
        """Name a folder that does not exist; its parent does.

        Raises: HeadraceError when it cannot be made.
        """
        with self._mutex:
            if self._closed:
                raise FileNotFoundError("the worker has ended")
            if self._folder is None:
                try:
                    self._folder = self._make()
                except OSError as error:
                    raise HeadraceError(
                        f"the folder {self._parent} for databases and spilled"
                        f" records (state.directory) cannot be used: {error.strerror or error}"
                    ) from error
            return os.path.join(self._folder, f"{kind}-{next(self._numbers)}")

    def close(self) -> None:
        """Remove everything. Never fails."""
        with self._mutex:
            self._closed = True
            if self._folder is not None:
                # Renamed first: a database that is still being closed writes nothing new into the
                # folder then.
                gone = f"{self._folder}-gone"
                with contextlib.suppress(OSError):
                    os.rename(self._folder, gone)
                shutil.rmtree(gone, ignore_errors=True)
                os.close(self._lock)
                self._folder = None

    def _make(self) -> str:
        os.makedirs(self._parent, exist_ok=True)
        self._sweep()
        # Locked before it has its name: no other worker takes it for a remainder.
        hidden = tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=self._parent)
        self._lock = os.open(os.path.join(hidden, _LOCK), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        folder = os.path.join(self._parent, os.path.basename(hidden)[1:])
        os.rename(hidden, folder)
        return folder

    def _sweep(self) -> None:
        """Remove the folders of workers that are gone."""
        with contextlib.suppress(OSError), os.scandir(self._parent) as entries:
            for entry in list(entries):
                if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                    _remove_unlocked(entry.path)


def _remove_unlocked(folder: str) -> None:
    with contextlib.suppress(OSError):
        lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
