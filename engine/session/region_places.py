"""What kept checkpoints of a region still need of the logs that it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from headrace.recovery import catalog
from headrace.recovery.codec import CorruptMetadata, UnsupportedVersion
from headrace.recovery.edge_log import Place
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.store import NotFound, Store

from ..connectors.edge_log import place_of
from ..storage.snapshots import CorruptState, states_of


def place_in(store: Store, metadata: CheckpointMetadata, log: str) -> Place:
    """How far the region had read a log at a checkpoint. Raises: CorruptState, StoreError."""
    states = states_of(store, metadata, log)
    return place_of([row for state in states for row in state.table.to_pylist()])


class RegionPlaces:
    """The places in the checkpoints of one region, each read once."""

    def __init__(self, store: Store, job: str, logs: Sequence[str]) -> None:
        self._store = store
        self._job = job
        self._logs = logs
        #: {number: (epoch that completed it, how far it has read each log)}.
        self._known: dict[int, tuple[int, dict[str, Place]]] = {}

    def needs(self) -> list[Mapping[str, int]]:
        """For each complete checkpoint and savepoint {log: oldest entry that it needs}.

        Raises: CorruptState, StoreError.
        """
        numbers = catalog.complete_checkpoints(self._store, self._job)
        self._known = {n: self._known[n] for n in numbers if n in self._known}
        for number in numbers:
            self._read(number)
        return [
            {log: place.entry for log, place in places.items()}
            for _, places in self._known.values()
        ]

    def kept(self, newest: int | None = None) -> list[tuple[int, Mapping[str, Place]]]:
        """Checkpoints that the region can go back to with the places in them, oldest first.

        Args:
            newest: the checkpoint, or savepoint, with which the region starts; 0: none. None: the
                region runs.

        Raises: StoreError.
        """
        past = catalog.history(self._store, self._job)
        own = catalog.complete_checkpoints(self._store, self._job, savepoints=False)
        own = [number for number in own if newest is None or number <= newest]
        for number in {*own, *([newest] if newest else [])}:
            with suppress(CorruptState):  # nothing can go back there
                self._read(number)
        return [
            (number, places)
            for number, (epoch, places) in sorted(self._known.items())
            if number == newest or (number in own and past.counts(number, epoch))
        ]

    def _read(self, number: int) -> None:
        if number in self._known:
            return
        try:
            metadata = catalog.load(self._store, self._job, number)
        except (NotFound, CorruptMetadata, UnsupportedVersion):
            return  # deleted meanwhile, or of no use to anybody
        places = {log: place_in(self._store, metadata, log) for log in self._logs}
        self._known[number] = (metadata.epoch, places)
