"""A place is covered when entries name all its records; crashes are in
tests/simulation/test_region_world.py.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.engine.connectors.edge_log import EdgeLogCommitter
from headrace.engine.connectors.edge_log_cover import NotNeeded, await_cover
from headrace.engine.contract.errors import HeadraceError
from headrace.engine.simulation.memory_store import MemoryStore
from headrace.recovery.edge_log import Piece, Place, committed
from headrace.recovery.edge_log_files import EdgeLogFiles


@pytest.fixture
def files() -> EdgeLogFiles:
    return EdgeLogFiles(MemoryStore(), "job", "log")


def commit(files: EdgeLogFiles, checkpoint: int, first: int, end: int) -> None:
    table = pa.table({"n": pa.array(range(first, end), pa.int64())})
    piece: Piece = files.write(0, 1, first, table, 0)
    entry = committed(files.last(), 1, checkpoint, [piece])
    assert entry is not None
    assert files.append(entry)


def never() -> None:
    raise NotNeeded


def mine(lane: int) -> bool:
    return lane == 0


def test_entries_that_there_are_cover_a_place(files: EdgeLogFiles) -> None:
    commit(files, 1, 0, 4)
    await_cover(files, Place(0, {0: 4}), {}, mine, never)
    with pytest.raises(NotNeeded):
        await_cover(files, Place(0, {0: 5}), {}, mine, never)


def test_what_was_covered_before_needs_no_entry(files: EdgeLogFiles) -> None:
    await_cover(files, Place(7, {0: 4}), {0: 4}, mine, never)


def test_lanes_of_other_readers_are_theirs(files: EdgeLogFiles) -> None:
    await_cover(files, Place(0, {1: 4}), {}, mine, never)


def test_a_later_entry_is_waited_for(files: EdgeLogFiles) -> None:
    commit(files, 1, 0, 4)
    left = [2, 3]

    def pause() -> None:
        checkpoint = left.pop(0)
        commit(files, checkpoint, 2 * checkpoint, 2 * checkpoint + 2)

    await_cover(files, Place(0, {0: 7}), {}, mine, pause)
    assert left == []


@pytest.mark.parametrize("begins_anew", [False, True])
def test_a_cut_is_told(files: EdgeLogFiles, begins_anew: bool) -> None:
    commit(files, 1, 0, 4)
    place = Place(1, {0: 6}, {0: 0})
    cut = EdgeLogCommitter(files)
    cut.cut(0 if begins_anew else 1, 2)
    assert (files.entry(1) is None) == begins_anew or begins_anew
    with pytest.raises(HeadraceError, match="went back, so this one goes back, too"):
        await_cover(files, place, {0: 4}, mine, never)
