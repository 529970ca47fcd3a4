"""The log of a logged edge: what its entries say, and which pieces a reader takes."""

from __future__ import annotations

import random

import msgspec
import pytest

from headrace.recovery.edge_log import (
    CorruptEntry,
    Cursor,
    Diverged,
    Entry,
    EntryKind,
    Fenced,
    Piece,
    Place,
    WentBack,
    committed,
    decode_entry,
    encode_entry,
    ended,
    ends_at,
    restarted,
)


def piece(lane: int, first: int, end: int, epoch: int = 1) -> Piece:
    return Piece(lane, epoch, first, end, size_bytes=10 if end > first else 0)


def all_mine(lane: int) -> bool:
    return True


def taken(*entries: Entry | None, place: Place | None = None) -> Cursor:
    cursor = Cursor(all_mine, place or Place())
    for entry in entries:
        assert entry is not None
        cursor.take(entry)
        cursor.check()
    return cursor


def read(cursor: Cursor) -> list[tuple[int, int, int]]:
    """Everything that is pending: (lane, first, end)."""
    found = []
    while (following := cursor.next()) is not None:
        part, first = following
        cursor.read(part.end - first)
        cursor.check()
        found.append((part.lane, first, part.end))
    return found


# --- the writer's side ----------------------------------------------------------------------------


def test_a_commit_adds_pieces_behind_the_lanes_ends() -> None:
    begun = restarted(None, 1, 0, {})
    first = committed(begun, 1, 1, [piece(0, 0, 5), piece(1, 0, 3)])
    assert first is not None
    assert (first.number, first.ends) == (1, {0: 5, 1: 3})
    second = committed(first, 1, 2, [piece(0, 5, 6), piece(1, 3, 3)])
    assert second is not None
    assert (second.number, second.ends, len(second.pieces)) == (2, {0: 6, 1: 3}, 2)


def test_a_commit_repeated_adds_nothing() -> None:
    pieces = [piece(0, 0, 5), piece(1, 0, 0)]
    first = committed(None, 1, 1, pieces)
    assert committed(first, 1, 1, pieces) is None
    second = committed(first, 1, 2, [piece(0, 5, 6)])
    assert committed(second, 1, 1, pieces) is None


def test_pieces_that_leave_a_gap_are_refused() -> None:
    first = committed(None, 1, 1, [piece(0, 0, 5)])
    with pytest.raises(Diverged, match="records 6 to 7 of lane 0 behind 5"):
        committed(first, 1, 2, [piece(0, 6, 7)])


def test_an_older_epoch_adds_nothing() -> None:
    newer = restarted(None, 5, 0, {})
    with pytest.raises(Fenced):
        committed(newer, 4, 1, [piece(0, 0, 5)])
    with pytest.raises(Fenced):
        restarted(newer, 4, 0, {})
    with pytest.raises(Fenced):
        ended(newer, 4)


def test_a_restart_cuts_the_lanes_and_is_said_once() -> None:
    first = committed(None, 1, 1, [piece(0, 0, 5)])
    again = restarted(first, 2, 0, {})
    assert again is not None
    assert (again.kind, again.ends, again.number) == (EntryKind.RESTART, {}, 1)
    assert restarted(again, 2, 0, {}) is None
    with pytest.raises(Diverged, match="lane 0 has 0 records, not 5"):
        restarted(again, 3, 1, {0: 5})


def test_an_end_is_said_once_and_taken_back_by_what_follows() -> None:
    first = committed(None, 1, 1, [piece(0, 0, 5)])
    end = ended(first, 1)
    assert ended(end, 1) is None
    cursor = taken(first, end)
    assert not cursor.is_ended
    assert read(cursor) == [(0, 0, 5)]
    assert cursor.is_ended
    more = committed(end, 2, 2, [piece(0, 5, 6, epoch=2)])
    assert more is not None
    cursor.take(more)
    assert not cursor.is_ended


def test_ends_are_those_of_the_newest_entry_up_to_the_checkpoint() -> None:
    entries: list[Entry] = []
    for checkpoint, end in ((1, 5), (2, 7), (4, 9)):
        last = entries[-1] if entries else None
        first = 0 if last is None else last.ends[0]
        entry = committed(last, 1, checkpoint, [piece(0, first, end)])
        assert entry is not None
        entries.append(entry)
    back = restarted(entries[-1], 2, 2, {0: 7})
    assert back is not None
    newest_first = [back, *reversed(entries)]
    assert [ends_at(newest_first, n) for n in (0, 1, 2, 3, 4)] == [
        {},
        {0: 5},
        {0: 7},
        {0: 7},
        {0: 7},
    ]
    assert ends_at(newest_first[:-1], 1) is None


# --- the reader's side ----------------------------------------------------------------------------


def test_a_reader_goes_on_within_a_piece() -> None:
    first = committed(None, 1, 1, [piece(0, 0, 5), piece(1, 0, 2)])
    cursor = taken(first)
    cursor.next()
    cursor.read(3)
    assert cursor.place == Place(0, {0: 3, 1: 0}, {0: 0})
    assert read(taken(first, place=cursor.place)) == [(0, 3, 5), (1, 0, 2)]


