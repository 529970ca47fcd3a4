"""The history of a job: which complete checkpoints count, told by where each epoch started.

    JOB/epochs/E-from-N-eX   epoch E started from checkpoint N, which epoch X completed;
                             N = X = 0: from nothing in this folder

An epoch writes its start before it aborts any transaction (`catalog.note_start`). Starts form a
chain: the newest one leads to a checkpoint of epoch X, the newest start up to epoch X to another,
and so on. A checkpoint counts when the chain passes it, or when no newer epoch has started. Hence a
frozen driver that wakes changes nothing: a checkpoint completed late lies beside the chain, and so
does a start written late. docs/design.md has the argument.

Source: Raft's terms (a log entry counts by term and index); deviation: storage has no votes, so the
newest start decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class EpochStart(NamedTuple):
    """Epoch `epoch` started from `checkpoint`, which epoch `completed_by` completed; 0: none."""

    epoch: int
    checkpoint: int
    completed_by: int


class History:
    """The chain of starts of one job."""

    def __init__(self, starts: Iterable[EpochStart]) -> None:
        self._newest_first = sorted(starts, reverse=True)

    @property
    def newest(self) -> EpochStart | None:
        """The start of the newest epoch that noted one."""
        return next(iter(self._newest_first), None)

    def counts(self, checkpoint: int, epoch: int) -> bool:
        """Return whether `checkpoint`, completed by `epoch`, belongs to the history."""
        #: Newest epoch of the stretch of the chain that is looked at; None: the end is open.
        last: int | None = None
        for start in self._newest_first:
            if last is not None and start.epoch > last:
                continue
            if epoch >= start.epoch:
                break
            if checkpoint >= start.checkpoint:
                return (checkpoint, epoch) == (start.checkpoint, start.completed_by)
            last = start.completed_by
        return last is None or epoch <= last
