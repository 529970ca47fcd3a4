"""Transformers against the messages that events cause."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from headrace.recovery.frontiers.frontier import EVERYTHING, NOTHING, Frontier
from headrace.recovery.frontiers.transformers import (
    Again,
    Enter,
    Leave,
    Numbered,
    Same,
    Transformer,
)

Time = tuple[int, ...]
EPOCHS: list[Time] = [(epoch,) for epoch in range(5)]
#: Counters go further than bounds do, so that the sample can stand for all.
TURNS: list[Time] = [(epoch, turn) for epoch in range(5) for turn in range(9)]
SHALLOW = [Frontier.before(epoch) for epoch in range(4)]
DEEP = [Frontier.before(epoch, turn) for epoch in range(4) for turn in range(4)]

#: (transformer, message time of an event time, events, frontiers there, frontiers of the receiver)
CASES = [
    pytest.param(Same(), lambda t: t, TURNS, DEEP, DEEP, id="same"),
    pytest.param(Enter(), lambda t: (*t, 0), EPOCHS, SHALLOW, DEEP, id="enter"),
    pytest.param(Again(), lambda t: (t[0], t[1] + 1), TURNS, DEEP, DEEP, id="again"),
    pytest.param(Leave(), lambda t: t[:1], TURNS, DEEP, SHALLOW, id="leave"),
]
Case = tuple[Transformer, Callable[[Time], Time], list[Time], list[Frontier], list[Frontier]]


@pytest.mark.parametrize(("transformer", "sent", "events", "own", "theirs"), CASES)
def test_what_is_fixed_is_all_that_no_event_outside_can_send(
    transformer: Transformer,
    sent: Callable[[Time], Time],
    events: list[Time],
    own: list[Frontier],
    theirs: list[Frontier],
) -> None:
    for frontier in own:
        fixed = transformer.fixed(frontier)
        outside = [sent(event) for event in events if not frontier.contains(*event)]
        assert not any(fixed.contains(*time) for time in outside)
        for other in theirs:
            if not any(other.contains(*time) for time in outside):
                assert other <= fixed, "more is fixed"


@pytest.mark.parametrize(("transformer", "sent", "events", "own", "theirs"), CASES)
def test_what_is_reached_is_the_closure_of_what_events_inside_send(
    transformer: Transformer,
    sent: Callable[[Time], Time],
    events: list[Time],
    own: list[Frontier],
    theirs: list[Frontier],
) -> None:
    for frontier in own:
        reached = transformer.reached(frontier)
        inside = [sent(event) for event in events if frontier.contains(*event)]
        assert all(reached.contains(*time) for time in inside)
        for other in theirs:
            if all(other.contains(*time) for time in inside):
                assert reached <= other, "less is reached"


@pytest.mark.parametrize(("transformer", "sent", "events", "own", "theirs"), CASES)
def test_within_is_the_greatest_frontier_that_reaches_no_further(
    transformer: Transformer,
    sent: Callable[[Time], Time],
    events: list[Time],
    own: list[Frontier],
    theirs: list[Frontier],
) -> None:
    for limit, frontier in itertools.product(theirs, own):
        within = transformer.within(limit)
        assert transformer.reached(within) <= limit
        assert (transformer.reached(frontier) <= limit) == (frontier <= within)


def test_everything_stays_everything() -> None:
    for transformer in (Same(), Enter(), Again(), Leave()):
        for one in (transformer.fixed, transformer.reached, transformer.within):
            assert one(EVERYTHING).bound(None) == EVERYTHING.bound(None)


def test_epochs_are_numbered_when_an_epoch_leaves_before_the_next() -> None:
    numbered = Numbered("out", [3, 0, 4])
    counts = [numbered.fixed(Frontier.before(epoch)).bound("out") for epoch in range(5)]
    assert counts == [(), (3,), (3,), (7,), (7,)]
    assert numbered.reached(Frontier.before(2)) == Frontier.sequences({"out": 3})
    assert numbered.within(Frontier.sequences({"out": 6})) == Frontier.before(2)
    assert numbered.within(Frontier.sequences({"out": 2})) == NOTHING
    assert numbered.within(Frontier.sequences({"out": 7})) == EVERYTHING
    assert numbered.fixed(EVERYTHING) == EVERYTHING
