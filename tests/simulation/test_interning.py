"""Equal states have equal numbers, and a number gives back a state that is nobody else's."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from headrace.channels.buffer import ChannelId
from headrace.engine.simulation.exploration.interning import States, Values, in_order


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True)
class Plan:
    name: str


@dataclass(slots=True)
class Part:
    """What it says of itself is not what it is made of."""

    count: int
    twice: int = field(default=0)

    def __post_init__(self) -> None:
        self.twice = 2 * self.count


class Whole:
    def __init__(self, plan: Plan, part: Part) -> None:
        self.plan = plan
        self.parts = [part, part]
        self.queue = deque([ChannelId(0, 1, 2)])
        self.colour = Colour.RED


PLAN = Plan("constant")


def states() -> States:
    return States({"plan": PLAN})


def test_what_is_equal_has_one_number_whichever_parts_are_one_object() -> None:
    some, shared, apart = states(), Whole(PLAN, Part(1)), Whole(PLAN, Part(1))
    apart.parts = [Part(1), Part(1)]
    assert some.number(shared) == some.number(apart) == 0
    assert len(some) == 1


def test_any_attribute_tells_states_apart() -> None:
    some = states()
    one, other, third = Whole(PLAN, Part(1)), Whole(PLAN, Part(1)), Whole(PLAN, Part(1))
    other.colour = Colour.BLUE
    third.parts[1].twice = 3
    fourth = Whole(PLAN, Part(1))
    fourth.queue.append(ChannelId(0, 1, 3))
    assert [some.number(state) for state in (one, other, third, fourth)] == [0, 1, 2, 3]


def test_a_state_comes_back_as_it_was_with_its_parts_shared_and_the_constants_themselves() -> None:
    some, whole = states(), Whole(PLAN, Part(1))
    whole.parts[0].twice = 7
    number = some.number(whole)
    whole.parts[0].twice = 8
    back: Whole = some.state(number)
    assert back.plan is PLAN
    assert back.parts[0] is back.parts[1]
    assert back.parts[0].twice == 7
    assert (back.queue, back.colour) == (whole.queue, Colour.RED)
    assert some.number(back) == number


def test_a_set_in_order_is_listed_alike_whatever_its_history() -> None:
    channels = [ChannelId(0, i, j) for i in range(4) for j in range(4)]
    assert list(in_order(channels)) == list(in_order(reversed(channels)))


def test_values_are_numbered_by_their_keys() -> None:
    values = Values()
    assert [values.number("a"), values.number("b", [1]), values.number("a")] == [0, 1, 0]
    assert values.values == ["a", [1]]
