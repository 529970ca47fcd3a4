"""Transactions by run."""

from __future__ import annotations

from headrace.engine.connectors.tokens import by_run
from headrace.engine.contract.operators import Transaction


def test_each_run_has_its_transactions_in_the_order_of_checkpoints() -> None:
    a9, b1, a7, a7_too = (
        Transaction("a9", {}, "a", 9),
        Transaction("b1", {}, "b", 1),
        Transaction("a7", {}, "a", 7),
        Transaction("a7_too", {}, "a", 7),
    )
    assert by_run([a9, b1, a7, a7_too]) == {"a": [a7, a7_too, a9], "b": [b1]}
    assert by_run([]) == {}
