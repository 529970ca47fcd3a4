"""Selective rollback: the order of the work does not matter, only its times."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.recovery.frontiers.frontier import NOTHING, Frontier
from headrace.recovery.frontiers.selective import TimedState, deliverable, retained

TIMES = st.tuples(st.integers(0, 3), st.integers(0, 3))
WORK = st.lists(st.tuples(TIMES, st.integers(1, 9)), max_size=12)


def summed(work: list[tuple[tuple[int, ...], int]]) -> TimedState[int]:
    state = TimedState[int]()
    for time, amount in work:
        state.put(time, state.get(time, 0) + amount)
    return state


@given(WORK, TIMES)
def test_a_rollback_gives_the_state_of_the_retained_history(
    work: list[tuple[tuple[int, ...], int]], bound: tuple[int, int]
) -> None:
    frontier = Frontier.before(*bound)
    state = summed(work)
    saved = state.checkpoint(frontier)
    state.roll_back(frontier)
    never_was = summed(retained(work, frontier))
    everything = Frontier.before(9)
    assert state.checkpoint(everything) == never_was.checkpoint(everything) == saved


def test_a_time_that_is_over_costs_a_checkpoint_nothing() -> None:
    state = summed([((1,), 5), ((2,), 7)])
    state.remove((1,))
    assert state.checkpoint(Frontier.through(1)) == {}
    assert TimedState(state.checkpoint(Frontier.through(2))).get((2,), 0) == 7
    state.roll_back(NOTHING)
    assert state.get((2,), 0) == 0


def test_a_message_may_pass_messages_of_later_times_only() -> None:
    assert deliverable([(2,), (1,), (1,), (0,)]) == [0, 1, 3]
    assert deliverable([(1, 0), (1,)]) == [0]