def test_a_lane_of_another_reader_is_passed_over() -> None:
    first = committed(None, 1, 1, [piece(0, 0, 5), piece(1, 0, 2)])
    assert first is not None
    cursor = Cursor(lambda lane: lane == 1, Place())
    cursor.take(first)
    assert read(cursor) == [(1, 0, 2)]
    assert cursor.open_lanes == {1}


def test_pieces_that_a_restart_cut_off_are_never_read() -> None:
    first = committed(None, 1, 1, [piece(0, 0, 5)])
    second = committed(first, 1, 2, [piece(0, 5, 9)])
    back = restarted(second, 2, 1, {0: 5})
    anew = committed(back, 2, 3, [piece(0, 5, 7, epoch=2)])
    cursor = taken(first, second, back, anew)
    assert read(cursor) == [(0, 0, 5), (0, 5, 7)]


def test_a_reader_beyond_the_cut_is_told_to_go_back() -> None:
    first = committed(None, 1, 1, [piece(0, 0, 5)])
    cursor = taken(first)
    read(cursor)
    back = restarted(first, 2, 0, {})
    assert back is not None
    with pytest.raises(WentBack, match="lane 0 ends at 0, and 5 records of it were read"):
        cursor.take(back)


def test_a_restart_older_than_what_was_read_concerns_nobody() -> None:
    begun = restarted(None, 1, 0, {})
    first = committed(begun, 1, 1, [piece(0, 0, 5)])
    cursor = taken(begun, first)
    read(cursor)
    assert taken(begun, first, place=Place(0, {0: 5}, {0: 1})).next() is None


def test_the_end_is_found_again_after_a_restore() -> None:
    first = committed(None, 1, 1, [piece(0, 0, 5)])
    end = ended(first, 1)
    assert end is not None
    cursor = taken(first, end)
    read(cursor)
    assert cursor.place.entry == 1
    assert taken(end, place=cursor.place).is_ended


def test_places_of_all_readers_join_to_the_furthest_of_each_lane() -> None:
    places = [Place(4, {0: 7, 1: 2}, {0: 3, 1: 1}), Place(2, {0: 5, 1: 6}, {0: 1, 1: 4}), Place(9)]
    assert Place.of_all(places) == Place(2, {0: 7, 1: 6}, {0: 3, 1: 4})
    assert Place.of_all([]) == Place()


@pytest.mark.parametrize("seed", range(60))
def test_readers_that_restart_and_rescale_read_a_growing_log_once(seed: int) -> None:
    rng = random.Random(seed)
    entries: list[Entry] = []
    for checkpoint in range(1, 12):
        last = entries[-1] if entries else None
        ends = {} if last is None else last.ends
        pieces = [
            piece(lane, ends.get(lane, 0), ends.get(lane, 0) + rng.randint(0, 6))
            for lane in range(rng.randint(1, 4))
        ]
        entry = committed(last, 1, checkpoint, pieces)
        assert entry is not None
        entries.append(entry)
    place = Place()
    seen: list[tuple[int, int]] = []
    while place.entry < len(entries):
        place, new = _attempt(rng, entries, place)
        seen += new
    assert sorted(seen) == [
        (k, n) for k, end in sorted(entries[-1].ends.items()) for n in range(end)
    ]


def _attempt(
    rng: random.Random, entries: list[Entry], place: Place
) -> tuple[Place, list[tuple[int, int]]]:
    """Some reading at some parallelism from `place`; returns the joined place and the records."""
    width = rng.randint(1, 3)
    cursors = [Cursor(lambda lane, i=i: lane % width == i, place) for i in range(width)]  # type: ignore[misc]
    seen = []
    for _ in range(rng.randint(1, 25)):
        cursor = rng.choice(cursors)
        if cursor.next_entry < len(entries):
            cursor.take(entries[cursor.next_entry])
        if (following := cursor.next()) is not None:
            part, first = following
            rows = rng.randint(0, part.end - first)
            cursor.read(rows)
            seen += [(part.lane, first + n) for n in range(rows)]
        cursor.check()
    return Place.of_all([cursor.place for cursor in cursors]), seen


# --- bytes ----------------------------------------------------------------------------------------


def an_entry() -> Entry:
    entry = committed(None, 3, 7, [piece(0, 0, 5), piece(1, 0, 0)])
    assert entry is not None
    return entry


def test_an_entry_survives_its_bytes() -> None:
    assert decode_entry(encode_entry(an_entry()), "path") == an_entry()


def test_every_flipped_bit_and_every_cut_is_found() -> None:
    data = encode_entry(an_entry())
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(CorruptEntry):
            decode_entry(bytes(damaged), "path")
        with pytest.raises(CorruptEntry):
            decode_entry(data[:at], "path")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ends": {0: 4}}, "records 0 to 5 of lane 0"),
        ({"epoch": -1}, "negative"),
        ({"pieces": [Piece(0, 1, 0, 5, 0)]}, "5 records in 0 bytes"),
    ],
)
def test_an_inconsistent_entry_is_refused(change: dict[str, object], reason: str) -> None:
    entry = msgspec.structs.replace(an_entry(), **change)
    with pytest.raises(CorruptEntry, match=reason):
        decode_entry(encode_entry(entry), "path")
