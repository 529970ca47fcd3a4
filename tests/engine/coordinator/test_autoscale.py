"""The policy: up under pressure that lasts, down in idleness that lasts, never to and fro, never
beyond its bounds.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.contract.messages import SubtaskNumbers
from headrace.engine.coordinator.autoscale import (
    Autoscaler,
    AutoscaleRules,
    Looked,
    RescaleEnded,
)

S = 1_000_000_000
RULES = AutoscaleRules(least=1, most=8, after_ns=10 * S, idle_after_ns=60 * S, pause_ns=20 * S)


class Job:
    """A source and a slow stage that takes `load` subtasks' whole time; looked at once a second;
    obeys at once.
    """

    def __init__(self, parallelism: int, rules: AutoscaleRules = RULES) -> None:
        self.parallelism = parallelism
        self.policy = Autoscaler(rules)
        self.now_ns = 0
        self.epoch = 1
        self.orders: list[int] = []
        self._totals = [0.0, 0.0]

    def second(self, load: float) -> int | None:
        """One second under a load; what was ordered."""
        self.now_ns += S
        busy = min(1.0, load / self.parallelism)
        waiting = max(0.0, 1.0 - self.parallelism / load) if load else 0.0
        self._totals = [self._totals[0] + busy * S, self._totals[1] + waiting * S]
        order = self.policy.step(Looked(self.epoch, self.parallelism, self._numbers()), self.now_ns)
        if order is not None:
            self.orders.append(order)
            self.parallelism, self.epoch, self._totals = order, self.epoch + 1, [0.0, 0.0]
            self._began_ns = self.now_ns
            assert self.policy.step(RescaleEnded(), self.now_ns) is None
        return order

    _began_ns = 0

    def _numbers(self) -> list[SubtaskNumbers]:
        elapsed = self.now_ns - self._began_ns
        busy, waiting = map(int, self._totals)
        return [
            SubtaskNumbers(0, 0, 0, 0, 0, waiting, elapsed - waiting, 0, 0),
            SubtaskNumbers(1, 0, 0, 0, busy, 0, elapsed - busy, 0, 0),
        ]

    def seconds(self, count: int, load: float) -> list[int]:
        return [order for _ in range(count) if (order := self.second(load)) is not None]


def test_pressure_that_lasts_doubles_the_parallelism_up_to_the_bound() -> None:
    job = Job(1)
    assert job.seconds(10, 100.0) == []
    assert job.seconds(200, 100.0) == [2, 4, 8]


def test_pressure_with_breaks_does_nothing() -> None:
    job = Job(1)
    for _ in range(20):
        assert job.seconds(8, 4.0) == []
        assert job.second(0.5) is None


def test_idleness_that_lasts_halves_the_parallelism_down_to_the_bound() -> None:
    job = Job(8)
    assert job.seconds(60, 0.1) == []
    assert job.seconds(400, 0.1) == [4, 2, 1]


def test_nothing_is_ordered_in_the_pause_after_a_rescale() -> None:
    job = Job(1)
    while job.second(100.0) is None:
        pass
    began_ns = job.now_ns
    while job.second(100.0) is None:
        pass
    assert job.now_ns - began_ns >= RULES.pause_ns


def test_an_order_is_given_once_until_it_is_carried_out() -> None:
    policy = Autoscaler(RULES)
    pressed = [
        Looked(
            1,
            2,
            [
                SubtaskNumbers(0, 0, 0, 0, 0, n * S, 0, 0, 0),
                SubtaskNumbers(1, 0, 0, 0, n * S, 0, 0, 0, 0),
            ],
        )
        for n in range(40)
    ]
    orders = [policy.step(look, n * S) for n, look in enumerate(pressed)]
    assert [order for order in orders if order is not None] == [4]


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(1, 90), st.floats(0.0, 20.0)), max_size=12),
)
def test_the_parallelism_stays_in_its_bounds_whatever_the_load(
    start: int, phases: list[tuple[int, float]]
) -> None:
    job = Job(start)
    for count, load in phases:
        job.seconds(count, load)
    assert all(RULES.least <= order <= RULES.most for order in job.orders)


@given(st.integers(1, 8), st.floats(0.0, 20.0))
def test_a_steady_load_is_met_without_going_to_and_fro(start: int, load: float) -> None:
    job = Job(start)
    orders = [start, *job.seconds(2000, load)]
    assert orders in (sorted(orders), sorted(orders, reverse=True)), orders
    assert job.seconds(1000, load) == []
