"""Compare every change of a simulated storage with the files that complete checkpoints name.

A savepoint, or a checkpoint of its job's history, is *live* while its metadata exists, even after a
failed deletion: each file named by a live checkpoint exists, unchanged. This law is stronger than a
restore at the end, and fails at the very call that breaks it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from headrace.recovery.catalog import belongs
from headrace.recovery.codec import CorruptMetadata, UnsupportedVersion, decode_metadata
from headrace.recovery.history import History
from headrace.recovery.layout import (
    CheckpointKind,
    epochs_folder,
    job_folder,
    parse_checkpoint_path,
    parse_start_path,
    store_path,
)
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.registry import references

_METADATA = "metadata"


class StorageAudit:
    """Audits each change. `objects` is the storage's own dictionary.

    Attributes:
        broken: first damage to a live checkpoint; empty: none.
    """

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.broken = ""
        self._objects = objects
        #: {path of its metadata: files that a live checkpoint names}
        self._live: dict[str, frozenset[str]] = {}
        #: How many live ones name a file.
        self._named: Counter[str] = Counter()

    @property
    def live(self) -> Mapping[str, frozenset[str]]:
        """{path of a live checkpoint's metadata: files named there}."""
        return self._live

    def names(self, path: str) -> bool:
        """Some live checkpoint names this file."""
        return self._named[path] > 0

    def inherited(self, checkpoint: int, job: str = "") -> None:
        """Another driver goes on from `checkpoint`: other checkpoints of `job` are no longer live.

        `job` empty: of all jobs. Savepoints stay: users own savepoints.
        """
        for path in list(self._live):
            parsed = parse_checkpoint_path(path)
            assert parsed is not None, path
            if job and parsed.job != job_folder(job):
                continue
            if parsed.kind is CheckpointKind.CHECKPOINT and parsed.number != checkpoint:
                self.gone(path)

    def gone(self, path: str) -> None:
        """A checkpoint is deleted, or no longer live."""
        if path in self._live:
            self._named -= Counter(self._live.pop(path))

    def writes(self, path: str, data: bytes) -> None:
        """A write of `path` is about to happen."""
        if self.names(path) and self._objects.get(path, data) != data:
            self._break(f"{path} is written over, which {self._who(path)} names")

    def created(self, path: str) -> None:
        """An object was created, whole."""
        parsed = parse_checkpoint_path(path)
        if parsed is None or parsed.name != _METADATA or path in self._live:
            return
        try:
            metadata = decode_metadata(self._objects[path], path)
        except (CorruptMetadata, UnsupportedVersion):
            return
        files = frozenset(store_path(metadata.job, file) for file in references(metadata))
        missing = sorted(file for file in files if file not in self._objects)
        if not self._counts(metadata):
            return
        self._live[path] = files
        self._named += Counter(files)
        if missing:
            self._break(f"{path} is there, and {missing[:3]} are not")

    def _counts(self, metadata: CheckpointMetadata) -> bool:
        """Return whether the checkpoint belongs to its job's history; see `history.py`."""
        folder = epochs_folder(metadata.job)
        starts = [parse_start_path(p) for p in self._objects if p.startswith(folder)]
        return belongs(metadata, History(s for s in starts if s is not None))

    def deletes(self, path: str) -> None:
        """A deletion of `path` is about to happen."""
        if self.names(path):
            self._break(f"{path} is deleted, which {self._who(path)} names")

    def _who(self, path: str) -> str:
        return next(metadata for metadata, files in self._live.items() if path in files)

    def _break(self, what: str) -> None:
        self.broken = self.broken or what
