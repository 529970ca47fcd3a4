"""The latest notices and complete checkpoints of a driver, bounded by number and by size.

Under backpressure the metadata of one checkpoint may name thousands of buffers. So checkpoints are
bounded by all the buffers that they name; the newest one always stays.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from headrace.recovery.metadata import CheckpointMetadata

from ..coordinator.coordinator_events import Notice

#: Notices and checkpoints that are remembered at most.
REMEMBERED = 1000
#: Buffers that remembered checkpoints name at most, together: about 10 MiB.
BUFFERS_MAX = 32_768


class Remembered:
    """Notices with their running numbers, and the checkpoints among them, oldest first."""

    def __init__(self) -> None:
        self.notices: deque[tuple[int, Notice]] = deque(maxlen=REMEMBERED)
        self.checkpoints: deque[CheckpointMetadata] = deque()
        self._buffers = 0

    def add(self, number: int, notice: Notice) -> None:
        """Remember a notice, and forget what is too old or too large."""
        self.notices.append((number, notice))
        if notice.checkpoint is None:
            return
        self.checkpoints.append(notice.checkpoint)
        self._buffers += _buffers_of(notice.checkpoint)
        while len(self.checkpoints) > 1 and (
            len(self.checkpoints) > REMEMBERED or self._buffers > BUFFERS_MAX
        ):
            self._forget(self.checkpoints.popleft())

    def _forget(self, checkpoint: CheckpointMetadata) -> None:
        self._buffers -= _buffers_of(checkpoint)
        for position, (number, notice) in enumerate(self.notices):
            if notice.checkpoint is checkpoint:
                self.notices[position] = (number, replace(notice, checkpoint=None))
                return


def _buffers_of(checkpoint: CheckpointMetadata) -> int:
    return sum(len(h.buffers) for subtask in checkpoint.subtasks for h in subtask.inflight)
