"""Transactions by run, for a committer that keeps a token for each run (`SinkCommitter`).

A run names one sink in one checkpoint directory for ever (`Transaction.run`), so a token needs no
other name: not the job's, and not the sink's, which may change between a commit and its repetition.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..contract.operators import Transaction


def by_run(transactions: Sequence[Transaction]) -> dict[str, list[Transaction]]:
    """Return the transactions of each run, in the order of their checkpoints.

    A run's transactions above its token are to be applied, together with the new token: the
    checkpoint of the last.
    """
    runs: dict[str, list[Transaction]] = {}
    for transaction in sorted(transactions, key=lambda t: t.checkpoint):
        runs.setdefault(transaction.run, []).append(transaction)
    return runs
