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


def waits(restarts: Restarts, stories: str, *, ran_ns: int = 0) -> list[bool]:
    """Fail by each story, with a checkpoint in between; whether there was a next attempt."""
    goes_on = []
    for story in stories:
        restarts.progress()
        goes_on.append(restarts.next_wait_ns(story, ran_ns=ran_ns) is not None)
    return goes_on


def test_the_same_failure_ends_the_job_however_many_checkpoints_pass_it() -> None:
    restarts = Restarts(RestartRules(attempts_max=5, backoff_ns=10, backoff_max_ns=50))
    assert waits(restarts, "a" * 10) == [True] * 9 + [False]
    assert restarts.given_up == "gave up: the same failure 10 times, in spite of checkpoints"


def test_the_pause_grows_with_each_failure_of_the_same_kind() -> None:
    restarts = Restarts(RestartRules(attempts_max=5, backoff_ns=10, backoff_max_ns=50))
    paused = []
    for _ in range(4):
        restarts.progress()
        paused.append(restarts.next_wait_ns("a"))
    assert paused == [10, 20, 40, 50]


def test_different_failures_and_long_attempts_are_no_series() -> None:
    rules = RestartRules(attempts_max=5, backoff_ns=10, backoff_max_ns=50)
    assert all(waits(Restarts(rules), "ab" * 20))
    assert all(waits(Restarts(rules), "a" * 20, ran_ns=600_000_000_000))


def test_a_machine_that_fails_in_between_does_not_hide_a_failing_program() -> None:
    restarts = Restarts(RestartRules(attempts_max=5, backoff_ns=10, backoff_max_ns=50))
    goes_on = []
    for _ in range(10):
        restarts.progress()
        assert restarts.next_wait_ns() is not None
        restarts.progress()
        goes_on.append(restarts.next_wait_ns("a") is not None)
    assert goes_on == [True] * 9 + [False]


def test_three_equal_failures_without_a_checkpoint_are_final() -> None:
    restarts = Restarts(RestartRules(attempts_max=5, backoff_ns=10, backoff_max_ns=50))
    assert [restarts.next_wait_ns("a") is None for _ in range(3)] == [False, False, True]
    assert restarts.given_up == "gave up after 2 restarts without progress"


def test_many_restarts_without_pause_stay_small_numbers() -> None:
    restarts = Restarts(RestartRules(attempts_max=10_000, backoff_ns=1, backoff_max_ns=7))
    assert {restarts.next_wait_ns() for _ in range(1000)} == {1, 2, 4, 7}
