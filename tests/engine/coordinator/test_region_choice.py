"""Regions go back with the region that writes their logs, and no further than they must."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from headrace.engine.coordinator.region_choice import (
    GoingBack,
    LogSeen,
    RegionSeen,
    RegionSpec,
    going_back,
)
from headrace.engine.coordinator.supervisor import (
    GiveUp,
    RegionsSeen,
    ReportFailover,
    RollBack,
    Supervisor,
)
from headrace.recovery.edge_log import Entry, EntryKind, Piece, Place

CHAIN = {
    "first": RegionSpec(["a"], []),
    "second": RegionSpec(["b"], ["a"]),
    "third": RegionSpec([], ["a", "b"]),
}


def log(*ends: int, restart: tuple[int, int] | None = None) -> LogSeen:
    """One lane; checkpoint k ends at the k-th; `restart`: at (checkpoint, end), in epoch 2."""
    entries: list[Entry] = []
    before = 0
    for checkpoint, end in enumerate(ends, 1):
        piece = Piece(0, 1, before, end, end - before)
        kind = EntryKind.COMMIT
        entries.append(Entry(len(entries), kind, 1, checkpoint, {0: end}, [piece]))
        before = end
    if restart is not None:
        checkpoint, end = restart
        entries.append(Entry(len(entries), EntryKind.RESTART, 2, checkpoint, {0: end}))
    return LogSeen(entries)


def kept(*places: Mapping[str, tuple[int, int]], runs: bool = True) -> RegionSeen:
    """Checkpoint k has read {log: (position, number of the entry)}."""
    read = [
        {name: Place(entry, {0: position}, {0: entry}) for name, (position, entry) in place.items()}
        for place in places
    ]
    return RegionSeen(list(enumerate(read, 1)), runs)


def test_nobody_goes_back_when_the_log_keeps_what_they_have_read() -> None:
    seen = {
        "first": kept({}, {}),
        "second": kept({"a": (10, 0)}),
        "third": kept({"a": (10, 0), "b": (5, 0)}),
    }
    logs = {"a": log(10, 20, restart=(1, 10)), "b": log(5)}
    assert going_back(CHAIN, seen, logs) == []


def test_a_reader_beyond_the_cut_goes_back_and_its_own_readers_with_it() -> None:
    seen = {
        "first": kept({}),
        "second": kept({"a": (10, 0)}, {"a": (20, 1)}),
        "third": kept({"a": (4, 0), "b": (3, 0)}, {"a": (10, 0), "b": (9, 1)}),
    }
    logs = {"a": log(10, 20, restart=(1, 10)), "b": log(5, 9)}
    assert going_back(CHAIN, seen, logs) == [
        GoingBack(
            "second", 1, ["chk-2 of second has read more of lane 0 of log 'a' than first keeps"]
        ),
        GoingBack(
            "third",
            1,
            [
                "chk-2 of second has read more of lane 0 of log 'a' than first keeps",
                "chk-2 of third has read more of lane 0 of log 'b' than second keeps",
            ],
        ),
    ]


def test_a_lane_that_has_grown_again_bears_other_records() -> None:
    logs = {"a": log(10, 20, restart=(1, 10)), "b": log(5, 9)}
    again = Piece(0, 2, 10, 30, 20)
    entries = [*logs["a"].entries, Entry(3, EntryKind.COMMIT, 2, 3, {0: 30}, [again])]
    logs["a"] = LogSeen(entries)
    read_before = kept({"a": (10, 0)}, {"a": (20, 1)})
    read_after = kept({"a": (10, 0)}, {"a": (20, 3)})
    third = kept({"a": (4, 0), "b": (3, 0)})
    for second, back in ((read_before, ["second"]), (read_after, [])):
        seen = {"first": kept({}), "second": second, "third": third}
        assert [each.region for each in going_back(CHAIN, seen, logs)] == back


def test_at_the_start_a_region_begins_with_what_its_writer_starts_from() -> None:
    seen = {
        "first": kept({}, runs=False),
        "second": kept({"a": (10, 0)}, {"a": (20, 1)}, runs=False),
        "third": kept({"a": (4, 0), "b": (3, 0)}, runs=False),
    }
    found = going_back(CHAIN, seen, {"a": log(10, 20), "b": log(5, 9)})
    assert [(each.region, each.checkpoint) for each in found] == [("second", 1)]


def test_a_region_that_begins_anew_cannot_read_a_trimmed_log() -> None:
    supervisor = Supervisor(CHAIN)
    seen = {
        "first": kept({}, {}, runs=False),
        "second": kept(runs=False),
        "third": kept({"a": (20, 1), "b": (0, 0)}, runs=False),
    }
    logs = {"a": LogSeen(log(10, 20).entries[1:]), "b": LogSeen([])}
    assert supervisor.step(RegionsSeen(seen, logs)) == [
        GiveUp(
            "region first has no checkpoint to which it can go back: first cannot write lane 0 of"
            " log 'a' again, and second lacks it; hr.Checkpoints(retain=...) keeps older ones, and"
            " fresh=True begins the job anew"
        ),
    ]
    assert supervisor.step(RegionsSeen(seen, logs)) == [], "once"


@pytest.mark.parametrize("number", [1, 2])
def test_the_supervisor_rolls_back_and_says_why(number: int) -> None:
    supervisor = Supervisor(
        {"first": RegionSpec(["a"], []), "out": RegionSpec([], ["a"], ["files"])}
    )
    places = [{"a": (10, 0)}] * number + [{"a": (20, 1)}]
    seen = {"first": kept({}), "out": kept(*places)}
    logs = {"a": log(10, 20, restart=(1, 10))}
    assert supervisor.step(RegionsSeen(seen, logs)) == [
        RollBack({"out": number}),
        ReportFailover(
            f"region out went back to chk-{number}, because chk-{number + 1} of out has read more"
            " of lane 0 of log 'a' than first keeps; what files committed later will be"
            " written once more"
        ),
    ]
