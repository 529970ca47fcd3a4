"""One attempt's checkpoints at one worker, between the frozen state and its file: what is to be written, and when.

Kept by the owner thread of every driver; the writing itself is the driver's business (a storage thread, or virtual time). It joins what the
operators froze with the cuts, asks the in-flight writer what need not be written again, and hands out what is `ready`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.channels.buffer import ChannelId
from headrace.inflight.confirmed import Confirmed
from headrace.inflight.handle import ChannelStateHandle
from headrace.inflight.log import USUAL, Continuous, LogLimits
from headrace.inflight.writer import AdHoc, InflightWriter, Piece

from ..contract.operators import Snapshot
from ..storage.databases import StoredFiles, release_all
from ..worker.attempt import PersistCheckpoint
from ..worker.subtask_events import Cut, SubtaskId
from ..worker.subtask_spec import Limits

Frozen = Sequence[tuple[str, Snapshot]]


@dataclass(frozen=True, slots=True)
class CheckpointWrite:
    """A worker's part of a checkpoint, to be stored in one file. `index`: in-flight data that is named instead.

    `savepoint`: as in `PersistCheckpoint`.
    """

    epoch: int
    checkpoint: int
    snapshots: dict[SubtaskId, Frozen]
    #: {subtask: time that freezing took}
    sync_ns: dict[SubtaskId, int]
    cuts: tuple[Cut, ...]
    index: Confirmed
    savepoint: str | None = None


class Persistence:
    """What one attempt has to store. `inflight` decides when in-flight data is written."""

    def __init__(self, inflight: InflightWriter) -> None:
        self.inflight = inflight
        self.files = StoredFiles()
        #: {checkpoint: {subtask: (its frozen state, time that freezing took)}}
        self._frozen: dict[int, dict[SubtaskId, tuple[Frozen, int]]] = {}
        #: Checkpoints that wait for the piece of the log under way, in order.
        self._waiting: deque[PersistCheckpoint] = deque()
        #: Savepoints that were handed out: nothing is built upon them.
        self._savepoints: set[int] = set()

    def freeze(self, checkpoint: int, subtask: SubtaskId, states: Frozen, sync_ns: int) -> None:
        """The subtask's state is frozen for `checkpoint`."""
        self._frozen.setdefault(checkpoint, {})[subtask] = (states, sync_ns)

    def discard(self, checkpoint: int) -> None:
        """The checkpoint was given up."""
        for pieces, _ in self._frozen.pop(checkpoint, {}).values():
            release_all(pieces)
        self._waiting = deque(w for w in self._waiting if w.checkpoint != checkpoint)
        self.inflight.given_up(checkpoint)

    def persist(self, effect: PersistCheckpoint) -> None:
        """Every subtask has cut; `ready` follows."""
        self._waiting.append(effect)

    def stored(self, checkpoint: int, inflight: dict[SubtaskId, list[ChannelStateHandle]]) -> None:
        """The worker's part of the checkpoint is durable. (Of its databases' files `files` was told.)"""
        if checkpoint in self._savepoints:
            self._savepoints.remove(checkpoint)
            return
        self.inflight.stored(checkpoint, [h for handles in inflight.values() for h in handles])

    def confirmed(self, checkpoint: int) -> None:
        """The checkpoint is complete: what it holds may be named."""
        self.inflight.confirmed(checkpoint)
        self.files.confirmed(checkpoint)

    def trimmed(self, floors: Mapping[ChannelId, int] | None) -> list[Piece]:
        """Pieces of the log to delete, given the worker's `floors` (see `Attempt.floors`)."""
        return [] if floors is None or self._waiting else self.inflight.trim(floors)

    def ready(self) -> Iterator[CheckpointWrite | Piece]:
        """What is to be written now, each once: checkpoints before pieces of the log."""
        while self._waiting:
            index = self._index(self._waiting[0])
            if index is None:
                break
            effect = self._waiting.popleft()
            frozen = self._frozen.pop(effect.checkpoint)
            yield CheckpointWrite(
                effect.epoch,
                effect.checkpoint,
                {subtask: states for subtask, (states, _) in frozen.items()},
                {subtask: sync_ns for subtask, (_, sync_ns) in frozen.items()},
                effect.cuts,
                index,
                effect.savepoint,
            )
        while (piece := self.inflight.next_piece()) is not None:
            yield piece

    def _index(self, effect: PersistCheckpoint) -> Confirmed | None:
        if effect.savepoint is None:
            return self.inflight.index(effect.checkpoint)
        self._savepoints.add(effect.checkpoint)
        return Confirmed()  # it is to last when all checkpoints are gone


def persistence_of(limits: Limits, log: LogLimits = USUAL) -> Persistence:
    """The persistence of a new attempt, with the in-flight writer that its limits ask for."""
    return Persistence(Continuous(log) if limits.logs else AdHoc())
