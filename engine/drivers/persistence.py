"""One attempt's checkpoints at one worker, from the first frozen state until durable data.

The owner thread of a driver keeps the persistence; the driver writes (in a storage thread, or in
virtual time). Frozen state is joined with the cuts, and the in-flight writer tells which records
are named instead of written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.channels.buffer import ChannelId
from headrace.inflight.confirmed import NAMED, Confirmed, NamingLimits
from headrace.inflight.log import USUAL, Continuous, LogLimits
from headrace.inflight.writer import AdHoc, Floors, InflightWriter, Piece

from ..contract.execution import SubtaskId
from ..contract.operators import Snapshot, StateSnapshot
from ..storage.databases import StoredFiles, release_all
from ..storage.snapshots import Written
from ..worker.subtask_events import Cut
from ..worker.subtask_spec import Limits
from ..worker.worker_events import CheckpointPersisted, PersistCheckpoint

Frozen = Sequence[tuple[str, Snapshot]]


@dataclass(slots=True)
class CheckpointWrite:
    """A worker's part of a checkpoint, from the first frozen state until a file holds it.

    Attributes:
        sync_ns: {subtask: time spent freezing}.
        cuts: empty until every subtask has cut.
        savepoint, full: as in `PersistCheckpoint`.
        index: in-flight data that is named instead of written; set when the write begins.
    """

    checkpoint: int
    snapshots: dict[SubtaskId, Frozen] = field(default_factory=dict)
    sync_ns: dict[SubtaskId, int] = field(default_factory=dict)
    epoch: int = 0
    cuts: tuple[Cut, ...] = ()
    savepoint: str | None = None
    full: bool = False
    index: Confirmed = field(default_factory=Confirmed)


@dataclass(frozen=True, slots=True)
class CheckpointStored:
    """A worker's part of a checkpoint is durable; the write took `async_ns`."""

    write: CheckpointWrite
    written: Written
    async_ns: int

    def event(self) -> CheckpointPersisted:
        """Make the machine's event."""
        write, written = self.write, self.written
        return CheckpointPersisted(
            write.epoch,
            write.checkpoint,
            written.states,
            written.inflight,
            write.sync_ns,
            self.async_ns,
            written.databases,
        )


class Persistence:
    """Data that an attempt has to store. `inflight` decides when in-flight data is written."""

    def __init__(self, inflight: InflightWriter) -> None:
        self.inflight = inflight
        self.files = StoredFiles()
        #: {checkpoint: its write}, until the write begins.
        self._writes: dict[int, CheckpointWrite] = {}
        #: {checkpoint: states of sources that hear of it}, until a newer one is complete.
        self._heard: dict[int, dict[SubtaskId, tuple[StateSnapshot, ...]]] = {}

    def freeze(
        self,
        checkpoint: int,
        subtask: SubtaskId,
        states: Frozen,
        sync_ns: int,
        hears: str | None = None,
    ) -> None:
        """The subtask's state is frozen for `checkpoint`.

        `hears`: name of the source that hears of the checkpoint when it is complete.
        """
        write = self._writes.setdefault(checkpoint, CheckpointWrite(checkpoint))
        write.snapshots[subtask] = states
        write.sync_ns[subtask] = sync_ns
        if hears is not None:
            own = (s for name, s in states if name == hears and isinstance(s, StateSnapshot))
            self._heard.setdefault(checkpoint, {})[subtask] = tuple(own)

    def heard(self, checkpoint: int, subtask: SubtaskId) -> tuple[StateSnapshot, ...]:
        """Return the states of the subtask's source in a complete checkpoint, the newest."""
        return self._heard[checkpoint].pop(subtask)

    def persist(self, order: PersistCheckpoint) -> None:
        """Every subtask has cut; `ready` follows."""
        write = self._writes[order.checkpoint]
        write.epoch, write.cuts, write.savepoint = order.epoch, order.cuts, order.savepoint
        write.full = order.full
        if order.savepoint is not None:  # nobody hears of savepoints
            self._heard.pop(order.checkpoint, None)

    def ready(self, floors: Floors) -> Iterator[CheckpointWrite | Piece]:
        """Hand out the writes to begin now, each once: checkpoints before pieces of the log."""
        for checkpoint in sorted(number for number, write in self._writes.items() if write.cuts):
            write = self._writes[checkpoint]
            # A savepoint names nothing: it is to last when all checkpoints are gone.
            index = Confirmed() if write.savepoint is not None else self.inflight.index(checkpoint)
            if index is None:
                break
            write.index = Confirmed() if write.full else index
            yield self._writes.pop(checkpoint)
        while (piece := self.inflight.next_piece(floors)) is not None:
            yield piece

    def stored(self, done: CheckpointStored) -> None:
        """The worker's part of the checkpoint is durable. Nothing is built upon savepoints."""
        write, written = done.write, done.written
        if write.savepoint is None:
            handles = [handle for found in written.inflight.values() for handle in found]
            self.inflight.stored(write.checkpoint, handles)
            self.files.stored(write.checkpoint, written.files)

    def confirmed(self, checkpoint: int) -> None:
        """The checkpoint is complete: later checkpoints may name its data."""
        self._heard = {number: s for number, s in self._heard.items() if number >= checkpoint}
        for stored in (self.inflight, self.files):
            stored.confirmed(checkpoint)

    def given_up(self, checkpoint: int) -> None:
        """The checkpoint will never be complete: release frozen state not being written."""
        self._heard.pop(checkpoint, None)
        write = self._writes.pop(checkpoint, None)
        for pieces in () if write is None else write.snapshots.values():
            release_all(pieces)
        for stored in (self.inflight, self.files):
            stored.given_up(checkpoint)

    def trimmed(self, floors: Mapping[ChannelId, int] | None) -> list[Piece]:
        """Return pieces of the log to delete, given the worker's floors (`Attempt.floors`)."""
        is_waiting = any(write.cuts for write in self._writes.values())
        return [] if floors is None or is_waiting else self.inflight.trim(floors)


def persistence_of(
    limits: Limits, log: LogLimits = USUAL, naming: NamingLimits = NAMED
) -> Persistence:
    """Make the persistence of a new attempt, with the in-flight writer of its limits."""
    return Persistence(Continuous(log, naming) if limits.logs else AdHoc(naming))
