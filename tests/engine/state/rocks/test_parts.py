"""Several databases that share out the key groups: nothing is copied, every key is in one of
them, and they look like one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.contract.operators import RestoredDatabase
from headrace.engine.state.rocks import files as rocks_files
from headrace.engine.state.rocks import parts as rocks_parts
from headrace.engine.state.rocks.files import open_database
from headrace.engine.state.rocks.parts import Parts, Share, common, shares_of

from ...operators.rocks_cases import SMALL

GROUPS = range(4, 10)

Making = Callable[..., Parts]


def key(group: int, number: int = 0) -> bytes:
    return group.to_bytes(2, "big") + number.to_bytes(4, "big")


def stored(groups: range, *, size: int = 1000, per_group: int = 3) -> RestoredDatabase:
    """A database with some entries of each key group, whose values tell where they come from."""

    def fetch(target: str) -> None:
        made = open_database(target, SMALL)
        entries = [(key(g, n), b"%d" % groups.start) for g in groups for n in range(per_group)]
        rocks_files.write(made, entries)
        made.flush(True)
        made.close()

    return RestoredDatabase(groups, [], size, {}, fetch, list)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Making]:
    made: list[Parts] = []

    def make(*databases: RestoredDatabase, engine: Any = rocks_files) -> Parts:
        folder = tmp_path / f"parts-{len(made)}"
        folder.mkdir()
        made.append(Parts(str(folder), shares_of(databases, GROUPS), SMALL, engine))
        return made[-1]

    yield make
    for parts in made:
        parts.close()


def everything(parts: Parts) -> dict[bytes, bytes]:
    found = [entry for some in parts.scan() for entry in some]
    assert found == sorted(found)
    return dict(found)


def walked(parts: Parts, start: bytes) -> list[bytes]:
    cursor = parts.cursor()
    cursor.seek(start)
    found = []
    while cursor.valid():
        found.append(cursor.key())
        assert cursor.value()
        cursor.next()
    cursor.status()
    return found


def two(opened: Making) -> Parts:
    return opened(stored(range(7, 16)), stored(range(7)))


def test_what_several_hold_of_the_range_is_there_without_copying(
    opened: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rocks_files, "copy_groups", None)
    parts = two(opened)
    expected = {key(g, n): b"0" if g < 7 else b"7" for g in GROUPS for n in range(3)}
    assert everything(parts) == expected
    wanted = [key(9, 1), key(4), key(3), key(12), key(7, 2), key(6, 9)]
    assert parts.get_many(wanted) == [b"7", b"0", None, None, b"7", None]


def test_what_is_written_goes_where_its_key_group_is(opened: Making, tmp_path: Path) -> None:
    parts = two(opened)
    parts.write([(key(8), b"new"), (key(5), b"new"), (key(6, 1), None), (key(7), None)])
    assert parts.get_many([key(5), key(6, 1), key(7), key(8)]) == [b"new", None, None, b"new"]
    folders = parts.checkpoint(str(tmp_path / "copy"))
    held = []
    for folder in folders:
        copy = open_database(folder, SMALL, read_only=True)
        held.append({k[1] for some in rocks_files.scan(copy, range(16)) for k, _ in some})
        copy.close()
    assert held == [{4, 5, 6}, {7, 8, 9}]


@pytest.mark.parametrize(
    "start", [key(0), key(4), key(6, 2), key(6, 9), key(7), key(9, 2), key(11)]
)
def test_a_cursor_goes_on_from_one_to_the_next(opened: Making, start: bytes) -> None:
    parts = two(opened)
    assert walked(parts, start) == [k for k in sorted(everything(parts)) if k >= start]


def test_a_cursor_passes_one_that_holds_nothing(opened: Making) -> None:
    parts = opened(stored(range(5)), stored(range(5, 7), per_group=0), stored(range(7, 16)))
    assert [k[1] for k in walked(parts, key(4, 1))] == [4, 4, 7, 7, 7, 8, 8, 8, 9, 9, 9]


def test_a_cursor_that_could_not_read_does_not_pass_on(opened: Making) -> None:
    class Broken:
        def seek(self, key: bytes) -> None: ...

        def valid(self) -> bool:
            return False

        def status(self) -> None:
            raise OSError("a block does not match its checksum")

    joined = rocks_parts._Joined([Broken(), two(opened).cursor()], [key(7)])  # type: ignore[list-item]
    with pytest.raises(OSError, match="block"):
        joined.seek(key(4))


def test_key_groups_that_nobody_held_are_somebodys(opened: Making) -> None:
    parts = opened(stored(range(5, 6)), stored(range(8, 9)))
    parts.write([(key(g, 9), b"new") for g in GROUPS])
    assert [k[1] for k in walked(parts, key(0)) if k[2:] == key(0, 9)[2:]] == list(GROUPS)
    assert len(everything(parts)) == 6 + 3 + 3


def test_of_too_many_the_smallest_are_copied_into_their_neighbours(
    opened: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[range] = []
    copy = rocks_files.copy_groups

    def noted(source: Any, target: Any, groups: range) -> None:
        copied.append(groups)
        copy(source, target, groups)

    monkeypatch.setattr(rocks_files, "copy_groups", noted)
    monkeypatch.setattr(rocks_parts, "PARTS_MAX", 2)
    sizes = [50, 1000, 10, 2000]
    ranges = [range(4), range(4, 5), range(5, 7), range(7, 16)]
    sources = [stored(r, size=s) for r, s in zip(ranges, sizes, strict=True)]
    parts = opened(*sources)
    assert copied == [range(5, 7)]
    expected = {4: b"4", 5: b"5", 6: b"5", 7: b"7", 8: b"7", 9: b"7"}
    assert everything(parts) == {key(g, n): expected[g] for g in GROUPS for n in range(3)}


def test_what_overlaps_is_not_lost(opened: Making) -> None:
    parts = opened(stored(range(6)), stored(range(5, 16)))
    assert {k[1] for k in everything(parts)} == set(GROUPS)


def test_one_that_cannot_be_fetched_leaves_none_open(opened: Making) -> None:
    closed: list[str] = []

    def fail(target: str) -> None:
        raise OSError(28, "No space left on device")

    class Noted(SimpleNamespace):
        def close(self) -> None:
            closed.append("closed")

    engine = SimpleNamespace(open_database=lambda *_, **__: Noted(), keep_only=lambda *_: None)
    broken = RestoredDatabase(range(7, 16), [], 1, {}, fail, list)
    with pytest.raises(OSError, match="No space"):
        opened(stored(range(7)), broken, engine=engine)
    assert closed == ["closed"]


def test_a_copy_of_which_a_part_fails_leaves_none(
    opened: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = two(opened)
    copy = rocks_files.checkpoint

    def full(database: Any, folder: str) -> None:
        if folder.endswith("-1"):
            raise OSError(28, "No space left on device")
        copy(database, folder)

    monkeypatch.setattr(rocks_files, "checkpoint", full)
    with pytest.raises(OSError, match="No space"):
        parts.checkpoint(str(tmp_path / "copy"))
    assert not list(tmp_path.glob("copy*"))


def test_several_do_not_take_several_times_the_memory(opened: Making) -> None:
    taken: list[int] = []

    def note(folder: str, sizes: rocks_files.RocksSizes) -> SimpleNamespace:
        taken.append(sizes.write_buffer_bytes)
        return SimpleNamespace(close=lambda: None)

    engine = SimpleNamespace(open_database=note, keep_only=lambda *_: None)
    big = rocks_files.RocksSizes(64 << 20, 64 << 20)
    Parts("", [Share(range(4)), Share(range(4, 8))], big, engine)
    assert taken == [32 << 20, 32 << 20]


@st.composite
def databases(draw: st.DrawFn) -> list[RestoredDatabase]:
    bounds = sorted(draw(st.sets(st.integers(0, 64), min_size=2, max_size=30)))
    ranges = [range(a, b) for a, b in itertools.pairwise(bounds)]
    kept = draw(st.lists(st.sampled_from(ranges), unique=True))
    return [RestoredDatabase(r, [], draw(st.integers(0, 99)), {}, print, list) for r in kept]


@given(databases(), st.integers(0, 63), st.integers(1, 64))
def test_shares_are_the_range_and_everything_of_it_is_in_its_share(
    restored: list[RestoredDatabase], first: int, length: int
) -> None:
    groups = range(first, min(64, first + length))
    shares = shares_of(restored, groups)
    assert len(shares) <= rocks_parts.PARTS_MAX
    assert [group for share in shares for group in share.groups] == list(groups)
    for database in restored:
        ours = common(database.groups, groups)
        holders = [s for s in shares if database is s.base or database in s.copied]
        assert len(holders) == bool(ours)
        assert all(set(ours) <= set(holder.groups) for holder in holders)
