"""What does a record cost in a user's function: `map`, `flat_map`, `filter`, `process`?

Unit: microseconds of processor a record, operators alone, two integer columns, batches of 8,192
records; beside it the same function in a plain loop over dictionaries, the floor. `process` adds to
a sum: one value state, 100,000 keys. Run: `pytest bench/test_rows.py --benchmark-only -s`. With
other work on the machine compare only lines of one run.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.contract.operators import OperatorContext, StateBackend
from headrace.engine.operators.process import ProcessOperator, StatefulProcessor
from headrace.engine.operators.row import FilterFunctionOperator, FlatMapOperator, MapOperator
from headrace.engine.state.keyed import value_state
from headrace.engine.state.rocks.backend import open_backend

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROWS, BATCHES = 8192, 20
Row = dict[str, Any]


class Totals(StatefulProcessor):
    total = value_state(pa.int64(), default=0)

    def process(self, key: int, row: Row) -> Iterator[Row]:
        self.total.value += row["v"]
        yield {"k": key, "v": self.total.value}


def plus_one(row: Row) -> Row:
    return {"k": row["k"], "v": row["v"] + 1}


def batches() -> list[pa.RecordBatch]:
    rng = np.random.default_rng(7)
    return [
        pa.RecordBatch.from_arrays(
            [pa.array(rng.integers(0, 100_000, ROWS)), pa.array(rng.integers(0, 1000, ROWS))],
            schema=SCHEMA,
        )
        for _ in range(BATCHES)
    ]


class PlainLoop:
    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[list[Row]]:
        return [[plus_one(row) for row in batch.to_pylist()]]

    def commit(self) -> None: ...


def process_operator(kind: str, folder: Path) -> ProcessOperator:
    numbers = itertools.count()
    backend = StateBackend(
        kind,
        databases=lambda stated, context: open_backend(
            stated, context, folder=lambda: str(folder / str(next(numbers)))
        ),
    )
    operator = ProcessOperator(Totals, ["k"], SCHEMA, SCHEMA, operator="totals")
    operator.open(OperatorContext("bench", "totals", 0, 1, 128, 0, backend))
    return operator


def made(name: str, folder: Path) -> Any:
    if name == "plain loop":
        return PlainLoop()
    if name == "map":
        return MapOperator(plus_one, SCHEMA, operator=name)
    if name == "flat_map":
        return FlatMapOperator(lambda row: [plus_one(row)], SCHEMA, operator=name)
    if name == "filter":
        return FilterFunctionOperator(lambda row: row["v"] > 500, operator=name)
    return process_operator(name.removeprefix("process on "), folder)


@pytest.mark.parametrize(
    "name",
    ["plain loop", "map", "flat_map", "filter", "process on heap", "process on rocksdb"],
)
def test_a_record(benchmark: Any, tmp_path: Path, name: str) -> None:
    operator = made(name, tmp_path)
    given = batches()
    spent: list[float] = []

    def run() -> None:
        begin = time.process_time()
        for batch in given:
            for _ in operator.process(batch, 0):
                pass
            operator.commit()
        spent.append(time.process_time() - begin)

    benchmark.pedantic(run, rounds=6, warmup_rounds=1)
    record_us = min(spent) / (ROWS * BATCHES) * 1e6
    benchmark.extra_info["processor_us"] = round(record_us, 2)
    print(f"\n{name}: {record_us:.2f} us of processor a record")
