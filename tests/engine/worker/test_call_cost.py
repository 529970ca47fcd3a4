"""What a call costs: a fixed part and a part per row, learnt from calls of different sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.worker.call_cost import CallCost

MS = 1_000_000
LIMIT = 1 << 16


def learnt(*calls: tuple[int, int]) -> CallCost:
    subject = CallCost()
    for rows, elapsed_ns in calls:
        subject.called(rows, elapsed_ns)
    return subject


@given(st.integers(0, 10**9), st.integers(1, 10**7), st.integers(1, 1000), st.integers(2, 20))
def test_two_sizes_tell_both_parts(fixed: int, row: int, rows: int, more: int) -> None:
    subject = learnt((rows, fixed + row * rows), (rows * more, fixed + row * rows * more))
    assert subject.knows
    assert subject.row_ns == pytest.approx(row)
    assert subject.fixed_ns == pytest.approx(fixed, abs=1e-3 * (fixed + row * rows * more))


def test_calls_of_one_size_leave_it_open_and_all_cost_is_the_rows() -> None:
    subject = learnt((100, 10 * MS), (100, 30 * MS), (110, 20 * MS))
    assert not subject.knows
    assert (subject.fixed_ns, subject.row_ns) == (0, 20 * MS / 100)


def test_calls_of_one_size_later_scale_what_was_known() -> None:
    subject = learnt((10, 20 * MS), (20, 30 * MS), *[(20, 33 * MS)] * 16)
    assert not subject.knows, "the calls of another size are forgotten"
    share = subject.fixed_ns / (20 * subject.row_ns)
    assert subject.fixed_ns + 20 * subject.row_ns == pytest.approx(33 * MS)
    assert share == pytest.approx(0.5, rel=0.6)


def test_one_slow_call_among_many_changes_nothing() -> None:
    calls = [(rows, 5 * MS + rows * 1000) for rows in (10, 100, 50, 10, 100, 50, 80, 20)]
    subject = learnt(*calls, (60, 9_000 * MS))
    assert subject.row_ns == pytest.approx(1000, rel=0.5)
    assert subject.fixed_ns == pytest.approx(5 * MS, rel=0.1)


def test_rows_that_fit_a_time_and_rows_that_are_worth_a_call() -> None:
    subject = learnt((1, 11 * MS), (2, 12 * MS))
    assert subject.rows_within(20 * MS, LIMIT) == 10
    assert subject.rows_within(5 * MS, LIMIT) == 0
    assert subject.rows_worth_a_call(20 * MS, LIMIT) == 90
    assert subject.rows_worth_a_call(20 * MS, 50) == 50
    assert subject.rows_worth_a_call(100 * MS, LIMIT) == 0, "10 ms in 100 ms do not matter"


def test_a_cost_without_rows_asks_for_as_many_as_may_be() -> None:
    subject = learnt((1, 10 * MS), (2, 10 * MS))
    assert subject.rows_within(20 * MS, LIMIT) == LIMIT
    assert subject.rows_worth_a_call(20 * MS, LIMIT) == LIMIT
