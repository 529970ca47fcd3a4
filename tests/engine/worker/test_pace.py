"""Pace: work is sized to a target time without jumping to conclusions, and every nanosecond is
booked once.
"""

from __future__ import annotations

from hypothesis import given
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
