"""Restarts: longer and longer pauses, an end to them, and progress that sets the count back."""

from __future__ import annotations

from headrace.engine.coordinator.restarts import Restarts
from headrace.engine.coordinator.rules import RestartRules


def test_the_pause_doubles_up_to_its_limit_and_then_it_gives_up() -> None:
    restarts = Restarts(RestartRules(attempts_max=5, backoff_ns=10, backoff_max_ns=50))
    assert [restarts.next_wait_ns() for _ in range(7)] == [10, 20, 40, 50, 50, None, None]
    assert restarts.in_a_row == 5


def test_progress_sets_the_count_back() -> None:
    restarts = Restarts(RestartRules(attempts_max=2, backoff_ns=10, backoff_max_ns=50))
    assert [restarts.next_wait_ns() for _ in range(2)] == [10, 20]
    restarts.progress()
    assert [restarts.next_wait_ns() for _ in range(3)] == [10, 20, None]
    assert restarts.in_a_row == 2


def test_no_attempts_means_that_the_first_failure_is_the_end() -> None:
    assert Restarts(RestartRules(0, 10, 50)).next_wait_ns() is None


def test_many_restarts_without_pause_stay_small_numbers() -> None:
    restarts = Restarts(RestartRules(attempts_max=10_000, backoff_ns=1, backoff_max_ns=7))
    assert {restarts.next_wait_ns() for _ in range(1000)} == {1, 2, 4, 7}
