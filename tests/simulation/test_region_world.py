"""Regions under crashes, seed by seed, and the bugs that this finds."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import pytest

from headrace.engine.connectors import edge_log as connector
from headrace.engine.connectors.edge_log import EdgeLogCommitter
from headrace.engine.coordinator.region_choice import LogSeen
from headrace.engine.coordinator.supervisor import (
    CheckpointsKept,
    Supervisor,
    SupervisorEffect,
    TrimLog,
)
from headrace.engine.simulation.region_world import RegionShape, RegionWorld, draw_shapes
from headrace.recovery import edge_log
from headrace.recovery.edge_log_files import EdgeLogFiles

CHAIN = (
    RegionShape("first", 30, (), "a"),
    RegionShape("second", 0, ("a",), "b"),
    RegionShape("third", 0, ("a", "b")),
)
EARLY_CHAIN = tuple(replace(shape, early=bool(shape.writes)) for shape in CHAIN)
LONG_CHAIN = tuple(replace(shape, rows=4 * shape.rows) for shape in CHAIN)
#: How often a crash damages the newest checkpoint, where it may.
DAMAGE = 0.7
SEEDS = 120


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_record_comes_once_over_crashes_of_every_region(seed: int) -> None:
    RegionWorld(seed).run()


@pytest.mark.parametrize("seed", range(40))
def test_a_log_with_two_readers_is_read_whole_by_both(seed: int) -> None:
    RegionWorld(seed, CHAIN).run()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_read_ahead_of_checkpoints_comes_once_as_well(seed: int) -> None:
    rng = random.Random(seed)
    drawn = [replace(shape, early=rng.random() < 0.7) for shape in draw_shapes(rng)]
    RegionWorld(seed, EARLY_CHAIN if seed % 3 == 0 else drawn).run()


def test_readers_of_early_records_meet_cuts() -> None:
    worlds = [RegionWorld(seed, EARLY_CHAIN) for seed in range(20)]
    for world in worlds:
        world.run()
    assert sum(sum(world.failures.values()) for world in worlds) >= 10, "the runs show too little"
    assert not any(world.rolled_back for world in worlds), "a reader's checkpoint always fits"


def test_readers_go_back_with_a_writer_whose_newest_checkpoint_is_damaged() -> None:
    worlds = [
        RegionWorld(seed, shapes, DAMAGE) for seed in range(10) for shapes in (None, LONG_CHAIN)
    ]
    for world in worlds:
        world.run()
    assert sum(world.rolled_back for world in worlds) >= 2, "the runs show too little"
    assert sum(bool(world.given_up) for world in worlds) <= 2, "most regions keep enough"


def test_the_same_seed_is_the_same_run() -> None:
    stores = []
    for _ in range(2):
        world = RegionWorld(7)
        world.run()
        stores.append(world.store.objects)
    assert stores[0] == stores[1]


def test_logs_are_trimmed_on_the_way() -> None:
    assert sum(_trimmed(seed) for seed in range(10)) > 100


def _trimmed(seed: int) -> int:
    world = RegionWorld(seed, CHAIN)
    world.run()
    return world.trimmed


def found_by(seeds: int = 60, shapes: Sequence[RegionShape] = CHAIN, damage: float = 0.0) -> bool:
    """A planted bug shows in one of so many runs."""
    for seed in range(seeds):
        try:
            RegionWorld(seed, shapes, damage).run()
        except Exception:
            return True
    return False


def test_trimming_one_entry_too_far_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Supervisor._kept

    def wrong(self: Supervisor, event: object) -> list[object]:
        return [TrimLog(e.log, e.below + 1) for e in right(self, event)]  # type: ignore[arg-type, union-attr]

    monkeypatch.setattr(Supervisor, "_kept", wrong)
    assert found_by()


def test_trimming_by_the_newest_checkpoint_of_one_reader_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(self: Supervisor, event: object) -> list[object]:
        needs = event.needs  # type: ignore[attr-defined]
        logs = self._regions[event.region].reads  # type: ignore[attr-defined]
        return [TrimLog(log, max(need[log] for need in needs)) for log in logs if needs]

    monkeypatch.setattr(Supervisor, "_kept", wrong)
    assert found_by()


def test_a_reader_that_passes_over_the_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = cast(property, edge_log.Cursor.__dict__["place"]).fget

    def wrong(self: edge_log.Cursor) -> edge_log.Place:
        assert right is not None, "a property"
        place: edge_log.Place = right(self)
        return replace(place, entry=max(place.entry, self.next_entry)) if not self.next() else place

    monkeypatch.setattr(edge_log.Cursor, "place", property(wrong))
    assert found_by()


def test_a_reader_that_believes_an_older_restart_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = edge_log.Cursor.__init__

    def wrong(self: edge_log.Cursor, is_mine: object, place: edge_log.Place, *ends: object) -> None:
        right(self, is_mine, replace(place, sources={}), *ends)  # type: ignore[arg-type]

    monkeypatch.setattr(edge_log.Cursor, "__init__", wrong)
    assert found_by()


def test_a_commit_that_forgets_positions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = edge_log.committed

    def wrong(last, epoch, checkpoint, pieces):  # type: ignore[no-untyped-def]
        fresh = (
            None if last is None else edge_log.Entry(last.number, last.kind, last.epoch, -1, {}, [])
        )
        return right(fresh, epoch, checkpoint, pieces)

    monkeypatch.setattr(edge_log, "committed", wrong)
    assert found_by()


def test_a_reader_that_forgets_its_place_in_a_piece_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(places):  # type: ignore[no-untyped-def]
        return edge_log.Place(min((p.entry for p in places), default=0), {})

    monkeypatch.setattr(edge_log.Place, "of_all", staticmethod(wrong))
    assert found_by()


def found_after_damage() -> bool:
    return found_by(12, LONG_CHAIN, DAMAGE)


def test_a_reader_that_is_not_rolled_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervisor, "_seen", lambda self, event: [])
    assert found_after_damage()


def test_a_log_that_is_not_cut_at_a_restart_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EdgeLogCommitter, "cut", lambda self, checkpoint, epoch: None)
    assert found_after_damage()


def test_positions_that_are_taken_for_records_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogSeen, "holds", lambda self, place, lane: True)
    assert found_after_damage()


def test_trimming_by_the_newest_checkpoints_shows_when_readers_go_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = Supervisor._kept

    def wrong(self: Supervisor, event: CheckpointsKept) -> list[SupervisorEffect]:
        return right(self, replace(event, needs=event.needs[-1:]))

    monkeypatch.setattr(Supervisor, "_kept", wrong)
    assert found_after_damage()


def found_early() -> bool:
    return found_by(60, EARLY_CHAIN)


def test_a_checkpoint_that_does_not_wait_for_entries_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connector, "await_cover", lambda *of: None)
    assert found_early()


def test_a_reader_that_stays_beyond_a_cut_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = edge_log.Cursor.read_ahead

    def wrong(self: edge_log.Cursor, lane: int, rows: int) -> None:
        right(self, lane, rows)
        self._sources[lane] = self._next_entry

    monkeypatch.setattr(edge_log.Cursor, "read_ahead", wrong)
    assert found_early()


def test_a_reader_of_pieces_of_a_dead_attempt_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = edge_log.Cursor.ahead

    def wrong(self: edge_log.Cursor, lane: int) -> tuple[int, int] | None:
        found = right(self, lane)
        return None if found is None else (max(1, found[0] - 1), found[1])

    monkeypatch.setattr(edge_log.Cursor, "ahead", wrong)
    monkeypatch.setattr(EdgeLogFiles, "sweep", lambda self, below_epoch: 0)
    assert found_early()


def test_a_reader_that_passes_over_entries_while_it_reads_ahead_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(self: edge_log.Cursor, lane: int) -> tuple[int, int] | None:
        return (self._epoch, self._positions.get(lane, 0)) if self._epoch else None

    monkeypatch.setattr(edge_log.Cursor, "ahead", wrong)
    monkeypatch.setattr(edge_log.Cursor, "next", lambda self: None)
    assert found_early()
