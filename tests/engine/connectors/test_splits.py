"""Splits are dealt out so that each has one owner, at every parallelism."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.connectors.filesystem import FileInfo
from headrace.engine.connectors.splits import (
    OPEN_END,
    Progress,
    Split,
    SplitLedger,
    deal,
    known_progress,
    owner_of_new,
    plan_splits,
    progress_rows,
    progress_table,
    whole,
)


def test_files_are_cut_into_ranges_that_tile_them() -> None:
    splits = plan_splits([FileInfo("a", 250), FileInfo("b", 99)], 100)
    assert splits == [Split("a", 0, 125), Split("a", 125, OPEN_END), Split("b", 0, OPEN_END)]
    assert plan_splits([FileInfo("a", 250)], None) == [whole("a")]


@given(done=st.lists(st.booleans(), max_size=20), parallelism=st.integers(1, 6))
def test_each_split_is_dealt_to_one_subtask(done: list[bool], parallelism: int) -> None:
    known = [Progress(whole(f"{index}"), index, flag) for index, flag in enumerate(done)]
    dealt = [
        progress
        for index in range(parallelism)
        for progress in deal(reversed(known), parallelism=parallelism, index=index)
    ]
    assert sorted(dealt, key=lambda p: p.offset) == known


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_unfinished_splits_are_spread_evenly(parallelism: int) -> None:
    known = [Progress(whole(f"{index:02}"), 0, index % 2 == 0) for index in range(20)]
    counts = [
        sum(not progress.done for progress in deal(known, parallelism=parallelism, index=index))
        for index in range(parallelism)
    ]
    assert max(counts) - min(counts) <= 1


def test_a_file_that_the_checkpoint_knows_is_not_planned_again() -> None:
    restored = [Progress(Split("a", 0, 10), 10, True)]
    planned = [Split("a", 0, 20), Split("b", 5, OPEN_END)]
    known = known_progress(planned, restored, in_bytes=True)
    assert known == [*restored, Progress(Split("b", 5, OPEN_END), 5, False)]


def test_a_split_that_is_restored_twice_stops_the_attempt() -> None:
    with pytest.raises(AssertionError, match="twice"):
        known_progress([], [Progress(whole("a"), 0, True)] * 2, in_bytes=True)


def test_the_owner_of_a_new_file_never_changes() -> None:
    # The subtasks of one attempt must agree on it, whatever machines they run on.
    assert [owner_of_new(f"file-{index}", 4) for index in range(8)] == [3, 0, 3, 2, 3, 3, 0, 1]


def test_progress_survives_its_table() -> None:
    rows = [Progress(Split("a/ü", 1, 2), 3, True), Progress(whole("b"), 0, False)]
    assert progress_rows(progress_table(rows)) == rows


def test_a_snapshot_is_frozen_and_holds_only_what_was_committed() -> None:
    ledger = SplitLedger()
    ledger.reset([Progress(whole("a"), 0, False)])
    ledger.note(Progress(whole("a"), 5, False))
    before = ledger.snapshot()[0]
    ledger.commit()
    after = ledger.snapshot()[0]
    assert progress_rows(before.table()) == [Progress(whole("a"), 0, False)]
    assert progress_rows(after.table()) == [Progress(whole("a"), 5, False)]
