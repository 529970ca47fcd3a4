"""Oracle of `full_every`: one of so many complete checkpoints shares no file with older ones.

Told of the completions of one driver, and of its start. It compares the files that metadata names
with those that older metadata named; it knows nothing of the coordinator's own count.

Checkpoints that are under way when a full one is due may still complete before it. While records
are left to replay, none is full; that none is left shows only when a checkpoint is complete.
"""

from __future__ import annotations

from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.registry import references

from ..coverage import Coverage
from ..watch import Violation
from .environment import Settings


class FullCheckpoints:
    """Completions of one driver, in order."""

    def __init__(self, settings: Settings, coverage: Coverage) -> None:
        self._every = settings.full_every
        self._sharing_max = self._every - 1 + settings.concurrent - 1
        self._coverage = coverage
        #: Files that a checkpoint has named, the start of the driver included.
        self._named: set[str] = set()
        #: The checkpoint before.
        self._before: CheckpointMetadata | None = None
        #: Checkpoints since the last one that shared no file.
        self._sharing = 0

    def started(self, restore: CheckpointMetadata | None) -> None:
        """The driver begins from this checkpoint."""
        if restore is not None:
            self._named |= references(restore)
            self._before = restore

    def completed(self, metadata: CheckpointMetadata) -> None:
        """A checkpoint is complete. Raises: Violation."""
        if not self._every or metadata.savepoint:
            return
        files = references(metadata)
        shared = files & self._named
        full_after_others = bool(files and self._named and not shared)
        self._coverage.count("full checkpoints that share no file", full_after_others)
        self._sharing = self._sharing + 1 if shared else 0
        self._named |= files
        if self._was_replaying(metadata):
            self._sharing = 0
        if self._sharing > self._sharing_max:
            raise Violation(
                f"chk-{metadata.checkpoint} is checkpoint {self._sharing} in a row that shares"
                f" files with older ones, with full_every={self._every}: {sorted(shared)[:3]}"
            )

    def _was_replaying(self, metadata: CheckpointMetadata) -> bool:
        """Whether records may have been left to replay when the checkpoint was triggered."""
        before, self._before = self._before, metadata
        if before is None or before.epoch == metadata.epoch:
            known = [metadata] if before is None else [before, metadata]
            return any(_replays(one) for one in known)
        return _replays(metadata) or any(s.inflight for s in before.subtasks)


def _replays(metadata: CheckpointMetadata) -> bool:
    return any(handle.side == "replay" for s in metadata.subtasks for handle in s.inflight)
