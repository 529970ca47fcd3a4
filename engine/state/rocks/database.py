"""The RocksDB state backend: committed state on disk; a snapshot costs the owner thread no I/O.

States keep a call's writes aside. `commit` turns the writes into an immutable *layer*; the
subtask's thread or a storage thread applies layers to the database later. A snapshot is a number:
its last layer. No later layer is applied before a storage thread has linked the snapshot's files
(or the subtask's thread, when too many layers would pile up). So `commit` and `snapshot` do no I/O
and wait for no thread.

Threads: the owner thread alone replaces the tuple of layers. The holder of the lock applies layers,
in order, and raises `_applied`. A layer stays in the tuple until the next commit, so a reader of
first the layers, then the database, misses no write.

Rows that stay at hand (`kept.py`) need no layer to be read, so their layers may wait, and are
applied many at once: sorted, and a row that changed often is written once.

Source: Flink's incremental RocksDB checkpoints (links of immutable files); deviation: the cut is a
number, and the flush comes later.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from typing import Any, Protocol

import pyarrow as pa

from ...contract.operators import DatabaseFiles, DatabaseSnapshot, RestoredDatabase, StateLayout
from ..slots import Slots
from . import files as rocks_files
from .files import Entry, RocksSizes
from .parts import Cursor, Parts, Share, shares_of
from .recent import Recent

#: When a snapshot holds back layers of so many entries, the subtask's thread links the snapshot's
#: files itself.
_LAYERED_ENTRIES_MAX = 200_000
#: Rows that stay at hand wait for so many entries, or for so many layers: sorted among more, they
#: enter RocksDB faster.
_WAITING_ENTRIES_MAX = 100_000
_WAITING_LAYERS_MAX = 256
#: The GIL is held while so many entries are made and sorted, or so many keys read: a millisecond or
#: two.
_PIECE_ENTRIES = 4096

Writes = Mapping[Any, Any]

_NOTHING: Writes = {}


class Space(Protocol):
    """One state in a database: its name, and the way from writes to entries."""

    @property
    def layout(self) -> StateLayout:
        """Name, columns and number of key columns."""
        ...

    def entries(self, writes: Writes) -> Iterable[Entry]:
        """Make the entries of one layer's writes."""
        ...


class RowSpace(Protocol):
    """One state in a database, whose rows stay at hand: every unapplied write is there as well."""

    @property
    def layout(self) -> StateLayout:
        """Name, columns and number of key columns."""
        ...

    def pieces(self, changes: Sequence[ChangedRows]) -> Iterator[list[Entry]]:
        """Make the entries of changes, in order; the last change of a row counts."""
        ...


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Rows that a call has changed, each once, with their slots at hand. Never changed.

    Attributes:
        generation: rows have the same slot in all changes of a generation.
    """

    generation: int
    slots: Slots
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Layer:
    """A call's writes and changed rows, by name of the state. Never changed."""

    number: int
    writes: Mapping[str, Writes]
    changed: Mapping[str, Sequence[ChangedRows]]
    entries: int


class _Frozen:
    """A snapshot: not yet linked, linked in `folders`, or released."""

    def __init__(self, layer: int) -> None:
        self.layer = layer
        #: One for each part.
        self.folders: tuple[str, ...] | None = None
        self.released = False


