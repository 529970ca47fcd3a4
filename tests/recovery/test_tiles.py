"""The tile check against a model that counts every single record."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.recovery.metadata import ChannelPosition, SubtaskSnapshot
from headrace.recovery.tiles import check_tiles

CHANNEL = (0, 0, 0)


def position(
    at: int, ended: bool = False, channel: tuple[int, int, int] = CHANNEL
) -> ChannelPosition:
    return ChannelPosition(*channel, at, ended)


def sender(*positions: ChannelPosition, index: int = 0) -> SubtaskSnapshot:
    return SubtaskSnapshot(0, index, False, [], [], list(positions))


def receiver(*positions: ChannelPosition, index: int = 0) -> SubtaskSnapshot:
    return SubtaskSnapshot(1, index, False, [], list(positions), [])


def test_equal_positions_tile() -> None:
    assert check_tiles([sender(position(5)), receiver(position(5))]) == []


def test_no_channels_tile() -> None:
    assert check_tiles([]) == []


def test_missing_records_are_named() -> None:
    assert check_tiles([sender(position(10)), receiver(position(7))]) == [
        "channel e0:0>0: records [7, 10) are in flight but not persisted"
    ]


def test_a_receiver_ahead_of_its_sender_is_named() -> None:
    assert check_tiles([sender(position(7)), receiver(position(10))]) == [
        "channel e0:0>0: the receiver is at 10, but the sender has only sent up to 7"
    ]


def test_runs_that_tile_are_accepted_in_any_order() -> None:
    runs = [(CHANNEL, 8, 10), (CHANNEL, 3, 5), (CHANNEL, 5, 8)]
    assert check_tiles([sender(position(10)), receiver(position(3))], runs) == []


def test_gaps_overlaps_and_excess_are_all_named() -> None:
    runs = [(CHANNEL, 2, 4), (CHANNEL, 5, 8), (CHANNEL, 7, 12), (CHANNEL, 9, 9)]
    assert check_tiles([sender(position(10)), receiver(position(3))], runs) == [
        "channel e0:0>0: records [2, 3) are persisted but already accounted for",
        "channel e0:0>0: records [4, 5) are in flight but not persisted",
        "channel e0:0>0: records [7, 8) are persisted but already accounted for",
        "channel e0:0>0: the persisted run [9, 9) is empty",
        "channel e0:0>0: records [10, 12) are persisted but were never sent",
    ]


def test_each_end_must_be_reported_exactly_once() -> None:
    assert check_tiles([sender(position(5))]) == [
        "channel e0:0>0: 0 reports of its receiver, expected one"
    ]
    twice = [sender(position(5)), sender(position(5)), receiver(position(5))]
    assert check_tiles(twice) == ["channel e0:0>0: 2 reports of its sender, expected one"]


def test_a_run_of_an_unknown_channel_is_named() -> None:
    assert check_tiles([], [((1, 2, 3), 0, 4)]) == [
        "channel e1:2>3: 0 reports of its receiver, expected one",
        "channel e1:2>3: 0 reports of its sender, expected one",
    ]


def test_a_report_by_the_wrong_subtask_is_named() -> None:
    problems = check_tiles([sender(position(5), index=1), receiver(position(5), index=2)])
    assert problems == [
        "channel e0:0>0: reported by subtask 1 of task 0, which is not its sender",
        "channel e0:0>0: reported by subtask 2 of task 1, which is not its receiver",
    ]


def test_problems_come_sorted_by_channel() -> None:
    channels = [(1, 0, 0), (0, 0, 1), (0, 0, 0)]
    problems = check_tiles([sender(*(position(1, channel=channel) for channel in channels))])
    assert [problem.split(": ")[0] for problem in problems] == [
        "channel e0:0>0",
        "channel e0:0>1",
        "channel e1:0>0",
    ]


def test_the_end_of_input_tiles_when_seen_by_both_or_persisted() -> None:
    ended, open_ = position(5, ended=True), position(5)
    assert check_tiles([sender(ended), receiver(ended)]) == []
    assert check_tiles([sender(ended), receiver(open_)], ends=[CHANNEL]) == []


def test_a_lost_end_of_input_is_named() -> None:
    assert check_tiles([sender(position(5, ended=True)), receiver(position(5))]) == [
        (
            "channel e0:0>0: the sender has ended, but the receiver did not see the end of input "
            "(receiver at 5, sender at 5)"
        )
    ]


def test_an_end_of_input_before_its_time_is_named() -> None:
    ended = position(5, ended=True)
    (problem,) = check_tiles([sender(position(5)), receiver(ended)])
    assert "the sender has not ended" in problem
    problems = check_tiles([sender(position(6, ended=True)), receiver(ended)], [(CHANNEL, 5, 6)])
    assert len(problems) == 1
    assert "before the last record" in problems[0]


def test_an_end_of_input_persisted_without_need_is_named() -> None:
    ended = position(5, ended=True)
    (problem,) = check_tiles([sender(ended), receiver(ended)], ends=[CHANNEL])
    assert "persisted as in flight, but is not" in problem


def model_tiles(
    received: tuple[int, bool],
    sent: tuple[int, bool],
    runs: list[tuple[int, int]],
    end_in_flight: bool,
) -> bool:
    """Count each record, and the end of input as one more record behind the last."""
    owners: Counter[str] = Counter(f"record {at}" for at in range(received[0]))
    made: Counter[str] = Counter(f"record {at}" for at in range(sent[0]))
    for first, end in runs:
        if first >= end:
            return False
        owners.update(f"record {at}" for at in range(first, end))
    owners["end"] += received[1] + end_in_flight
    made["end"] += sent[1]
    out_of_order = received[1] and received[0] != sent[0]
    return +owners == +made and not out_of_order


POSITIONS = st.tuples(st.integers(0, 6), st.booleans())
RUNS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=3)


@given(POSITIONS, POSITIONS, RUNS, st.booleans())
def test_the_check_agrees_with_a_model_that_counts_records(
    received: tuple[int, bool],
    sent: tuple[int, bool],
    runs: list[tuple[int, int]],
    end_in_flight: bool,
) -> None:
    problems = check_tiles(
        [sender(position(*sent)), receiver(position(*received))],
        [(CHANNEL, first, end) for first, end in runs],
        [CHANNEL] if end_in_flight else [],
    )
    assert (problems == []) == model_tiles(received, sent, runs, end_in_flight)


@given(st.integers(0, 50), st.lists(st.integers(1, 5), max_size=6))
def test_every_way_to_cut_the_in_flight_records_into_runs_tiles(
    received: int, lengths: list[int]
) -> None:
    bounds = [received]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    runs = [(CHANNEL, first, end) for first, end in itertools.pairwise(bounds)]
    subtasks = [sender(position(bounds[-1])), receiver(position(received))]
    assert check_tiles(subtasks, reversed(runs)) == []
    for missing in range(len(runs)):
        assert check_tiles(subtasks, runs[:missing] + runs[missing + 1 :]) != []
        assert check_tiles(subtasks, [*runs, runs[missing]]) != []
