"""When a job takes its next periodic checkpoint, and how many may fail in a row."""

from __future__ import annotations

from .rules import CheckpointRules


class Schedule:
    """When to trigger next. Owns the due time and the failures in a row."""

    def __init__(self, rules: CheckpointRules) -> None:
        self._rules = rules
        #: When the next periodic checkpoint is due.
        self.due_ns: int | None = None
        self._failures = 0

    @property
    def is_broken(self) -> bool:
        """More checkpoints have failed in a row than the attempt survives."""
        return self._failures > self._rules.tolerable_failures

    def attempt_started(self, now_ns: int) -> None:
        """Make the first periodic checkpoint due in one interval."""
        self._failures = 0
        self.due_ns = None if self._rules.interval_ns is None else now_ns + self._rules.interval_ns

    def attempt_ended(self) -> None:
        """Make none due until the next attempt starts."""
        self.due_ns = None

    def triggered(self, now_ns: int) -> None:
        """Make the next checkpoint due an interval after the last due time, if it is not past."""
        if self.due_ns is None or self._rules.interval_ns is None:
            return
        planned_ns = self.due_ns + self._rules.interval_ns
        self.due_ns = planned_ns if planned_ns > now_ns else now_ns + self._rules.interval_ns

    def ended(self, now_ns: int, *, complete: bool) -> None:
        """A checkpoint completed or failed."""
        self._failures = 0 if complete else self._failures + 1
        if self.due_ns is not None:
            self.due_ns = max(self.due_ns, now_ns + self._rules.min_pause_ns)
