"""A database in a folder: writes wait outside RocksDB, ranges are cut exactly, and a copy opens
without what was left out.
"""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.state.rocks import files as rocks_files
from headrace.engine.state.rocks.files import (
    RocksSizes,
    checkpoint,
    copy_groups,
    files_of,
    keep_only,
    open_database,
    scan,
    write,
)

from ...operators.rocks_cases import SMALL


def key(group: int, number: int = 0) -> bytes:
    return group.to_bytes(2, "big") + number.to_bytes(4, "big")


def groups_in(database: Any) -> list[int]:
    found = scan(database, range(1 << 15))
    return [int.from_bytes(k[:2], "big") for entries in found for k, _ in entries]


def test_writes_are_in_order_and_none_deletes(tmp_path: Path) -> None:
    database = open_database(str(tmp_path), SMALL)
    entries: list[rocks_files.Entry] = [(key(1, n), b"%d" % n) for n in range(2500)]
    assert write(database, [*entries, (key(1, 7), b"again"), (key(1, 8), None)]) == 2502
    assert database.get([key(1, 7), key(1, 8), key(1, 9)]) == [b"again", None, b"9"]
    assert write(database, []) == 0
    database.close()


def test_a_scan_is_cut_at_key_groups(tmp_path: Path) -> None:
    database = open_database(str(tmp_path), SMALL)
    write(database, ((key(group), b"") for group in (0, 3, 4, 255, 256, 32767)))
    assert [k for entries in scan(database, range(3, 256)) for k, _ in entries] == [
        key(3),
        key(4),
        key(255),
    ]
    keep_only(database, range(4, 257))
    assert groups_in(database) == [4, 255, 256]
    database.close()


def test_key_groups_are_copied_to_another_database(tmp_path: Path) -> None:
    source = open_database(str(tmp_path / "source"), SMALL)
    target = open_database(str(tmp_path / "target"), SMALL)
    write(source, ((key(group), b"") for group in range(10)))
    write(target, [(key(20), b"")])
    copy_groups(source, target, range(2, 5))
    assert groups_in(target) == [2, 3, 4, 20]
    source.close()
    target.close()


def test_a_copy_opens_without_logs_and_locks(tmp_path: Path) -> None:
    database = open_database(str(tmp_path / "db"), SMALL)
    write(database, [(key(1), b"kept")])
    checkpoint(database, str(tmp_path / "copy"))
    write(database, [(key(2), b"later")])
    database.close()
    immutable, other = files_of(str(tmp_path / "copy"))
    assert len(immutable) == 1
    (tmp_path / "restored").mkdir()
    for name in (*immutable, *other):
        assert not name.endswith(".log")
        shutil.copyfile(tmp_path / "copy" / name, tmp_path / "restored" / name)
    again = open_database(str(tmp_path / "restored"), SMALL)
    assert groups_in(again) == [1]
    again.close()


def at_rest(database: Any) -> None:
    """Wait until nothing is being merged, as between the checkpoints of a job."""
    deadline = time.monotonic() + 60
    calm = 0
    while calm < 3:
        assert time.monotonic() < deadline
        calm = 0 if rocks_files.is_merging(database) else calm + 1
        time.sleep(0.001)


def test_less_than_three_bytes_are_new_for_each_that_changed(tmp_path: Path) -> None:
    """Over a whole cycle, from one merge with the largest run to the next and beyond it; space
    and runs stay bounded.
    """
    rng = random.Random(1)
    keys, changed, checkpoints, value_bytes = 40_000, 400, 200, 94
    database = open_database(str(tmp_path), RocksSizes(1 << 24, 1 << 20))
    everything = [key(n % 128, n) for n in range(keys)]
    write(database, ((k, rng.randbytes(value_bytes)) for k in sorted(everything)))
    database.flush(True)
    known = tables_of(database)
    full = sum(known.values())
    written = 0
    for _ in range(checkpoints):
        some = sorted(rng.sample(everything, changed))
        write(database, ((k, rng.randbytes(value_bytes)) for k in some))
        database.flush(True)
        now = tables_of(database)
        written += sum(size for name, size in now.items() if name not in known)
        assert sum(now.values()) < 3.2 * full
        assert len(now) <= 2 * rocks_files._SORTED_RUNS_MAX
        known = now
        at_rest(database)
    database.close()
    assert written > full, "the largest run was merged at least once"
    assert written < 3 * checkpoints * changed * (len(key(1)) + value_bytes)


def tables_of(database: Any) -> dict[str, int]:
    return {file["name"]: file["size"] for file in database.live_files()}


class Refused(Exception):
    """rocksdict raises a plain Exception; only its text tells."""


class Stalling:
    """Refuses twice, as RocksDB does when a write would have to wait."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.refused = 0
        self.written = 0

    def write(self, batch: Any, options: Any) -> None:
        assert options.no_slowdown
        if self.refused < 2:
            self.refused += 1
            raise Refused(self.message)
        self.written += batch.len()


def test_a_write_that_would_stall_waits_here_where_others_can_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("time.sleep", pauses.append)
    database: Any = Stalling("Result incomplete: Write stall")
    write(database, [(key(1), b"")])
    assert database.written == 1
    assert len(pauses) == 2


def test_any_other_refusal_is_an_error() -> None:
    database: Any = Stalling("IO error: No space left on device")
    with pytest.raises(Refused, match="No space"):
        write(database, [(key(1), b"")])
    assert database.refused == 1
