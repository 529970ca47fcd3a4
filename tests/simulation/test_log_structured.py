"""The simulated database behind the engine's own `RocksDatabase`."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from headrace.engine.simulation.campaign.log_structured import LogDatabase, LogStructured
from headrace.engine.simulation.coverage import Coverage
from headrace.engine.state.rocks.files import RocksSizes
from headrace.engine.state.rocks.rows import entries_between

_SIZES = RocksSizes()


class _Never(random.Random):
    """Draws that let nothing happen of itself."""

    def random(self) -> float:
        return 1.0


@pytest.fixture
def engine() -> LogStructured:
    return LogStructured(_Never(), Coverage())


def _key(group: int, name: str) -> bytes:
    return group.to_bytes(2, "big") + name.encode()


def test_what_was_written_last_counts_through_flushes_merges_and_copies(
    engine: LogStructured, tmp_path: Path
) -> None:
    database = engine.open_database(str(tmp_path / "db"), _SIZES)
    model: dict[bytes, bytes] = {}
    rng = random.Random(1)
    for step in range(60):
        key, value = _key(rng.randrange(4), str(rng.randrange(6))), str(step).encode()
        if rng.random() < 0.3:
            engine.write(database, [(key, None)])
            model.pop(key, None)
        else:
            engine.write(database, [(key, value)])
            model[key] = value
        if rng.random() < 0.3:
            database.flush()
        if len(database.names) > 3:
            database.compact(*sorted(rng.sample(range(len(database.names) + 1), 2)))
    engine.checkpoint(database, str(tmp_path / "copy"))
    copy = engine.open_database(str(tmp_path / "copy"), _SIZES)
    for found in (database, copy):
        (entries,) = engine.scan(found, range(4))
        assert dict(entries) == model
        assert found.get(sorted(model)) == [model[key] for key in sorted(model)]


def test_a_copy_keeps_files_that_are_merged_afterwards(
    engine: LogStructured, tmp_path: Path
) -> None:
    database = engine.open_database(str(tmp_path / "db"), _SIZES)
    for group in range(2):
        engine.write(database, [(_key(group, "a"), b"1")])
        database.flush()
    engine.checkpoint(database, str(tmp_path / "copy"))
    database.compact(0, 2)
    assert engine.files_of(str(tmp_path / "copy"))[0] == ["000001.sst", "000002.sst"]
    assert engine.files_of(str(tmp_path / "db"))[0] == ["000003.sst"]


def test_a_number_comes_again_after_a_restore_only(engine: LogStructured, tmp_path: Path) -> None:
    database = engine.open_database(str(tmp_path / "db"), _SIZES)
    engine.write(database, [(_key(0, "a"), b"1")])
    engine.checkpoint(database, str(tmp_path / "copy"))
    names = []
    for value, found in ((b"2", database), (b"3", LogDatabase(str(tmp_path / "copy")))):
        engine.write(found, [(_key(0, "a"), value)])
        found.flush()
        names.append(found.names)
    assert names == [["000001.sst", "000002.sst"]] * 2


def test_other_key_groups_are_dropped_or_copied(engine: LogStructured, tmp_path: Path) -> None:
    source = engine.open_database(str(tmp_path / "source"), _SIZES)
    engine.write(source, [(_key(group, "a"), b"1") for group in range(4)])
    target = engine.open_database(str(tmp_path / "target"), _SIZES)
    engine.copy_groups(source, target, range(1, 3))
    engine.keep_only(source, range(3, 4))
    assert [k for found in engine.scan(target, range(9)) for k, _ in found] == [
        _key(1, "a"),
        _key(2, "a"),
    ]
    assert [k for found in engine.scan(source, range(9)) for k, _ in found] == [_key(3, "a")]
    assert os.listdir(tmp_path / "target") == []


def test_a_cursor_goes_in_order_and_sees_nothing_that_comes_later(
    engine: LogStructured, tmp_path: Path
) -> None:
    database = engine.open_database(str(tmp_path / "db"), _SIZES)
    engine.write(database, [(_key(1, name), name.encode()) for name in "dab"])
    database.flush()
    engine.write(database, [(_key(1, "b"), None), (_key(2, "c"), b"c")])
    cursor = database.iter(None)
    assert not cursor.valid(), "it is nowhere yet"
    engine.write(database, [(_key(1, "c"), b"new"), (_key(1, "d"), None)])
    database.flush()
    database.compact(0, 2)
    found = entries_between(cursor, _key(1, "b"), _key(2, "c"))
    assert list(found) == [(_key(1, "d"), b"d")]
    assert list(entries_between(cursor, _key(2, ""), _key(3, ""))) == [(_key(2, "c"), b"c")]
    later = entries_between(database.iter(None), _key(0, ""), _key(2, ""))
    assert list(later) == [(_key(1, "a"), b"a"), (_key(1, "c"), b"new")]
