"""The files of a log: written once, read whole or refused, deleted when nobody needs them."""

from __future__ import annotations

import pyarrow as pa
import pytest
import xxhash

from headrace.engine.simulation.memory_store import MemoryStore
from headrace.recovery.edge_log import CorruptEntry, Entry, Piece, committed, ended, restarted
from headrace.recovery.edge_log_files import CorruptPiece, EdgeLogFiles
from headrace.recovery.store import NotFound, StoreUncertain


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def files(store: MemoryStore) -> EdgeLogFiles:
    return EdgeLogFiles(store, "job", "log")


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64())})


def grown(files: EdgeLogFiles, entries: int) -> Entry:
    """A log of one lane, a record an entry."""
    last = None
    for number in range(entries):
        piece = files.write(0, 1, number, rows(number), 0)
        entry = committed(last, 1, number + 1, [piece])
        assert entry is not None
        assert files.append(entry)
        last = entry
    assert last is not None
    return last


def test_a_piece_is_read_as_it_was_written(files: EdgeLogFiles, store: MemoryStore) -> None:
    piece = files.write(2, 3, 10, rows(7, 8), 99)
    assert (piece.lane, piece.epoch, piece.first, piece.end) == (2, 3, 10, 12)
    assert list(store.objects) == ["job/logs/log/pieces/p2-e3-10"]
    assert files.read(piece) == rows(7, 8)


def test_every_flipped_bit_of_a_piece_and_every_cut_is_found(
    files: EdgeLogFiles, store: MemoryStore
) -> None:
    piece = files.write(0, 1, 0, rows(7, 8), 99)
    (path, data), *_ = store.objects.items()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        store.objects[path] = bytes(damaged)
        with pytest.raises(CorruptPiece):
            files.read(piece)
        store.objects[path] = data[:at]
        with pytest.raises(CorruptPiece):
            files.read(piece)


def test_a_piece_of_another_place_is_refused(files: EdgeLogFiles, store: MemoryStore) -> None:
    first = files.write(0, 1, 0, rows(7), 0)
    second = files.write(0, 1, 1, rows(7), 0)
    one, other = sorted(store.objects)
    store.objects[other] = store.objects[one]
    assert files.read(first) == rows(7)
    with pytest.raises(CorruptPiece, match="other records"):
        files.read(second)


def test_a_number_is_taken_once(files: EdgeLogFiles) -> None:
    entry = restarted(None, 1, 0, {})
    other = restarted(None, 2, 0, {})
    assert entry is not None
    assert other is not None
    assert files.append(entry)
    assert files.append(entry), "its own earlier try"
    assert not files.append(other)
    assert files.entry(0) == entry
    assert files.entry(1) is None


@pytest.mark.parametrize("happened", [True, False])
def test_an_uncertain_entry_is_looked_for(
    files: EdgeLogFiles, store: MemoryStore, *, happened: bool
) -> None:
    entry = restarted(None, 1, 0, {})
    assert entry is not None
    store.fail("create", StoreUncertain, happened=happened)
    if happened:
        assert files.append(entry)
    else:
        with pytest.raises(StoreUncertain):
            files.append(entry)


def test_the_last_entry_is_found_from_an_older_one_and_from_none(files: EdgeLogFiles) -> None:
    assert files.last() is None
    last = grown(files, 12)
    assert files.last() == last
    assert files.last(files.entry(3)) == last


def test_an_entry_under_another_number_is_refused(files: EdgeLogFiles, store: MemoryStore) -> None:
    grown(files, 2)
    store.objects["job/logs/log/entries/1"] = store.objects["job/logs/log/entries/0"]
    with pytest.raises(CorruptEntry, match="entry 0"):
        files.entry(1)


def test_trimming_deletes_entries_with_their_pieces_and_keeps_the_last(
    files: EdgeLogFiles, store: MemoryStore
) -> None:
    last = grown(files, 5)
    assert files.trim(3) == 3
    assert files.numbers() == [3, 4]
    assert files.trim(9) == 1
    assert sorted(store.objects) == ["job/logs/log/entries/4", "job/logs/log/pieces/p0-e1-4"]
    assert files.read(last.pieces[0]) == rows(4)


def test_a_writer_that_knew_a_trimmed_entry_finds_the_last(files: EdgeLogFiles) -> None:
    last = grown(files, 5)
    known = files.entry(1)
    files.trim(4)
    assert files.last(known) == last


def test_a_late_entry_below_the_trimmed_part_takes_no_piece_along(files: EdgeLogFiles) -> None:
    last = grown(files, 3)
    files.trim(2)
    late = Entry(0, last.kind, 1, 3, {0: 3}, last.pieces)
    assert files.append(late)
    assert files.trim(2) == 1
    assert files.read(last.pieces[0]) == rows(2)


def test_pieces_of_dead_attempts_are_swept(files: EdgeLogFiles) -> None:
    kept = grown(files, 1).pieces[0]
    dead = files.write(0, 2, 1, rows(5), 0)
    alive = files.write(0, 3, 1, rows(6), 0)
    assert files.sweep(3) == 1
    assert files.read(kept) == rows(0)
    assert files.read(alive) == rows(6)
    with pytest.raises(NotFound):
        files.read(dead)


def test_an_end_needs_no_piece(files: EdgeLogFiles) -> None:
    end = ended(grown(files, 1), 1)
    assert end is not None
    assert files.append(end)
    assert files.last() == end


def test_a_piece_without_records_has_no_file(files: EdgeLogFiles) -> None:
    entry = committed(None, 1, 1, [Piece(0, 1, 0, 0)])
    assert entry is not None
    assert files.append(entry)
    assert files.sweep(9) == 0


@pytest.mark.parametrize("first", [0, 7, 10**9, 10**17])
def test_records_begin_where_columns_lie_aligned(
    files: EdgeLogFiles, store: MemoryStore, first: int
) -> None:
    piece = files.write(3, 12, first, rows(4, 5), -(2**62))
    data = store.get(f"{files.folder}pieces/p3-e12-{first}")
    assert (data.index(b"\n") + 1) % 8 == 0
    assert files.read(piece) == rows(4, 5)


def test_a_piece_whose_records_lie_askew_is_read(files: EdgeLogFiles, store: MemoryStore) -> None:
    files.write(0, 1, 0, rows(4, 5), 0)
    path = f"{files.folder}pieces/p0-e1-0"
    head, _, body = store.get(path).partition(b"\n")
    rest = b" %d %s\n" % (len(body), b" ".join(head.split()[4:]))
    digest = xxhash.xxh3_64_hexdigest(rest + body)
    data = b"headrace-log-piece 1 xxh3:" + digest.encode() + rest + body
    assert (len(data) - len(body)) % 8, "aligned after all"
    store.put(path, data)
    assert files.read(Piece(0, 1, 0, 2, len(data), digest)) == rows(4, 5)
