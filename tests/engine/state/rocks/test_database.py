"""The database behind the contract: the owner thread never waits, and a snapshot holds what was
committed, no more and no less.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.engine.contract.operators import DatabaseSnapshot, RestoredDatabase, StateLayout
from headrace.engine.state.rocks import database as rocks
from headrace.engine.state.rocks import files as rocks_files
from headrace.engine.state.rocks.database import RocksDatabase, Writes
from headrace.engine.state.rocks.files import Entry, open_database, scan

from ...operators.rocks_cases import SMALL

GROUPS = range(4, 8)


class Raw:
    """A state whose writes are entries already."""

    layout = StateLayout("raw", 1, pa.schema([("k", pa.binary()), ("v", pa.binary())]))

    def entries(self, writes: Writes) -> Iterable[Entry]:
        return writes.items()


def key(number: int, group: int = 5) -> bytes:
    return group.to_bytes(2, "big") + number.to_bytes(4, "big")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[RocksDatabase]:
    made = RocksDatabase(str(tmp_path / "db"), "op/0", GROUPS, SMALL)
    made.add(Raw())
    yield made
    made.close()
    assert not (tmp_path / "db").exists()


def commit(database: RocksDatabase, writes: dict[bytes, bytes | None]) -> None:
    database.stage("raw", writes)
    database.commit()


def held(snapshot: DatabaseSnapshot, groups: range = GROUPS) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for part in (snapshot, *snapshot.others):
        opened = open_database(part.files().folder, SMALL, read_only=True)
        entries = [entry for some in scan(opened, groups) for entry in some]
        opened.close()
        assert all(int.from_bytes(key[:2], "big") in part.groups for key, _ in entries)
        found |= entries
    return found


def test_a_snapshot_holds_what_was_committed_before_it(database: RocksDatabase) -> None:
    commit(database, {key(1): b"a", key(2): b"b"})
    first = database.snapshot()
    commit(database, {key(1): b"c", key(2): None})
    database.settle()
    second = database.snapshot()
    commit(database, {key(3): b"d"})
    database.settle()
    assert held(second) == {key(1): b"c"}
    assert held(first) == {key(1): b"a", key(2): b"b"}
    assert held(database.snapshot()) == {key(1): b"c", key(3): b"d"}


def test_nothing_is_written_by_whoever_commits_or_freezes(
    database: RocksDatabase, tmp_path: Path
) -> None:
    for number in range(3):
        commit(database, {key(number): b"x"})
        database.snapshot()
    assert list(tmp_path.iterdir()) == []


def test_the_owner_thread_does_not_wait_while_files_are_linked(
    database: RocksDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    linking, go_on = threading.Event(), threading.Event()
    link = rocks_files.checkpoint

    def slow(*arguments: object) -> None:
        linking.set()
        assert go_on.wait(60)
        link(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rocks_files, "checkpoint", slow)
    commit(database, {key(1): b"a"})
    first = database.snapshot()
    found: list[dict[bytes, bytes]] = []
    storage = threading.Thread(target=lambda: found.append(held(first)))
    storage.start()
    assert linking.wait(60)
    commit(database, {key(1): b"b"})
    second = database.snapshot()
    second.release()
    commit(database, {key(1): b"c"})
    assert [layer.writes["raw"][key(1)] for layer in database.layers] == [b"b", b"c"]
    assert database.get_many([key(1)]) == [b"a"]
    go_on.set()
    storage.join(60)
    assert found == [{key(1): b"a"}]


def test_layers_are_applied_before_the_next_call_unless_a_snapshot_waits(
    database: RocksDatabase,
) -> None:
    commit(database, {key(1): b"a"})
    database.settle()
    assert database.get_many([key(1), key(9)]) == [b"a", None]
    waiting = database.snapshot()
    commit(database, {key(1): b"b"})
    database.settle()
    assert database.get_many([key(1)]) == [b"a"]
    assert [layer.writes["raw"] for layer in database.layers] == [{key(1): b"b"}]
    waiting.release()
    database.settle()
    assert database.get_many([key(1)]) == [b"b"]


def test_what_waits_comes_before_what_is_stored_the_latest_of_each_key(
    database: RocksDatabase,
) -> None:
    assert database.recent("raw") == {}
    commit(database, {key(1): b"a"})
    assert database.recent("raw") == {key(1): b"a"}
    assert database.recent("other") == {}
    database.settle()
    assert database.layers != (), "forgotten at the next commit"
    assert database.recent("raw") == {}
    waiting = database.snapshot()
    commit(database, {key(1): b"b", key(2): b"b"})
    database.settle()
    assert database.recent("raw") == {key(1): b"b", key(2): b"b"}
    commit(database, {key(1): b"c"})
    database.settle()
    assert database.recent("raw") == {key(1): b"c", key(2): b"b"}
    waiting.release()
    database.settle()
    assert database.recent("raw") == {}


def test_what_waits_is_not_older_than_what_is_stored(database: RocksDatabase) -> None:
    """A layer was applied and forgotten between two looks, while later ones waited."""
    first = database.snapshot()
    commit(database, {key(1): b"a", key(2): b"a"})
    assert database.recent("raw")[key(1)] == b"a"
    commit(database, {key(1): b"b"})
    commit(database, {key(2): b"c"})
    first.release()
    second = database.snapshot()
    commit(database, {key(3): b"d"})
    database.settle()
    database.commit()
    assert [layer.number for layer in database.layers] == [4]
    assert database.recent("raw") == {key(3): b"d"}
    assert database.get_many([key(1), key(2)]) == [b"b", b"c"]
    second.release()


def test_what_waits_is_forgotten_when_it_is_much(
    database: RocksDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Snapshots follow each other so closely that some layer always waits."""
    monkeypatch.setattr(rocks, "_LAYERED_ENTRIES_MAX", 4)
    snapshots = [database.snapshot()]
    for number in range(20):
        commit(database, {key(number): b"a"})
        snapshots.append(database.snapshot())
        snapshots[-2].release()
        commit(database, {key(number): b"b"})
        database.settle()
        assert database.recent("raw")[key(number)] == b"b"
        assert len(database.recent("raw")) <= 9


