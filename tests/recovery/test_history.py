"""Which checkpoints count is told by the starts of epochs, whenever those were written."""

from __future__ import annotations

import pytest

from headrace.engine.simulation.memory_store import MemoryStore
from headrace.recovery import catalog
from headrace.recovery.history import EpochStart, History
from headrace.recovery.layout import epoch_path, parse_start_path, start_path


def counted(starts: list[EpochStart], *checkpoints: tuple[int, int]) -> list[tuple[int, int]]:
    history = History(starts)
    return [each for each in checkpoints if history.counts(*each)]


def test_without_starts_everything_counts() -> None:
    assert counted([], (1, 1), (9, 4)) == [(1, 1), (9, 4)]


def test_a_checkpoint_completed_after_a_newer_epoch_has_started_does_not_count() -> None:
    starts = [EpochStart(1, 0, 0), EpochStart(2, 5, 1)]
    assert counted(starts, (4, 1), (5, 1), (6, 1), (7, 2)) == [(4, 1), (5, 1), (7, 2)]


def test_a_late_checkpoint_does_not_count_however_far_the_history_has_come() -> None:
    starts = [EpochStart(1, 0, 0), EpochStart(2, 5, 1), EpochStart(3, 8, 2)]
    assert counted(starts, (5, 1), (6, 1), (7, 2), (8, 2)) == [(5, 1), (7, 2), (8, 2)]


def test_a_late_checkpoint_under_a_number_in_use_is_another_checkpoint() -> None:
    assert counted([EpochStart(3, 6, 2)], (6, 1), (6, 2)) == [(6, 2)]


def test_a_start_written_late_changes_nothing() -> None:
    """Epoch 2 saw checkpoint 5 and froze; epoch 1 completed 6; epoch 3 went on from 6."""
    starts = [EpochStart(1, 0, 0), EpochStart(3, 6, 1)]
    everything = ((5, 1), (6, 1), (7, 3))
    assert counted(starts, *everything) == list(everything)
    assert counted([*starts, EpochStart(2, 5, 1)], *everything) == list(everything)


def test_a_start_without_a_successor_closes_what_came_behind_it() -> None:
    assert counted([EpochStart(2, 5, 1)], (5, 1), (6, 1)) == [(5, 1)]


def test_a_run_that_goes_back_or_begins_anew_leaves_newer_checkpoints_aside() -> None:
    assert counted([EpochStart(4, 5, 1)], (5, 1), (7, 1)) == [(5, 1)]
    assert counted([EpochStart(4, 0, 0)], (5, 1), (7, 1), (8, 4)) == [(8, 4)]


def test_an_epoch_in_between_that_was_left_aside_does_not_count() -> None:
    """Epoch 2 went on from 5 with 6; epoch 3 went back to 5."""
    starts = [EpochStart(2, 5, 1), EpochStart(3, 5, 1), EpochStart(4, 9, 3)]
    assert counted(starts, (5, 1), (6, 2), (7, 3), (9, 3)) == [(5, 1), (7, 3), (9, 3)]


def test_a_claimed_checkpoint_begins_a_history_of_its_own() -> None:
    starts = [EpochStart(2, 4, 0), EpochStart(3, 6, 2)]
    assert counted(starts, (3, 1), (4, 0), (5, 2), (6, 2)) == [(4, 0), (5, 2), (6, 2)]


def test_starts_are_names_of_empty_files_beside_the_epochs() -> None:
    store, start = MemoryStore(), EpochStart(3, 8, 2)
    assert catalog.claim_epoch(store, "job") == 1
    catalog.note_start(store, "job", start)
    catalog.note_start(store, "job", start)
    assert start_path("job", start) == "job/epochs/3-from-8-e2"
    assert not catalog.history(store, "job").counts(9, 2)
    assert catalog.newest_epoch(store, "job") == 1


@pytest.mark.parametrize("name", ["3", "3-from-8", "3-from-08-e2", "x/3-from-8-e2", "3-from-8-e2x"])
def test_other_names_are_no_starts(name: str) -> None:
    assert parse_start_path(f"job/epochs/{name}") is None
    assert parse_start_path(epoch_path("job", 3)) is None
