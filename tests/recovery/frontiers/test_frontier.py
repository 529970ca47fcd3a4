"""Frontiers against sets of times."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.recovery.frontiers.frontier import EVERYTHING, NOTHING, Frontier

INF = float("inf")
#: Times of a domain of two parts, and sequence numbers of two edges.
TIMES = [(None, (epoch, turn)) for epoch in range(4) for turn in range(5)]
NUMBERS = [(edge, (n,)) for edge in ("a", "b") for n in range(4)]
PART = st.integers(0, 3) | st.just(INF)
BOUNDS = st.just(()) | st.tuples(PART) | st.tuples(PART, PART)
FRONTIERS = st.builds(
    lambda bound, a, b: Frontier({None: bound, "a": (a,), "b": (b,)}), BOUNDS, PART, PART
) | st.sampled_from([NOTHING, EVERYTHING])


def members(frontier: Frontier) -> set[tuple[object, tuple[int, ...]]]:
    return {(c, t) for c, t in [*TIMES, *NUMBERS] if frontier.contains(*t, edge=c)}


@given(FRONTIERS)
def test_a_frontier_is_downward_closed(frontier: Frontier) -> None:
    inside = members(frontier)
    for (chain, time), (other, earlier) in itertools.product(inside, [*TIMES, *NUMBERS]):
        if chain == other and earlier <= time:
            assert (other, earlier) in inside


@given(FRONTIERS, FRONTIERS)
def test_operations_are_those_of_sets(one: Frontier, other: Frontier) -> None:
    assert members(one | other) == members(one) | members(other)
    assert members(one & other) == members(one) & members(other)
    if one <= other:
        assert members(one) <= members(other)
    assert (one <= other) == ((one & other) == one) == ((one | other) == other)
    assert (one < other) == (one <= other and one != other)


@given(st.lists(st.sampled_from([*TIMES, *NUMBERS])), FRONTIERS)
def test_a_closure_is_the_smallest_frontier_with_its_times(
    times: list[tuple[str | None, tuple[int, ...]]], frontier: Frontier
) -> None:
    closure = Frontier.closure(times)
    assert set(times) <= members(closure)
    if set(times) <= members(frontier):
        assert closure <= frontier


def test_equal_sets_are_equal_values() -> None:
    assert Frontier.before(3, 0) == Frontier.before(3) == Frontier.before(2, INF)
    assert Frontier.before(0, 0) == NOTHING == Frontier.sequences({"a": 0})
    assert Frontier.through(2) == Frontier.before(3)
    assert Frontier.before(INF) != EVERYTHING


def test_a_constraint_compares_the_times_of_its_edge_alone() -> None:
    one, other = Frontier.sequences({"a": 2, "b": 1}), Frontier.sequences({"a": 1, "b": 1})
    assert one.covers(other, "a")
    assert not other.covers(one, "a")
    assert other.covers(one, "b")
    assert one.limited(other, "a") == other
    assert one.on("a") == Frontier.sequences({"a": 2})


def test_a_frontier_as_text() -> None:
    assert str(Frontier.sequences({"a": 2})) == "2 of a"
    assert str(Frontier.before(3, 2)) == "times before (3, 2)"
    assert str(Frontier.before(3)) == "times before 3"
    assert [str(NOTHING), str(EVERYTHING)] == ["nothing", "everything"]
    assert str(Frontier({"a": (INF,)})) == "all of a"


def test_a_time_has_no_negative_part() -> None:
    with pytest.raises(ValueError, match="no negative part"):
        Frontier.before(-1)
