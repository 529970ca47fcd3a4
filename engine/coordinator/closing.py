"""The end of a job: held savepoints, the last sweep of the sinks, deletions, the dismissal.

`Closing` owns the outcome and the sweep. An attempt that died may have left transactions open that
no later attempt of this job aborts. So the sinks abort every open transaction when all others are
committed. A job that failed does not wait for this sweep, since its sinks may be why it failed.

Not here: the commits under way, for which the coordinator waits before it closes.
"""

from __future__ import annotations

from ..contract.messages import Shutdown
from .checkpoints import Checkpoints
from .coordinator_events import CoordinatorEffect, JobEnded, Notice, NoticeKind, Outcome, PartEffect
from .retention import Retention
from .stop import Stop
from .transactions import Transactions
from .workers import Workers


class Closing:
    """The end of one job.

    Attributes:
        outcome: how the job will have ended when all is done; None: it goes on.
        sweeping: the sinks are asked to abort the transactions of dead attempts.
        over: the job has ended.
    """

    def __init__(
        self,
        *,
        stop: Stop,
        checkpoints: Checkpoints,
        transactions: Transactions,
        retention: Retention,
        workers: Workers,
    ) -> None:
        self.outcome: JobEnded | None = None
        self.sweeping = False
        self.over = False
        self._swept = False
        self._stop = stop
        self._checkpoints = checkpoints
        self._transactions = transactions
        self._retention = retention
        self._workers = workers

    def advance(self, epoch: int | None, now_ns: int) -> list[PartEffect]:
        """Write held savepoints, sweep the sinks, delete superfluous files, dismiss the workers.

        Args:
            epoch: the job's; None: the sinks belong to a successor, or no epoch was claimed.
        """
        assert self.outcome is not None, "closing without a reason"
        if self._transactions.again_at_ns is not None:
            return []
        effects = self._checkpoints.write_ready(now_ns)
        if self._checkpoints.writing:
            return effects
        reason = self.outcome.reason
        effects += self._stop.answer(None, f"the job ended without it: {reason}")
        effects += self._checkpoints.leave(reason)
        effects += self._sweep(epoch)
        if self.outcome.outcome is not Outcome.FAILED:
            if epoch is not None and self.sweeping and not self._swept:
                return effects
            effects += self._retention.end()
        if self._retention.awaits:
            return effects
        self.over = True
        return [*effects, *self._workers.send_all(Shutdown(reason)), self.outcome]

    def recovered(self) -> None:
        """The sinks have recovered: if for the sweep, it is done."""
        self._swept = self.sweeping

    def leave_unswept(self, reason: str) -> list[CoordinatorEffect]:
        """Give the sweep up; the next run of the job recovers the sinks."""
        self._swept = True
        self._transactions.forget_again()
        what = "what dead attempts left in the sinks stays until the next run of the job"
        return [Notice(NoticeKind.WARNING, f"{reason}; {what}")]

    def _sweep(self, epoch: int | None) -> list[CoordinatorEffect]:
        """Begin the sweep, once."""
        if epoch is None or self.sweeping or self._transactions.uncommitted:
            return []
        self.sweeping = True
        return self._transactions.sweep(epoch)
