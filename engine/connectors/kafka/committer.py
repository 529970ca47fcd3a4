"""Decides the transactions of a sink's writers, in the coordinator.

A commit ends a transaction by its three names. An end that answers "over" is looked up by the
transaction's token, so nothing is lost without a word. A recovery commits what the checkpoint
names, then takes the ids of all other open transactions of the run, which aborts them and shuts out
writers that still live.

A writer that was frozen meanwhile may begin a transaction afterwards: no checkpoint names it, and
readers of committed records wait for it until it times out. So commits sweep behind epochs before
the recovery's, soon after the recovery at first, then ever more rarely: a list of open transactions
is a round trip to each broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ...contract.errors import CommitLost, HeadraceError
from ...contract.operators import Transaction
from . import transactions as t
from .cluster import NO_ERROR, BrokerError, Cluster, error_name
from .sink_settings import LOST_HINT, Settings

_log = logging.getLogger(__name__)

#: How long one call asks: the coordinator repeats a failed one.
_PATIENCE_S = 5.0
#: From a recovery to the first sweep, and between two sweeps at most.
_FIRST_SWEEP_S = 1.0
_LONGEST_SWEEP_S = 60.0


class KafkaCommitter:
    """Commits and aborts the transactions of one sink."""

    def __init__(
        self,
        settings: Settings,
        *,
        job: str,
        operator: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._operator = operator
        self._family = t.Family(job, operator)
        self._clock = clock
        self._run = ""
        #: Ids of transactions whose age has been told.
        self._told: set[str] = set()
        #: Writers of epochs up to this one are over; None: of none.
        self._over: int | None = None
        self._next_sweep_s = 0.0
        self._between_sweeps_s = _FIRST_SWEEP_S

    def own(self, owner: str, *, anew: bool) -> None:
        """Work for this run, and say how long its transactions wait for a commit."""
        self._run = owner
        mine = self._family.of_run(owner)
        with self._connected() as cluster:
            ids = t.open_ids(cluster, self._family.prefix)
        if left := [each for each in ids if not each.startswith(mine)]:
            _log.warning(
                "sink %r: %d transactions of other runs of this job are open (%s, ...); readers of"
                " committed records wait for them until they time out, or fresh=replace aborts"
                " them",
                *(self._operator, len(left), left[0]),
            )
        _log.warning(
            "sink %r: Kafka aborts a transaction that is not committed within"
            " transaction_timeout=%g s: a job that stands still for longer, between a checkpoint"
            " and its commit, loses these records and fails (unless the broker offers two-phase"
            " commit); until a commit or that time, readers of committed records wait",
            *(self._operator, self._settings.timeout_ms / 1000),
        )

    def output(self) -> str:
        """A topic takes records of many programs, and its records are not taken back."""
        return ""

    def remove_output(self) -> None:
        """Abort what earlier runs have left open; records in a topic stay."""
        with self._connected() as cluster:
            for id_ in t.open_ids(cluster, self._family.prefix):
                t.abort(cluster, id_)

    def commit(self, checkpoint: int, transactions: Sequence[Transaction]) -> None:
        """Commit in order, and sweep behind writers that are over, if it is time.

        Raises: CommitLost; HeadraceError, and may be repeated.
        """
        with self._connected() as cluster:
            self._commit(cluster, transactions)
            if self._over is not None and self._clock() >= self._next_sweep_s:
                self._abort_up_to(cluster, self._over)
                self._between_sweeps_s = min(2 * self._between_sweeps_s, _LONGEST_SWEEP_S)
                self._next_sweep_s = self._clock() + self._between_sweeps_s

    def recover(
        self, checkpoint: int, committed: Sequence[Transaction], *, epoch: int | None = None
    ) -> None:
        """Commit again, then abort other open transactions of this run, up to `epoch`."""
        with self._connected() as cluster:
            self._commit(cluster, committed)
            self._abort_up_to(cluster, epoch)
        # The attempt that follows has the epoch itself.
        self._over = None if epoch is None else epoch - 1
        self._between_sweeps_s = _FIRST_SWEEP_S
        self._next_sweep_s = self._clock() + _FIRST_SWEEP_S

    def _commit(self, cluster: Cluster, transactions: Sequence[Transaction]) -> None:
        for transaction in transactions:
            self._warn_of_age(transaction)
            self._commit_one(cluster, transaction)
            self._told.discard(transaction.id)

    def _abort_up_to(self, cluster: Cluster, epoch: int | None) -> None:
        """Abort open transactions of this run whose epoch is not above; None: of every epoch."""
        prefix = self._family.of_run(self._run)
        for id_ in t.open_ids(cluster, prefix):
            begun = t.epoch_of(id_, prefix)
            if begun is not None and (epoch is None or begun <= epoch):
                t.abort(cluster, id_)

    def _commit_one(self, cluster: Cluster, transaction: Transaction) -> None:
        payload = transaction.payload
        known = t.Transaction(str(payload["id"]), int(payload["producer"]), int(payload["epoch"]))
        code = t.end(cluster, known, commit=True)
        if code != NO_ERROR and t.token(cluster, known.id) < int(payload["number"]):
            raise CommitLost(
                f"sink {self._operator!r}: transaction {known.id!r} of chk-{transaction.checkpoint}"
                f" can no longer be committed: Kafka answers {error_name(code)}, and no token says"
                f" that it was; {LOST_HINT}"
            )

    def _warn_of_age(self, transaction: Transaction) -> None:
        """Warn of a transaction whose commit has failed for half of its time."""
        age_s = self._clock() - int(transaction.payload["begun"])
        timeout_s = self._settings.timeout_ms / 1000
        late = age_s > timeout_s / 2 and not transaction.payload["timeless"]
        if late and transaction.id not in self._told:
            self._told.add(transaction.id)
            _log.warning(
                "sink %r: transaction %s was begun %.0f s ago and is not committed; Kafka aborts it"
                " after %g s, and its records are lost then",
                *(self._operator, transaction.payload["id"], age_s, timeout_s),
            )

    @contextmanager
    def _connected(self) -> Iterator[Cluster]:
        """Give a client for one call, and tell its errors in sentences of this sink.

        A committer is never closed, so no connection outlives a call.
        """
        cluster = self._settings.cluster(patience_s=_PATIENCE_S)
        try:
            yield cluster
        except BrokerError as error:
            sentence = self._settings.sentence(error)
            raise HeadraceError(f"sink {self._operator!r}: {sentence}") from error
        finally:
            cluster.close()
