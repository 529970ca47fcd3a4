"""The restart strategy: how long to wait before the next attempt, and when to give up."""

from __future__ import annotations

from .rules import RestartRules

#: A program that failed so often in the same way, without a checkpoint in between, is broken.
_SAME_MAX = 3
#: The same with checkpoints in between: they pass a record that fails again and again.
_SAME_DESPITE_CHECKPOINTS_MAX = 10
#: A failure after an attempt that ran for so long is a new one.
_LONG_NS = 600_000_000_000


class Restarts:
    """Counts restarts in a row, and failures with the same cause in a row.

    Progress, that is a completed checkpoint, sets the count of restarts back. It proves nothing
    about a failure that comes again: an unaligned checkpoint overtakes the record that causes it.
    So that count goes on until another failure comes, or an attempt has run for ten minutes.
    """

    def __init__(self, rules: RestartRules) -> None:
        self._rules = rules
        self.in_a_row = 0
        #: The last failure of the program, and how often it has come in a row: since the last
        #: checkpoint, and at all.
        self._story = ""
        self._told = 0
        self._told_at_all = 0

    def progress(self) -> None:
        """A checkpoint completed."""
        self.in_a_row = 0
        self._told = 0

    def next_wait_ns(self, story: str = "", *, ran_ns: int = 0) -> int | None:
        """Count a restart and return the wait before, or None: give up.

        Args:
            story: the failure, if the program is at fault rather than a machine.
            ran_ns: how long the attempt ran that failed.
        """
        self._count(story, ran_ns)
        if self.in_a_row >= self._rules.attempts_max or (story and self._is_broken):
            return None
        doublings = max(self.in_a_row, self._told_at_all - 1 if story else 0)
        self.in_a_row += 1
        return min(self._rules.backoff_ns << min(doublings, 32), self._rules.backoff_max_ns)

    @property
    def given_up(self) -> str:
        """Why there is no next attempt, in words; empty: the first failure is final."""
        if self._told < _SAME_MAX and self._told_at_all >= _SAME_DESPITE_CHECKPOINTS_MAX:
            return f"gave up: the same failure {self._told_at_all} times, in spite of checkpoints"
        if self.in_a_row:
            return f"gave up after {self.in_a_row} restarts without progress"
        return ""

    @property
    def _is_broken(self) -> bool:
        return self._told >= _SAME_MAX or self._told_at_all >= _SAME_DESPITE_CHECKPOINTS_MAX

    def _count(self, story: str, ran_ns: int) -> None:
        if not story:
            # A machine's failure between two of the program says nothing about the program.
            self._told = 0
            return
        same = story == self._story
        self._told = self._told + 1 if same else 1
        self._told_at_all = self._told_at_all + 1 if same and ran_ns < _LONG_NS else 1
        self._story = story
