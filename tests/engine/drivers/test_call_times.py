"""The time of a thread, shared out among the operators that it calls."""

from __future__ import annotations

from headrace.engine.drivers.call_times import CallTimes


class Told:
    """A clock that stands, and what is told to other processes."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.recorded: list[int | None] = []
        self.times = CallTimes(self.recorded.append, lambda: self.now_ns)

    def at(self, now_ns: int, operator: int | None) -> None:
        self.now_ns = now_ns
        self.times.tell(operator)


def test_time_belongs_to_the_operator_that_was_told_last() -> None:
    told = Told()
    for now_ns, operator in ((10, 0), (15, 1), (22, 0), (30, None), (99, 1), (100, None)):
        told.at(now_ns, operator)
    assert dict(told.times.take()) == {0: 5 + 8, 1: 7 + 1}
    assert told.times.take() == ()


def test_the_operator_of_the_moment_is_known() -> None:
    told = Told()
    told.at(0, 3)
    assert told.times.current == 3
    told.at(1, None)
    assert told.times.current is None


def test_others_hear_nothing_of_calls_in_processes_of_their_own() -> None:
    told = Told()
    told.times.isolated = frozenset({1})
    told.at(0, 0)
    told.at(4, 1)
    told.at(9, None)
    assert told.recorded == [0, None, None]
    assert dict(told.times.take()) == {0: 4, 1: 5}
