"""Questions: how fast are keys found, how long does a snapshot hold up the owner thread, and how
fast is a Python process function?

Lookups: batches of 8,192 rows, 100,000 keys that have a slot already, million rows a second of the
fastest round. Snapshots: milliseconds for 1,000,000 keys, what the owner thread pays (`snapshot`)
and what a storage thread pays (`table`). Process function: one value state, 100,000 keys, million
records a second. Noise: other work on the machine; compare only within one run.

Run: pytest bench/test_state.py --benchmark-only --benchmark-columns=min,median --override-ini
addopts=--import-mode=importlib
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.contract.operators import OperatorContext
from headrace.engine.operators import aggregations as agg
from headrace.engine.operators.aggregate import AggregateOperator
from headrace.engine.operators.process import ProcessOperator, StatefulProcessor
from headrace.engine.state.keyed import value_state
from headrace.engine.state.slots import IntegerSlots

CONTEXT = OperatorContext("bench", "state", 0, 1, 128, 0)
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def numbers(keys: int, rows: int) -> pa.RecordBatch:
    rng = np.random.default_rng(7)
    columns = [pa.array(rng.integers(0, keys, rows)), pa.array(rng.integers(0, 1000, rows))]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def report(benchmark: Any, name: str, rows: int) -> None:
    rate = rows / benchmark.stats.stats.min / 1e6
    benchmark.extra_info["million_rows_per_second"] = round(rate, 1)
    print(f"\n{name}: {rate:.1f} million rows/s")


@pytest.mark.parametrize("rows", [512, 8192])
@pytest.mark.parametrize("keys", [1000, 100_000])
def test_slots_of_integers(benchmark: Any, keys: int, rows: int) -> None:
    rng = np.random.default_rng(7)
    words = rng.integers(-(1 << 62), 1 << 62, keys)
    batches = [words[rng.integers(0, keys, rows)] for _ in range(100)]
    slots = IntegerSlots()
    slots.lookup(words)

    def run() -> None:
        for batch in batches:
            slots.lookup(batch)

    benchmark.pedantic(run, rounds=10, warmup_rounds=2)
    report(benchmark, f"{keys} keys, {rows} rows", 100 * rows)


@pytest.mark.parametrize("part", ["snapshot", "table"])
def test_snapshot_of_a_million_keys(benchmark: Any, part: str) -> None:
    aggregations = {"n": agg.count(), "total": agg.sum("v")}
    operator = AggregateOperator(["k"], aggregations, SCHEMA, "final")
    operator.open(CONTEXT)
    keys = np.random.default_rng(7).permutation(1_000_000)
    operator.process(pa.RecordBatch.from_arrays([pa.array(keys)] * 2, schema=SCHEMA), 0)
    operator.commit()
    timed = operator.snapshot if part == "snapshot" else operator.snapshot()[0].table
    benchmark.pedantic(timed, rounds=10, warmup_rounds=1)
    print(f"\n{part}: {benchmark.stats.stats.min * 1e3:.2f} ms")


class Totals(StatefulProcessor):
    total = value_state(pa.int64(), default=0)

    def process(self, key: Any, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
        self.total.value += row["v"]
        return ({"k": key, "v": self.total.value},)


def test_a_process_function_with_one_value(benchmark: Any) -> None:
    operator = ProcessOperator(Totals, ["k"], SCHEMA, SCHEMA, operator="totals")
    operator.open(CONTEXT)
    batch = numbers(100_000, 100_000)

    def run() -> None:
        list(operator.process(batch, 0))
        operator.commit()

    benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    report(benchmark, "process function", batch.num_rows)
