"""Which checkpoints share no file with older ones (`full_every`).

A checkpoint that is triggered before a full one is complete still builds upon older ones, and later
ones would build upon it. So checkpoints are full until one is complete. None is full while records
are replayed, from files that stay because checkpoints name them.
"""

from __future__ import annotations

from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.registry import named_of_others


class FullCheckpoints:
    """Counts the complete checkpoints of one job."""

    def __init__(self, every: int, restore: CheckpointMetadata | None) -> None:
        self._every = every
        #: Complete checkpoints since the last full one; None: a full one is due.
        self._since = 0 if restore is not None and not named_of_others(restore) else None
        self._replays = False

    @property
    def is_due(self) -> bool:
        """The next checkpoint must be full."""
        due = self._every > 0 and (self._since is None or self._since + 1 >= self._every)
        return due and not self._replays

    def began(self, restore: CheckpointMetadata | None) -> None:
        """An attempt starts from this checkpoint."""
        self._replays = restore is not None and any(s.inflight for s in restore.subtasks)

    def completed(self, metadata: CheckpointMetadata, *, full: bool) -> None:
        """A checkpoint, and no savepoint, is complete."""
        sides = {handle.side for s in metadata.subtasks for handle in s.inflight}
        self._replays = self._replays and "replay" in sides
        if full:
            self._since = 0
        elif self._since is not None:
            self._since += 1