class RocksDatabase:
    """The database of one operator of one subtask, or several that share its key groups
    (`parts.py`).

    Args:
        folder: not existing; the database and its snapshots live below it until `close`.
        name: distinct from all other instances of the attempt.
        groups: the key groups of this database.
        engine: see `StateBackend`.
    """

    def __init__(
        self, folder: str, name: str, groups: range, sizes: RocksSizes, *, engine: Any = None
    ) -> None:
        self.layers: tuple[Layer, ...] = ()
        self._folder = folder
        self._name = name
        self._groups = groups
        self._sizes = sizes
        self._engine = engine or rocks_files
        self._spaces: dict[str, Space] = {}
        self._row_spaces: dict[str, RowSpace] = {}
        self._shares: Sequence[Share] = [Share(groups)]
        self._parts: Parts | None = None
        self._opening = threading.Lock()
        #: Guards changes of the database and links to its files; the owner thread never takes it.
        self._lock = threading.Lock()
        self._staged: dict[str, Writes] = {}
        self._staged_rows: dict[str, Sequence[ChangedRows]] = {}
        #: By state. The subtask's thread alone.
        self._recent: dict[str, Recent] = {}
        #: Applied layers that the owner thread has forgotten, and old joins of `recent`; see
        #: `_give_back`.
        self._over: deque[Layer] = deque()
        self._outdated: list[Recent] = []
        self._committed = 0
        self._applied = 0
        #: Snapshots not yet linked, in order. Replaced, never changed; by the owner thread, and
        #: under the lock.
        self._frozen: tuple[_Frozen, ...] = ()
        #: Snapshots whose folder exists.
        self._linked: list[_Frozen] = []
        self._folders = 0

    # --- the owner thread -------------------------------------------------------------------------

    def commit(self) -> None:
        """Turn staged writes into a layer, while no call runs.

        Forgets layers that were applied, not before.
        """
        applied = self._applied
        if self.layers and self.layers[0].number <= applied:
            self._over.extend(layer for layer in self.layers if layer.number <= applied)
            self.layers = tuple(layer for layer in self.layers if layer.number > applied)
        if self._staged or self._staged_rows:
            self._committed += 1
            entries = sum(map(len, self._staged.values()))
            entries += sum(len(c.slots) for some in self._staged_rows.values() for c in some)
            layer = Layer(self._committed, self._staged, self._staged_rows, entries)
            self.layers = (*self.layers, layer)
            self._staged, self._staged_rows = {}, {}

    def snapshot(self) -> DatabaseSnapshot:
        """Freeze committed state, also while a call runs."""
        frozen = _Frozen(self._committed)
        self._frozen = (*(f for f in self._frozen if f.folders is None and not f.released), frozen)
        first, *others = [self._part(frozen, at) for at in range(len(self._shares))]
        return replace(first, others=tuple(others))

    # --- the subtask's thread ---------------------------------------------------------------------

    def add(self, space: Space) -> None:
        """A state is kept here. Before the first call."""
        self._spaces[space.layout.name] = space

    def add_rows(self, space: RowSpace) -> None:
        """Rows of this state stay at hand. Before the first call."""
        self._row_spaces[space.layout.name] = space

    def stage(self, state: str, writes: Writes) -> None:
        """Add writes to the next layer; never change them again.

        Also from the owner thread, just before `commit`.
        """
        assert state not in self._staged, f"state {state!r} is staged twice"
        if writes:
            self._staged[state] = writes

    def stage_rows(self, state: str, changed: Sequence[ChangedRows]) -> None:
        """Add changed rows to the next layer, as `stage` does."""
        assert state not in self._staged_rows, f"state {state!r} is staged twice"
        if changed:
            self._staged_rows[state] = changed

    def settle(self, *, at_once: bool = False) -> None:
        """Apply layers before a call.

        All layers, unless a snapshot waits for its files and few layers have piled up, or all rows
        stay at hand and few layers wait; `at_once`: for the first reason alone.
        """
        self._give_back()
        if not self.layers:
            return
        entries = sum(layer.entries for layer in self.layers)
        is_few = entries < _WAITING_ENTRIES_MAX and len(self.layers) < _WAITING_LAYERS_MAX
        if is_few and not at_once and not self._spaces:
            return
        many = entries > _LAYERED_ENTRIES_MAX
        # The thread that makes a snapshot's files also flushes: work goes on meanwhile.
        if not self._lock.acquire(blocking=many):
            return
        try:
            self._sweep()
            if many and self._pending():
                self._link_up_to(None)
            self._apply(self._limit())
        finally:
            self._lock.release()

    def recent(self, state: str) -> Writes:
        """Return a state's latest writes by key, from layers that the database may lack.

        These writes override the results of `get_many`. Valid until the next `settle`.
        """
        # Before reading layers: a layer applied meanwhile is then found twice, not never.
        applied = self._applied
        layers = [layer for layer in self.layers if layer.number > applied]
        if not layers:
            if self._recent:
                self._outdated += self._recent.values()
                self._recent = {}
            return _NOTHING
        found = self._recent.get(state)
        if (
            found is None
            or found.last + 1 < layers[0].number
            or found.entries > 2 * _LAYERED_ENTRIES_MAX
        ):
            # What it says of a key may be older than the database.
            if found is not None:
                self._outdated.append(found)
            found = self._recent[state] = Recent()
        for layer in layers:
            if layer.number > found.last:
                found.add(layer.number, layer.writes.get(state, _NOTHING))
        return found

    def _give_back(self) -> None:
        """Free old layers bit by bit, outside the owner thread.

        Freeing much at once holds the GIL for milliseconds.
        """
        while self._over:
            self._over.popleft()
        while self._outdated:
            joined = self._outdated.pop()
            while joined.pieces:
                joined.pieces.pop()

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """Read stored keys, sorted keys fastest; see `recent`."""
        found: list[bytes | None] = []
        for first in range(0, len(keys), _PIECE_ENTRIES):
            found += self._open().get_many(keys[first : first + _PIECE_ENTRIES])
        return found

    def scan(self) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield all committed entries."""
        self.settle_all()
        yield from self._open().scan()

    @property
    def layouts(self) -> tuple[StateLayout, ...]:
        """The layouts of this database's states."""
        spaces: list[Space | RowSpace] = [*self._spaces.values(), *self._row_spaces.values()]
        return tuple(space.layout for space in spaces)

    @property
    def groups(self) -> range:
        """The key groups of this database."""
        return self._groups

    @property
    def is_settled(self) -> bool:
        """All committed layers are applied."""
        return self._applied == self._committed

    def cursor(self) -> Cursor:
        """Make a cursor over all committed entries, in order, blind to later writes."""
        self.settle_all()
        return self._open().cursor()

    def settle_all(self) -> None:
        """Apply all committed layers, and make the files of snapshots before."""
        if not self.is_settled:
            with self._lock:
                self._link_up_to(None)
                self._apply(self._committed)

    def is_merging(self) -> bool:
        """Whether files are being merged, or written, in the background."""
        return self._open().is_merging()

    def load(self, entries: Iterable[Entry]) -> None:
        """Write restored entries, as committed entries. Before the first call."""
        with self._lock:
            self._open().write(entries)

    def restore(self, databases: Sequence[RestoredDatabase]) -> None:
        """Begin with the entries of these databases for our key groups.

        Takes each database over, unless there are too many.

        Raises: as `RestoredDatabase.fetch`.
        """
        assert self._parts is None, "restored after it was used"
        self._shares = shares_of(databases, self._groups)
        self._open()

    def close(self) -> None:
        """Release everything and delete the files. Storage threads that still read files fail."""
        with self._lock:
            if self._parts is not None:
                self._parts.close()
            self._frozen = ()
            shutil.rmtree(self._folder, ignore_errors=True)

    # --- any thread, under the lock ---------------------------------------------------------------

    def _files(self, frozen: _Frozen, part: int) -> DatabaseFiles:
        """Link the snapshot's files, unless already linked."""
        with self._lock:
            self._sweep()
            if frozen.folders is None:
                assert not frozen.released, "files of a snapshot that was released"
                self._link_up_to(frozen)
            folders = frozen.folders
        if folders is None:
            raise FileNotFoundError("the database was closed before its files were linked")
        return DatabaseFiles(folders[part], *self._engine.files_of(folders[part]))

    def _release(self, frozen: _Frozen) -> None:
        """Release a snapshot without readers.

        Its folder goes later: this may be the owner thread.
        """
        frozen.released = True

    def _sweep(self) -> None:
        for frozen in [f for f in self._linked if f.released]:
            self._linked.remove(frozen)
            for folder in frozen.folders or ():
                shutil.rmtree(folder, ignore_errors=True)

    def _link_up_to(self, last: _Frozen | None) -> None:
        """Link pending snapshots in order, up to `last` (None: all).

        An earlier snapshot's files must lack a later snapshot's layers.
        """
        for frozen in self._pending():
            self._apply(frozen.layer)
            self._folders += 1
            folder = self._path(f"snapshot-{self._folders}")
            frozen.folders = self._open().checkpoint(folder)
            self._linked.append(frozen)
            if frozen is last:
                return

    def _pending(self) -> list[_Frozen]:
        return [f for f in self._frozen if f.folders is None and not f.released]

    def _limit(self) -> int:
        return min((frozen.layer for frozen in self._pending()), default=self._committed)

    def _apply(self, limit: int) -> None:
        # Taken out one by one: a free of all at the end would hold the GIL, see `_give_back`.
        waiting = deque(layer for layer in self.layers if self._applied < layer.number <= limit)
        changed: dict[str, list[ChangedRows]] = {}
        number = self._applied
        while waiting:
            layer = waiting.popleft()
            for state, writes in layer.writes.items():
                for some in _pieces(writes):
                    # Sorted entries enter RocksDB's memory two to three times as fast.
                    entries = sorted(self._spaces[state].entries(some), key=itemgetter(0))
                    self._open().write(entries)
            for state, changes in layer.changed.items():
                changed.setdefault(state, []).extend(changes)
            number = layer.number
        for state, changes in changed.items():
            for piece in self._row_spaces[state].pieces(changes):
                self._open().write(piece)
        self._applied = number

    # --- helpers ----------------------------------------------------------------------------------

    def _open(self) -> Parts:
        if self._parts is None:
            with self._opening:
                if self._parts is None:
                    # Not its parent, which is gone when the worker has ended: no folder may appear
                    # after that.
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(self._folder)
                    self._parts = Parts(self._folder, self._shares, self._sizes, self._engine)
        return self._parts

    def _part(self, frozen: _Frozen, at: int) -> DatabaseSnapshot:
        share = self._shares[at]
        return DatabaseSnapshot(
            database=f"{self._name}+{at}" if at else self._name,
            groups=share.groups,
            layouts=self.layouts,
            known=share.known,
            files=lambda: self._files(frozen, at),
            release=lambda: self._release(frozen),
        )

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)


def _pieces(writes: Writes) -> Iterator[Writes]:
    if len(writes) <= _PIECE_ENTRIES:
        yield writes
        return
    left = iter(writes.items())
    while some := dict(islice(left, _PIECE_ENTRIES)):
        yield some
