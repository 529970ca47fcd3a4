"""Where the keyed aggregate keeps its state. What it computes: test_heap_aggregate.py, test_rocks_aggregate.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engine.contract.errors import UserError
from headrace.engine.contract.operators import StateBackend
from headrace.engine.operators import aggregations as agg
from headrace.engine.operators.aggregate import AggregateOperator

from .rocks_cases import context
from .test_aggregate_heap import ALL, SCHEMA


def test_a_mistake_is_found_before_a_backend_is_opened() -> None:
    with pytest.raises(UserError):
        AggregateOperator(["b"], {"sum": agg.sum("b")}, SCHEMA, backend=StateBackend("rocksdb"))


def test_an_operator_says_where_its_state_lies_before_the_job_does(tmp_path: Path) -> None:
    for stated, job in (("rocksdb", "heap"), ("heap", "rocksdb")):
        operator = AggregateOperator(
            ["b"], ALL, SCHEMA, operator="totals", backend=StateBackend(stated)
        )
        operator.open(context(tmp_path, job))
        assert (operator.freeze_database() is None) == (stated == "heap")
        operator.close()
