"""Shared files through checkpoints that overlap, are given up, subsumed and deleted, and attempts
that crash: from seeds, in memory.

One worker's database is a dictionary of immutable files, whose names come again after a restore as
RocksDB's may. What stores them, counts them and deletes them is the real code. After every step
each retained checkpoint must hold exactly what was frozen for it. Mutants that break a rule on
purpose must be found.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from msgspec.structs import replace

from headrace.engine.contract.operators import DatabaseFiles, DatabaseSnapshot, StateLayout
from headrace.engine.simulation.memory_store import MemoryStore
from headrace.engine.storage import databases
from headrace.engine.storage.databases import Destination, StoredFiles, write_databases
from headrace.inflight.segment import SegmentBuilder
from headrace.recovery import catalog, registry
from headrace.recovery.handles import DatabaseHandle, SharedFile
from headrace.recovery.layout import handle_path, segment_path
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot, TaskInfo
from headrace.recovery.registry import Deletable, SharedStateRegistry, references
from headrace.recovery.store import Content, StoreRejected

SEEDS = 80
STEPS = 60
LAYOUT = StateLayout("s", 1, pa.schema([("k", pa.int64()), ("v", pa.int64())]))

#: {folder: {name: content}}, in place of a disk.
FOLDERS: dict[str, dict[str, bytes]] = {}
#: For the mutant that goes by names: what was stored in this world.
SEEN: dict[str, SharedFile] = {}


@pytest.fixture(autouse=True)
def no_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(databases, "_content", lambda folder, name: FOLDERS[folder][name])
    yield
    FOLDERS.clear()


@dataclass
class UnderWay:
    """A checkpoint that was triggered: what was frozen, by which attempt, and its handle once it is
    stored.
    """

    frozen: dict[str, bytes]
    epoch: int
    stored: StoredFiles
    snapshot: DatabaseSnapshot
    full: bool
    handle: DatabaseHandle | None = None


class Refusing(MemoryStore):
    """Refuses writes after the next `puts_left`; None: none."""

    puts_left: int | None = None

    def put(self, path: str, data: Content) -> None:
        if self.puts_left is not None:
            if not self.puts_left:
                raise StoreRejected(path, "no space left on the device")
            self.puts_left -= 1
        super().put(path, data)


@dataclass
class World:
    rng: random.Random
    retained: int
    store: Refusing = field(default_factory=lambda: Refusing())
    registry: SharedStateRegistry = field(default_factory=SharedStateRegistry)
    stored: StoredFiles = field(default_factory=StoredFiles)
    known: dict[str, SharedFile] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    file_number: int = 0
    epoch: int = 1
    number: int = 0
    under_way: dict[int, UnderWay] = field(default_factory=dict)
    #: Stored by attempts and for checkpoints that nobody waits for any more.
    late: list[tuple[int, UnderWay]] = field(default_factory=list)
    #: Checkpoints for which something was stored after they were given up.
    zombies: set[int] = field(default_factory=set)
    complete: dict[int, tuple[DatabaseHandle, dict[str, bytes]]] = field(default_factory=dict)

    def step(self) -> None:
        choice = self.rng.choice(
            (
                *(self.flush, self.compact, self.put_late, self.trigger, self.trigger),
                *(self.trigger, self.put, self.put, self.put, self.put, self.finish, self.finish),
                *([self.give_up, self.crash, self.collect] if self.rng.random() < 0.3 else ()),
            )
        )
        choice()

    def flush(self) -> None:
        self.file_number += 1
        # Of one size, so that nothing but the content tells files apart.
        self.files[f"{self.file_number:06}.sst"] = self.rng.randbytes(4)

    def compact(self) -> None:
        for name in self.rng.sample(sorted(self.files), k=len(self.files) // 2):
            del self.files[name]
        self.flush()

    def trigger(self) -> None:
        if len(self.under_way) == 3:
            return
        self.number += 1
        self.registry.begin(self.number)
        folder = f"snapshot-{self.number}"
        FOLDERS[folder] = dict(self.files)
        snapshot = DatabaseSnapshot(
            "db",
            range(8),
            [LAYOUT],
            self.known,
            lambda: DatabaseFiles(folder, sorted(FOLDERS[folder]), []),
            lambda: None,
        )
        full = self.rng.random() < 0.1
        self.under_way[self.number] = UnderWay(
            dict(self.files), self.epoch, self.stored, snapshot, full
        )

    def put(self) -> None:
        waiting = [n for n, u in self.under_way.items() if u.handle is None]
        if waiting:
            number = self.rng.choice(waiting)
            if self.rng.random() < 0.2:
                self.store.puts_left = self.rng.randrange(4)
            with contextlib.suppress(StoreRejected):
                self.under_way[number].handle = self._write(number, self.under_way[number])
            self.store.puts_left = None

    def put_late(self) -> None:
        """An upload goes on after its checkpoint was given up, or its attempt is over."""
        if self.late:
            number, under_way = self.late.pop(self.rng.randrange(len(self.late)))
            if under_way.handle is None:
                self.zombies.add(number)
                self._write(number, under_way)

    def _write(self, number: int, under_way: UnderWay) -> DatabaseHandle:
        to = Destination(self.store, "job", number, 0, under_way.epoch, full=under_way.full)
        path = handle_path("job", segment_path("job", number, 0, under_way.epoch))
        segment = SegmentBuilder()
        handles, files = write_databases(
            to, segment, path, {0: [("op", under_way.snapshot)]}, under_way.stored
        )
        self.store.put(f"job/{path}", b"".join(segment.parts()))
        under_way.stored.stored(number, files)
        return handles[0][0]

    def finish(self) -> None:
        ready = [n for n, u in self.under_way.items() if u.handle is not None]
        if not ready:
            return
        number = min(ready) if self.rng.random() < 0.7 else self.rng.choice(ready)
        done = self.under_way.pop(number)
        assert done.handle is not None
        metadata = metadata_of(number, done.handle)
        catalog.publish(self.store, metadata)
        self.registry.complete(number, references(metadata))
        self.complete[number] = (done.handle, done.frozen)
        for older in [n for n in self.under_way if n < number]:
            self._give_up(older)
        self.stored.confirmed(number)
        for old in sorted(self.complete)[: -self.retained]:
            del self.complete[old]
            self.registry.let_go(old)
        # As the coordinator does.
        self.collect()

    def give_up(self) -> None:
        if self.under_way:
            self._give_up(self.rng.choice(sorted(self.under_way)))

    def _give_up(self, number: int) -> None:
        self.late.append((number, self.under_way.pop(number)))
        self.registry.give_up(number)

    def collect(self) -> None:
        gone = self.registry.collect()
        for number in gone:
            catalog.withdraw(self.store, "job", number)
        self.registry.withdrawn(gone, gone)
        what = self.registry.deletable()
        for number in what.checkpoints:
            catalog.delete_written(self.store, "job", number, what.keep)
        for path in what.files:
            catalog.delete_file(self.store, "job", path)
        self.registry.deleted(Deletable())

    def crash(self) -> None:
        """The attempt is over; the next one begins with the newest complete checkpoint, and counts
        files on from there.
        """
        for number in sorted(self.under_way):
            self._give_up(number)
        self.epoch += 1
        self.stored, self.known, self.files, self.file_number = StoredFiles(), {}, {}, 0
        if self.complete:
            handle, frozen = self.complete[max(self.complete)]
            self.files = dict(frozen)
            self.known = {file.name: file for file in handle.shared}
            self.file_number = max((int(name[:6]) for name in frozen), default=0)

    def check(self) -> None:
        for number, (handle, frozen) in self.complete.items():
            assert catalog.verify(self.store, "job", number) == []
            found = {f.name: self.store.get(f"job/{f.path}") for f in handle.shared}
            assert found == frozen, f"chk-{number} holds other files than were frozen for it"


def metadata_of(number: int, handle: DatabaseHandle) -> CheckpointMetadata:
    subtask = SubtaskSnapshot(0, 0, False, [], [], [], databases=[handle])
    tasks = [TaskInfo("op", ["op"], ["op"], 1)]
    empty = CheckpointMetadata("job", number, 1, "aligned", False, 0, 0, 8, tasks, [], [], [])
    return replace(empty, subtasks=[subtask])


def run(seed: int) -> World:
    SEEN.clear()
    world = World(random.Random(seed), retained=1 + seed % 2)
    for _ in range(STEPS):
        world.step()
        world.check()
    return world


def test_every_retained_checkpoint_holds_what_was_frozen_for_it() -> None:
    completed = crashed = 0
    for seed in range(SEEDS):
        world = run(seed)
        completed += len(world.complete)
        crashed += world.epoch - 1
    assert completed > SEEDS / 2
    assert crashed > SEEDS


def test_what_nobody_names_goes() -> None:
    """But for what is stored so late that its checkpoint has been deleted already, which nobody
    knows of.
    """
    for seed in range(SEEDS // 3):
        world = run(seed)
        for _ in range(6):
            for action in (world.flush, world.trigger, world.put, world.put, world.put):
                action()
            while world.under_way:
                world.finish()
        assert not world.under_way
        named = {
            f"job/{file.path}" for handle, _ in world.complete.values() for file in handle.shared
        }
        shared = set(world.store.list("job/shared/"))
        assert named <= shared
        owners = {path: int(path.split("/")[2].split("-")[0]) for path in shared - named}
        left_over = {path for path, number in owners.items() if number not in world.zombies}
        assert not left_over, f"seed {seed}"


def by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPARK-43404: a retry takes a file of the same name and size for the same file."""
    stored = StoredFiles.stored

    def remember(
        self: StoredFiles, checkpoint: int, files: dict[str, databases.SharedFiles]
    ) -> None:
        for found in files.values():
            SEEN.update(found)
        stored(self, checkpoint, files)

    monkeypatch.setattr(StoredFiles, "stored", remember)
    monkeypatch.setattr(StoredFiles, "base", lambda self, snapshot: SEEN)


def too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPARK-55892: a file goes although a checkpoint under way is about to name it."""
    monkeypatch.setattr(registry.SharedStateRegistry, "_floor", lambda self: 1 << 60)


def nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint's files go with it, whoever names them."""
    delete = catalog.delete_written
    monkeypatch.setattr(
        catalog, "delete_written", lambda store, job, number, keep: delete(store, job, number)
    )


@pytest.mark.parametrize("mutant", [by_name, too_early, nothing_is_kept])
def test_a_mutant_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with pytest.raises(AssertionError):
        for seed in range(4 * SEEDS):
            run(seed)