def test_work_goes_on_while_files_are_flushed_and_linked(
    database: RocksDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the owner thread nor the subtask's waits for a flush."""
    flushing, go_on = threading.Event(), threading.Event()
    make = rocks_files.checkpoint

    def slow(*arguments: object) -> None:
        flushing.set()
        assert go_on.wait(60)
        make(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rocks_files, "checkpoint", slow)
    commit(database, {key(1): b"a"})
    first = database.snapshot()
    found: list[dict[bytes, bytes]] = []
    storage = threading.Thread(target=lambda: found.append(held(first)))
    storage.start()
    assert flushing.wait(60)
    for number in range(10):
        database.settle()
        commit(database, {key(1): b"%d" % number})
        later = database.snapshot()
        later.release()
        assert database.recent("raw") == {key(1): b"%d" % number}
    go_on.set()
    storage.join(60)
    assert found == [{key(1): b"a"}]
    database.settle()
    assert database.recent("raw") == {}
    assert database.get_many([key(1)]) == [b"9"]


def test_too_many_layers_are_not_kept_for_a_snapshot_that_nobody_stores(
    database: RocksDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocks, "_LAYERED_ENTRIES_MAX", 2)
    commit(database, {key(1): b"a"})
    waiting = database.snapshot()
    commit(database, {key(n): b"b" for n in range(3)})
    database.settle()
    database.commit()
    assert database.layers == ()
    assert held(waiting) == {key(1): b"a"}


class Referable(dict[bytes, bytes | None]):
    """Whose end can be noticed."""


def test_what_the_owner_thread_forgets_is_given_back_before_the_next_call(
    database: RocksDatabase,
) -> None:
    writes = Referable({key(1): b"a"})
    commit(database, writes)
    lives = weakref.ref(writes)
    del writes
    database.settle()
    commit(database, {key(2): b"b"})
    assert database.get_many([key(1)]) == [b"a"]
    assert lives() is not None, "not by the owner thread, which has forgotten it"
    database.settle()
    assert lives() is None


def test_joined_writes_that_are_outdated_are_given_back_before_the_next_call(
    database: RocksDatabase,
) -> None:
    value = bytes(100)
    held_here = sys.getrefcount(value)
    waiting = database.snapshot()
    commit(database, {key(1): value})
    assert database.recent("raw") == {key(1): value}
    waiting.release()
    database.settle()
    commit(database, {})
    assert database.recent("raw") == {}
    assert sys.getrefcount(value) > held_here
    database.settle()
    assert sys.getrefcount(value) == held_here


def test_many_writes_and_reads_are_made_some_at_a_time(
    database: RocksDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocks, "_PIECE_ENTRIES", 2)
    seen: list[int] = []

    def entries(self: Raw, writes: Writes) -> Iterable[Entry]:
        seen.append(len(writes))
        return writes.items()

    monkeypatch.setattr(Raw, "entries", entries)
    keys = [key(number) for number in range(5)]
    commit(database, dict(zip(keys, [b"a", b"b", b"c", b"d", b"e"], strict=True)))
    database.settle()
    assert seen == [2, 2, 1]
    assert database.get_many(keys) == [b"a", b"b", b"c", b"d", b"e"]
    assert database.get_many([]) == []


def test_a_snapshot_that_is_released_leaves_no_files(
    database: RocksDatabase, tmp_path: Path
) -> None:
    commit(database, {key(1): b"a"})
    for _ in range(3):
        snapshot = database.snapshot()
        assert held(snapshot) == {key(1): b"a"}
        snapshot.release()
    assert len(list((tmp_path / "db").iterdir())) == 2, "the database and the last snapshot"
    commit(database, {key(1): b"b"})
    database.settle()
    assert [path.name for path in (tmp_path / "db").iterdir()] == ["db"]


def test_a_failed_linking_fails_one_snapshot_only(
    database: RocksDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    commit(database, {key(1): b"a"})
    snapshot = database.snapshot()
    with monkeypatch.context() as patch:
        patch.setattr(rocks_files, "checkpoint", full)
        with pytest.raises(OSError, match="No space"):
            snapshot.files()
    snapshot.release()
    commit(database, {key(2): b"b"})
    database.settle()
    assert held(database.snapshot()) == {key(1): b"a", key(2): b"b"}


def test_files_of_the_same_name_are_the_same_within_a_database(database: RocksDatabase) -> None:
    commit(database, {key(1): b"a"})
    first = database.snapshot().files()
    commit(database, {key(2): b"b"})
    second = database.snapshot().files()
    assert set(first.immutable) < set(second.immutable)
    for name in first.immutable:
        assert (Path(first.folder) / name).samefile(Path(second.folder) / name)
    assert {"CURRENT"} < set(second.other)


def test_a_scan_sees_all_that_is_committed(database: RocksDatabase) -> None:
    commit(database, {key(n): b"a" for n in range(5000)})
    waiting = database.snapshot()
    commit(database, {key(0): b"b", key(1): None})
    entries = [entry for some in database.scan() for entry in some]
    assert len(entries) == 4999
    assert entries[0] == (key(0), b"b")
    assert len(held(waiting)) == 5000


def restorable(folder: Path, groups: range, entries: dict[bytes, bytes]) -> RestoredDatabase:
    def fetch(target: str) -> None:
        made = open_database(target, SMALL)
        rocks_files.write(made, entries.items())
        made.flush(True)
        made.close()

    return RestoredDatabase(groups, [Raw.layout], len(entries), {}, fetch, list)


@pytest.mark.parametrize("ranges", [[(4, 8)], [(5, 6)], [(0, 16)], [(0, 5), (5, 7), (7, 16)]])
def test_it_begins_with_its_own_key_groups_only(
    tmp_path: Path, database: RocksDatabase, ranges: list[tuple[int, int]]
) -> None:
    expected: dict[bytes, bytes] = {}
    databases = []
    for bounds in ranges:
        entries = {key(n, group): b"v" for group in range(*bounds) for n in range(3)}
        expected |= {k: v for k, v in entries.items() if k[1] in GROUPS}
        databases.append(restorable(tmp_path, range(*bounds), entries))
    database.restore(databases)
    snapshot = database.snapshot()
    assert held(snapshot, range(16)) == expected
