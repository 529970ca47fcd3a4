"""Links of an open database: what RocksDB's manifest names, whatever compactions do meanwhile,
or nothing at all.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Checkpoint

from headrace.engine.state.rocks import files as rocks_files
from headrace.engine.state.rocks import links as rocks_links
from headrace.engine.state.rocks.files import RocksSizes, open_database, write
from headrace.engine.state.rocks.links import Unknown, link_database, live_tables

SMALL = RocksSizes(1 << 16, 1 << 20)


def key(number: int) -> bytes:
    return b"\0\1" + number.to_bytes(4, "big")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Any]:
    opened = open_database(str(tmp_path / "db"), SMALL)
    yield opened
    opened.close()


def changed(database: Any, rounds: int) -> None:
    for round_ in range(rounds):
        write(database, ((key(n), os.urandom(20)) for n in range(round_, 3000, 3)))
        database.flush(True)


def entries(folder: Path) -> Any:
    opened = open_database(str(folder), SMALL, read_only=True)
    found = dict(opened.items())
    opened.close()
    return found


def tables_of(database: Any) -> set[str]:
    return {os.path.basename(file["name"]) for file in database.live_files()}


def test_a_copy_holds_what_the_database_does_while_compactions_run(
    database: Any, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    for _ in range(40):
        changed(database, 3)
        assert link_database(str(tmp_path / "db"), str(copy))
        assert entries(copy) == dict(database.items())
        opened = open_database(str(copy), SMALL, read_only=True)
        assert {path.name for path in copy.glob("*.sst")} == tables_of(opened)
        opened.close()
        shutil.rmtree(copy)


def test_the_manifest_says_what_the_database_says(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(database, 9)
    database.compact_range(None, None)
    (manifest,) = (tmp_path / "db").glob("MANIFEST-*")
    numbers, end = live_tables(manifest.read_bytes())
    assert {f"{number:06}.sst" for number in numbers} == tables_of(database)
    assert end == manifest.stat().st_size


def test_what_is_being_written_at_the_end_of_the_manifest_is_left_out(
    database: Any, tmp_path: Path
) -> None:
    changed(database, 2)
    (manifest,) = (tmp_path / "db").glob("MANIFEST-*")
    whole = manifest.read_bytes()
    numbers, _ = live_tables(whole)
    changed(database, 1)
    longer = manifest.read_bytes()
    cuts = range(len(whole), len(longer) + 1)
    ends = [live_tables(longer[:cut])[1] for cut in cuts]
    assert all(end <= cut for end, cut in zip(ends, cuts, strict=True))
    assert len(set(ends)) < len(ends) / 20, "few records, each taken whole"
    assert (ends[0], ends[-1]) == (len(whole), len(longer))
    assert live_tables(longer[: len(whole) + 1]) == (numbers, len(whole))
    assert live_tables(longer)[0] > numbers


def test_a_manifest_longer_than_a_block_is_read(tmp_path: Path) -> None:
    fields = bytes([1, 100]) + b"c" * 100 + bytes([103, 0, 7, 1, 0, 0, 0, 0, 1])
    records = [fields] * 600
    manifest, at = bytearray(), 0
    for record in records:
        left = record
        first = True
        while first or left:
            room = (1 << 15) - at % (1 << 15)
            if room < 7:
                manifest += bytes(room)
                at += room
                continue
            part, left = left[: room - 7], left[room - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}
            header = bytes(4) + len(part).to_bytes(2, "little") + bytes([kind[first, not left]])
            manifest += header + part
            at += 7 + len(part)
            first = False
    assert live_tables(bytes(manifest)) == ({7}, len(manifest))


@pytest.mark.parametrize(
    "edit",
    [
        bytes([200, 1, 1]),  # another column family
        bytes([103, 0, 7, 1, 0, 0, 0, 0, 65, 1, 1, 1]),  # a file in another place
        bytes([7, 0, 7]),  # an older kind of file
        bytes([1, 100]),  # cut off
        bytes([2]),
    ],
)
def test_what_is_not_known_is_refused(edit: bytes) -> None:
    record = bytes(4) + len(edit).to_bytes(2, "little") + b"\1" + edit
    with pytest.raises(Unknown):
        live_tables(record)


def test_a_part_without_its_first_is_refused() -> None:
    with pytest.raises(Unknown, match="kind 4"):
        live_tables(bytes(4) + b"\1\0\4x")


def test_rocksdb_makes_the_copy_if_its_manifest_is_not_understood(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(manifest: bytes) -> None:
        raise Unknown("made up")

    changed(database, 2)
    monkeypatch.setattr(rocks_links, "live_tables", refuse)
    rocks_files.checkpoint(database, str(tmp_path / "copy"))
    assert entries(tmp_path / "copy") == dict(database.items())


def test_rocksdb_is_not_asked_otherwise(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpoint, "create_checkpoint", None, raising=False)
    changed(database, 2)
    rocks_files.checkpoint(database, str(tmp_path / "copy"))
    assert entries(tmp_path / "copy") == dict(database.items())


def test_tables_that_vanish_are_looked_for_again_and_nothing_is_left_after_the_last_try(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(database, 2)
    real, refusals = rocks_links._link, [3]

    def link(source: str, folder: str, name: str) -> bool:
        if name.endswith(".sst") and refusals[0]:
            refusals[0] -= 1
            return False
        return real(source, folder, name)

    monkeypatch.setattr(rocks_links, "_link", link)
    assert link_database(str(tmp_path / "db"), str(tmp_path / "copy"))
    assert refusals == [0]
    refusals[0] = 1000
    assert not link_database(str(tmp_path / "db"), str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_an_error_leaves_no_folder(
    database: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> bool:
        raise OSError(28, "No space left on device")

    changed(database, 1)
    monkeypatch.setattr(rocks_links, "_link", full)
    with pytest.raises(OSError, match="No space"):
        link_database(str(tmp_path / "db"), str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()
