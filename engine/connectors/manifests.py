"""Manifests: which files of which checkpoint are complete, where files cannot be renamed.

An object store has no rename: a commit copies each file to its final name, then creates the
manifest of the checkpoint, then deletes the copied files. The manifest exists only if all files of
the checkpoint are visible, so a repeated commit needs no look at the files, which somebody may have
moved or compacted meanwhile. It is created conditionally: of two drivers that commit the same
checkpoint one wins, and both have shown equal files.

    <folder>/<run>-<checkpoint>.committed
        {"checkpoint": 7, "files": [{"file": "part-...", "bytes": 1, "rows": 1}, ...]}

Only the newest manifest of a run is kept: the checkpoints of a run are committed in their order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ..contract.operators import Transaction
from . import durable
from .filesystem import Location

_SUFFIX = ".committed"
_NAME = re.compile(r"(.*)-([0-9]+)\.committed")


class Manifests:
    """The manifests in a folder, of any runs."""

    def __init__(self, location: Location, folder: str) -> None:
        self._location = location
        self._folder = folder
        #: {run: newest checkpoint}, as far as it was read or written.
        self._newest: dict[str, int] = {}

    def newest(self, run: str) -> int:
        """Newest checkpoint of the run with a manifest; -1: there is none. Raises: OSError."""
        if run not in self._newest:
            self._newest[run] = max(self._checkpoints(run), default=-1)
        return self._newest[run]

    def add(self, run: str, checkpoint: int, transactions: Sequence[Transaction]) -> None:
        """Note that all files of these transactions are visible. Raises: OSError."""
        facts = {"checkpoint": checkpoint, "files": [t.payload for t in transactions]}
        durable.create_once(self._location, self._path(run, checkpoint), msgspec.json.encode(facts))
        for older in self._checkpoints(run):
            if older < checkpoint:
                durable.remove(self._location, self._path(run, older))
        self._newest[run] = checkpoint

    def remove(self, run: str) -> None:
        """Forget what was visible of a run. Raises: OSError."""
        for checkpoint in self._checkpoints(run):
            durable.remove(self._location, self._path(run, checkpoint))
        self._newest.pop(run, None)

    def _checkpoints(self, run: str) -> list[int]:
        found = map(_NAME.fullmatch, durable.names(self._location, self._folder))
        return [int(match[2]) for match in found if match is not None and match[1] == run]

    def _path(self, run: str, checkpoint: int) -> str:
        return f"{self._folder}/{run}-{checkpoint}{_SUFFIX}"
