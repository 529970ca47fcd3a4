"""Files that were fetched before they are wanted: taken only as they were when they were compared,
whatever happens meanwhile.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from headrace.engine.storage import shared_files
from headrace.engine.storage.ahead import FilesAhead
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.inflight.segment import checksum_of, checksum_of_parts
from headrace.recovery.handles import SharedFile
from headrace.recovery.layout import handle_path, shared_path
from headrace.recovery.store import Store

DATA = random.Random(7).randbytes((1 << 20) + 17)


class Machine:
    """A worker's folders beside a checkpoint directory."""

    def __init__(self, folder: Path, url: str) -> None:
        self.store: Store = FsspecStore(url)
        self.local = folder / "local"
        self.local.mkdir()
        self.database = self.local / "database"
        self.database.mkdir()
        self._stored = folder / "checkpoints"
        numbers = itertools.count()
        self.ahead = FilesAhead(self.store, "job", lambda: str(self.local / f"{next(numbers)}"))

    def stored(self, data: bytes, *, checkpoint: int = 5, name: str = "7.sst") -> SharedFile:
        path = shared_path("job", checkpoint, 0, 1, checksum_of(data))
        self.store.put(path, data)
        return SharedFile(name, handle_path("job", path), len(data), checksum_of(data))

    def place(self, file: SharedFile) -> Path:
        return self._stored / "job" / file.path

    def takes(self, file: SharedFile) -> bool:
        return self.ahead.take(file, str(self.database))

    def fetched(self) -> list[Path]:
        return [path for path in self.local.glob("*/*") if path.parent != self.database]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path, str(tmp_path / "checkpoints"))


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_a_file_is_fetched_and_taken_under_its_databases_name(machine: Machine) -> None:
    file = machine.stored(DATA)
    assert machine.ahead.fetch([file]) == len(DATA)
    assert machine.takes(file)
    assert (machine.database / "7.sst").read_bytes() == DATA
    assert (machine.database / "7.sst").samefile(machine.place(file))


def test_what_storage_removes_meanwhile_is_still_here(machine: Machine) -> None:
    file = machine.stored(DATA)
    machine.ahead.fetch([file])
    machine.store.delete(f"job/{file.path}")
    assert machine.takes(file)
    assert (machine.database / "7.sst").read_bytes() == DATA


def test_two_databases_take_the_same_file_and_two_files_of_one_name(
    machine: Machine, tmp_path: Path
) -> None:
    files = [machine.stored(DATA), machine.stored(DATA[1:], checkpoint=6)]
    assert machine.ahead.fetch(files) == 2 * len(DATA) - 1
    (tmp_path / "local" / "other").mkdir()
    assert machine.takes(files[0])
    for file in files[1:]:
        assert machine.ahead.take(file, str(tmp_path / "local" / "other"))
    assert (machine.database / "7.sst").read_bytes() == DATA
    assert (tmp_path / "local" / "other" / "7.sst").read_bytes() == DATA[1:]


def test_where_links_are_impossible_it_is_copied_and_taken(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = machine.stored(DATA)
    with monkeypatch.context() as patched:

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EXDEV, "another file system")

        patched.setattr(os, "link", refuse)
        assert machine.ahead.fetch([file]) == len(DATA)
    assert machine.takes(file)
    assert (machine.database / "7.sst").read_bytes() == DATA
    assert not (machine.database / "7.sst").samefile(machine.place(file))


def test_an_object_store_is_copied_from_before_it_is_wanted(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "memory://ahead")
    file = machine.stored(DATA)
    assert machine.ahead.fetch([file]) == len(DATA)
    machine.store.delete(f"job/{file.path}")
    assert machine.takes(file)
    assert (machine.database / "7.sst").read_bytes() == DATA


def test_what_is_damaged_or_missing_is_left_to_the_restore(machine: Machine) -> None:
    whole, bad, gone = (machine.stored(DATA[n:], checkpoint=n + 1) for n in range(3))
    machine.place(bad).write_bytes(damaged(DATA[1:]))
    machine.store.delete(f"job/{gone.path}")
    assert machine.ahead.fetch([bad, gone, whole]) == whole.length
    assert not machine.takes(bad)
    assert not machine.takes(gone)
    assert machine.takes(whole)
    assert len(machine.fetched()) == 1, "nothing is left of what was given up"


@pytest.mark.parametrize(
    "data", [damaged(DATA), DATA[:-1], DATA + b"x"], ids=["damaged", "shorter", "longer"]
)
def test_what_is_changed_in_place_after_it_was_compared_is_not_taken(
    machine: Machine, data: bytes
) -> None:
    file = machine.stored(DATA)
    assert machine.ahead.fetch([file]) == len(DATA)
    machine.place(file).write_bytes(data)
    assert not machine.takes(file)
    assert list(machine.database.iterdir()) == []


def test_what_is_changed_in_place_while_it_is_compared_is_not_taken(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = machine.stored(DATA)

    def late(parts: Iterable[memoryview]) -> str:
        found = checksum_of_parts(parts)
        machine.place(file).write_bytes(damaged(DATA))
        return found

    monkeypatch.setattr(shared_files, "checksum_of_parts", late)
    assert machine.ahead.fetch([file]) == len(DATA)
    assert not machine.takes(file)


def test_another_file_of_the_same_path_is_not_taken(machine: Machine) -> None:
    file = machine.stored(DATA)
    machine.ahead.fetch([file])
    assert not machine.takes(SharedFile(file.name, file.path, file.length, "0" * 16))


def test_after_a_stop_nothing_more_is_fetched_and_what_was_is_taken(machine: Machine) -> None:
    first, second = (machine.stored(DATA[n:], checkpoint=n + 1) for n in range(2))
    machine.ahead.fetch([first])
    machine.ahead.stop()
    assert machine.ahead.fetch([second]) == 0
    assert machine.takes(first)
    assert not machine.takes(second)


def test_dropped_it_leaves_nothing_but_what_was_taken(machine: Machine) -> None:
    first, second = (machine.stored(DATA[n:], checkpoint=n + 1) for n in range(2))
    machine.ahead.fetch([first, second])
    assert len(machine.fetched()) == 2
    assert machine.takes(first)
    machine.ahead.drop()
    assert machine.fetched() == []
    assert (machine.database / "7.sst").read_bytes() == DATA
    assert not machine.takes(second)


def test_a_worker_that_has_ended_fetches_nothing(machine: Machine) -> None:
    def ended() -> str:
        raise FileNotFoundError("the worker has ended")

    file = machine.stored(DATA)
    assert FilesAhead(machine.store, "job", ended).fetch([file]) == 0
