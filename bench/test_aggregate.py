"""Question: how many rows a second does one keyed aggregate take in, process and commit together,
on one thread?

count() and sum(int64) over batches of 8,192 rows with 100,000 distinct keys, all of which have a
slot already. Unit: million rows a second (`extra_info["million_rows_per_second"]`, of the fastest
round). Noise: other work on the machine; compare only within one run.

Run: pytest bench/test_aggregate.py --benchmark-only --benchmark-columns=min,median --override-ini
addopts=--import-mode=importlib
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.contract.operators import OperatorContext
from headrace.engine.operators import aggregations as agg
from headrace.engine.operators.aggregate import AggregateOperator, Emit

KEYS = 100_000
BATCH_ROWS = 8192
BATCHES = 100


def batches_of(kind: str) -> list[pa.RecordBatch]:
    rng = np.random.default_rng(7)
    words = rng.integers(-(1 << 62), 1 << 62, KEYS)
    names = pa.array([f"customer-{i:06}" for i in range(KEYS)])
    batches = []
    for _ in range(BATCHES):
        chosen = rng.integers(0, KEYS, BATCH_ROWS)
        columns: dict[str, Any] = {"v": rng.integers(0, 1000, BATCH_ROWS)}
        if kind == "string":
            columns["k"] = names.take(pa.array(chosen))
        else:
            columns["k"] = words[chosen]
        if kind == "int64 pair":
            columns["l"] = chosen % 10
        batches.append(pa.record_batch(columns))
    return batches


@pytest.mark.parametrize("emit", ["final", "changes"])
@pytest.mark.parametrize("kind", ["int64", "int64 pair", "string"])
def test_count_and_sum_by_key(benchmark: Any, kind: str, emit: Emit) -> None:
    batches = batches_of(kind)
    keys = ["k", "l"] if kind == "int64 pair" else ["k"]
    aggregations = {"n": agg.count(), "total": agg.sum("v")}
    operator = AggregateOperator(keys, aggregations, batches[0].schema, emit)
    operator.open(OperatorContext("bench", "totals", 0, 1, 128, 0))

    def run() -> None:
        for batch in batches:
            list(operator.process(batch, 0))
            operator.commit()

    benchmark.pedantic(run, rounds=10, warmup_rounds=2)
    rate = BATCHES * BATCH_ROWS / benchmark.stats.stats.min / 1e6
    benchmark.extra_info["million_rows_per_second"] = round(rate, 1)
    print(f"\n{kind}, {emit}: {rate:.1f} million rows/s")
