"""Pace: work is sized to a target time without jumping to conclusions, and every nanosecond is
booked once.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.engine.worker.pace import Pace

MS = 1_000_000
TARGET_NS = 20 * MS
LIMIT = 16_384


def pace() -> Pace:
    return Pace(TARGET_NS, LIMIT)


def test_the_first_piece_is_small() -> None:
    assert pace().rows_max == 64
    assert Pace(TARGET_NS, 10).rows_max == 10


@pytest.mark.parametrize("room_bytes", [0, 1 << 20])
def test_an_operator_that_emits_nothing_any_more_gets_pieces_for_ever(room_bytes: int) -> None:
    subject = pace()
    subject.worked(64, 64, MS, bytes_out=512)
    for _ in range(2_000):
        assert subject.rows_for(room_bytes) >= 1
        subject.worked(64, 0, MS)
    assert subject.rows_for(room_bytes) == subject.rows_max


def test_quick_work_grows_fourfold_up_to_the_limit() -> None:
    subject = pace()
    sizes = []
    for _ in range(6):
        subject.worked(subject.rows_max, 0, 1)
        sizes.append(subject.rows_max)
    assert sizes == [256, 1024, 4096, LIMIT, LIMIT, LIMIT]


def test_slow_work_shrinks_to_what_fits_the_target() -> None:
    subject = pace()
    subject.worked(64, 0, 64 * MS)
    assert subject.rows_max == 20
    subject.worked(20, 0, 20_000 * MS)
    assert subject.rows_max == 1, "never nothing"


def test_a_small_quick_piece_says_little_about_larger_ones() -> None:
    subject = pace()
    subject.worked(64, 0, 1)
    subject.worked(1, 0, MS)
    assert subject.rows_max == 256


def test_a_small_slow_piece_does_shrink_the_next() -> None:
    subject = pace()
    subject.worked(1, 0, 40 * MS)
    assert subject.rows_max == 1


Cost = Callable[[int], float]


def fed(subject: Pace, cost: Cost, pieces: int) -> list[tuple[int, float]]:
    """(rows, nanoseconds) of pieces for which there are always enough rows."""
    done = []
    for _ in range(pieces):
        rows = subject.rows_max
        done.append((rows, cost(rows)))
        subject.worked(rows, rows, int(cost(rows)))
    return done


def rows_per_s(done: list[tuple[int, float]]) -> float:
    return sum(rows for rows, _ in done) * 1e9 / sum(ns for _, ns in done)


def test_a_function_with_a_high_fixed_cost_gets_pieces_that_are_worth_it() -> None:
    """30 ms and 5 us a row: a loop over 4096 rows at a time makes 81,000 rows a second."""
    subject = pace()
    fed(subject, lambda rows: 30 * MS + 5_000 * rows, 6)
    assert rows_per_s(fed(subject, lambda rows: 30 * MS + 5_000 * rows, 50)) > 100_000


def test_a_function_of_fixed_cost_alone_gets_the_largest_pieces() -> None:
    subject = pace()
    fed(subject, lambda rows: 20 * MS, 12)
    assert min(rows for rows, _ in fed(subject, lambda rows: 20 * MS, 7)) >= LIMIT // 2


def test_a_first_call_that_loads_a_model_is_forgotten() -> None:
    subject = pace()
    subject.worked(64, 64, 10_000 * MS)
    assert subject.rows_max == 1
    fed(subject, lambda rows: 30 * MS + 5_000 * rows, 30)
    assert rows_per_s(fed(subject, lambda rows: 30 * MS + 5_000 * rows, 30)) > 100_000


def test_a_large_piece_is_not_cut_to_the_room_when_it_is_worth_its_fixed_cost() -> None:
    subject = pace()
    for _ in range(12):
        subject.worked(subject.rows_max, 0, 30 * MS, bytes_out=100 * subject.rows_max)
    assert subject.rows_for(room_bytes=1000) == subject.rows_max
    quick = pace()
    quick.worked(64, 0, 1, bytes_out=64 * 100)
    assert quick.rows_for(room_bytes=1000) == 20


costs = st.tuples(st.sampled_from([0, 1, 10, 30, 300]), st.sampled_from([100, 5_000, 2 * MS]))


@given(costs, st.integers(0, 2**32), st.sampled_from([0.0, 0.1, 0.2]))
@example((0, 2 * MS), 5421, 0.2)
def test_any_cost_is_learnt_through_noise(cost: tuple[int, int], seed: int, noise: float) -> None:
    """Pieces are near the best size: the fixed cost is small beside the rest, or the target met."""
    fixed_ns, row_ns = cost[0] * MS, cost[1]
    rng = random.Random(seed)

    def drawn(rows: int) -> float:
        return (fixed_ns + row_ns * rows) * (1 + noise * rng.uniform(-1, 1))

    subject = pace()
    fed(subject, drawn, 40)
    done = fed(subject, drawn, 100)
    ideal_rows = min(LIMIT, max(1, (TARGET_NS - fixed_ns) // row_ns, 9 * fixed_ns // row_ns))
    ideal = ideal_rows * 1e9 / (fixed_ns + row_ns * ideal_rows)
    assert rows_per_s(done) > 0.7 * ideal
    if fixed_ns == 0:
        assert sum(ns for _, ns in done) / len(done) < 2.5 * max(TARGET_NS, row_ns)


@pytest.mark.parametrize("before", [0, 30 * MS, 300 * MS])
@pytest.mark.parametrize("after", [0, 30 * MS, 300 * MS])
@pytest.mark.parametrize("factor", [0.05, 1, 20])
def test_a_cost_that_changes_is_learnt_anew(before: int, after: int, factor: float) -> None:
    subject = pace()
    fed(subject, lambda rows: before + 5_000 * rows, 40)
    row_ns = 5_000 * factor
    fed(subject, lambda rows: after + row_ns * rows, 40)
    done = fed(subject, lambda rows: after + row_ns * rows, 40)
    ideal_rows = min(LIMIT, max((TARGET_NS - after) / row_ns, 9 * after / row_ns))
    ideal = ideal_rows * 1e9 / (after + row_ns * ideal_rows)
    assert rows_per_s(done) > 0.75 * ideal
    if after == 0:
        assert sum(ns for _, ns in done) / len(done) < 2 * TARGET_NS


def test_one_pause_of_the_machine_does_no_harm() -> None:
    subject = pace()
    fed(subject, lambda rows: 20_000 * rows, 30)
    before = subject.rows_max
    subject.worked(before, 0, 3_000 * MS)
    assert before / 3 < subject.rows_max < before * 3


def test_an_empty_poll_changes_only_the_totals() -> None:
    subject = pace()
    subject.worked(0, 5, 1)
    assert (subject.rows_max, subject.rows_in, subject.rows_out) == (64, 0, 5)


def test_time_is_booked_under_what_the_subtask_was_doing() -> None:
    subject = pace()
    subject.start(100)
    subject.account(110, busy=True, backpressured=False)
    subject.account(125, busy=False, backpressured=True)
    subject.account(128, busy=True, backpressured=True)
    subject.account(129, busy=False, backpressured=False)
    assert (subject.idle_ns, subject.busy_ns, subject.backpressured_ns) == (10, 16, 3)


doings = st.tuples(st.integers(-50, 100), st.booleans(), st.booleans())


@given(start_ns=st.integers(0, 1000), steps=st.lists(doings, max_size=20))
def test_the_parts_add_up_to_the_time_since_the_start(
    start_ns: int, steps: list[tuple[int, bool, bool]]
) -> None:
    """Also with a clock that is set back."""
    subject = pace()
    subject.start(start_ns)
    now_ns = latest_ns = start_ns
    for passed_ns, busy, backpressured in steps:
        now_ns += passed_ns
        latest_ns = max(latest_ns, now_ns)
        subject.account(now_ns, busy=busy, backpressured=backpressured)
    total_ns = subject.busy_ns + subject.backpressured_ns + subject.idle_ns
    assert total_ns == latest_ns - start_ns


@given(st.lists(st.tuples(st.integers(0, LIMIT), st.integers(0, 10**12)), max_size=20))
def test_the_next_piece_is_always_within_its_bounds(works: list[tuple[int, int]]) -> None:
    subject = pace()
    for rows, elapsed_ns in works:
        before = subject.rows_max
        subject.worked(rows, rows, elapsed_ns)
        assert 1 <= subject.rows_max <= min(LIMIT, 4 * before)


def test_rows_of_half_a_millisecond_are_quick() -> None:
    subject = pace()
    for _ in range(20):
        subject.worked(1000, 1000, elapsed_ns=1_000_000)
    assert 490 <= subject.rows_quick <= 500
