"""The restart strategy: how long to wait before the next attempt, and when to give up."""

from __future__ import annotations

from dataclasses import dataclass

#: A program that failed so often in the same way, without a checkpoint in between, is broken.
_SAME_MAX = 3


@dataclass(frozen=True, slots=True)
class RestartRules:
    """Exponential back-off with a limit. Times in nanoseconds.

    Attributes:
        attempts_max: restarts in a row, without a completed checkpoint in between, before the job fails.
        backoff_ns: wait before the first restart; doubles with each one in a row.
        backoff_max_ns: longest wait.
    """

    attempts_max: int
    backoff_ns: int
    backoff_max_ns: int


class Restarts:
    """Counts restarts in a row. Progress, that is a completed checkpoint, sets the count back."""

    def __init__(self, rules: RestartRules) -> None:
        self._rules = rules
        self.in_a_row = 0
        self.total = 0
        #: The failure that came last, if it was one of the program, and how often it has come in a row.
        self._story = ""
        self._told = 0

    def progress(self) -> None:
        """A checkpoint completed."""
        self.in_a_row = 0
        self._told = 0

    def next_wait_ns(self, story: str = "") -> int | None:
        """Count one restart and return how long to wait before it, or None: give up.

        `story` is what failed, if it was the program rather than a machine: the same thrice in a row will not change.
        """
        self._told = self._told + 1 if story and story == self._story else 1
        self._story = story
        if self.in_a_row >= self._rules.attempts_max or (story and self._told >= _SAME_MAX):
            return None
        doubled = self._rules.backoff_ns << min(self.in_a_row, 32)
        self.in_a_row += 1
        self.total += 1
        return min(doubled, self._rules.backoff_max_ns)
