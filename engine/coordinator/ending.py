"""How a job is to end: what was asked for, who waits for the savepoint with which it does, and what is said of it in the end."""

from __future__ import annotations

from . import coordinator_events as d


class Ending:
    """The first stop that was asked for, and how the job ended. It decides nothing: when what happens is the coordinator's business.

    Attributes:
        stop: what was asked for, by the first who did; None: the job runs to its own end.
        outcome: how the job has ended; None: it has not.
    """

    def __init__(self) -> None:
        self.stop: d.StopRequested | None = None
        self.outcome: d.JobEnded | None = None
        #: Whoever waits for the savepoint with which the job ends.
        self._request: int | None = None

    @property
    def is_drained(self) -> bool:
        """Its input is to end first."""
        return self.stop is not None and self.stop.kind is d.StopKind.DRAIN

    def takes_last(self, *, finished: bool) -> bool:
        """Whether the next checkpoint is the last: all subtasks have finished, or it is to stop where it stands."""
        return finished or (self.stop is not None and not self.is_drained)

    def asked(self, event: d.StopRequested, effects: list[d.CoordinatorEffect]) -> bool:
        """Somebody wants the job to end; returns whether that counts.

        The first counts: half drained a job cannot be left, nor drained when its last cut is taken.
        """
        if self.stop is None and self.outcome is None:
            self.stop, self._request = event, event.request
            return True
        if event.request is not None:
            effects.append(d.RequestAnswered(event.request, None, "the job is ending already"))
        return False

    def answer(
        self, savepoint: int | None, failure: str, effects: list[d.CoordinatorEffect]
    ) -> None:
        """Tell who waits for it, if anybody does, what became of the last savepoint."""
        if self._request is not None:
            effects.append(d.RequestAnswered(self._request, savepoint, failure))
            self._request = None

    def called_off(self, failure: str, effects: list[d.CoordinatorEffect]) -> None:
        """The savepoint with which the job was to end has failed, so it does not end."""
        self.stop = None
        self.answer(None, failure, effects)
