"""The restart strategy: how long to wait before the next attempt, and when to give up."""

from __future__ import annotations

from .rules import RestartRules

#: A program that failed so often in the same way, without a checkpoint in between, is broken.
_SAME_MAX = 3


class Restarts:
    """Counts restarts in a row. Progress, that is a completed checkpoint, sets the count back."""

    def __init__(self, rules: RestartRules) -> None:
        self._rules = rules
        self.in_a_row = 0
        #: The last failure of the program, and how often it has come in a row.
        self._story = ""
        self._told = 0

    def progress(self) -> None:
        """A checkpoint completed."""
        self.in_a_row = 0
        self._told = 0

    def next_wait_ns(self, story: str = "") -> int | None:
        """Count a restart and return the wait before, or None: give up.

        Args:
            story: the failure, if the program is at fault rather than a machine; three equal
                failures in a row are final.
        """
        self._told = self._told + 1 if story and story == self._story else 1
        self._story = story
        if self.in_a_row >= self._rules.attempts_max or (story and self._told >= _SAME_MAX):
            return None
        doubled = self._rules.backoff_ns << min(self.in_a_row, 32)
        self.in_a_row += 1
        return min(doubled, self._rules.backoff_max_ns)
