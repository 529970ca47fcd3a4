"""What does `isolate=True` cost a batch?

Unit: microseconds per batch, printed and in `extra_info`: an identity function as an operator at
home and isolated, over batches of records of 100 bytes (three int64 columns and a payload of 76
bytes); the difference is the cost of the isolation. Small batches travel in the message, larger
ones in shared memory. Both processes should have a processor each; expect 20 % of noise.

Run: `pytest bench/test_isolated.py -s -o addopts=--import-mode=importlib`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from headrace.engine.contract.launcher import Incarnation, WorkerProgram
from headrace.engine.contract.operators import Operator, OperatorContext
from headrace.engine.drivers.companion import Companion
from headrace.engine.operators.batch import MapBatchesOperator
from headrace.engine.operators.isolated import IsolatedOperator

ROWS = [1, 256, 4096, 32768]
CALLS = 20


def record_batch(rows: int) -> pa.RecordBatch:
    numbers = pa.array(np.arange(rows))
    payload = pa.array([bytes(76)] * rows, pa.binary(76))
    columns = {"sequence": numbers, "timestamp": numbers, "key": numbers, "payload": payload}
    return pa.record_batch(columns)


@pytest.fixture(scope="module")
def companion() -> Iterator[Companion]:
    # Nobody listens at the coordinator's address: there is no pulse.
    program = WorkerProgram("bench", ("127.0.0.1", 1), bytes(32), b"", 1)
    made = Companion(program, Incarnation(0, 0))
    yield made
    made.stop()


def _identity(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("where", ["home", "isolated"])
def test_a_batch_through_an_identity(
    where: str, rows: int, companion: Companion, benchmark: BenchmarkFixture
) -> None:
    batch = record_batch(rows)
    make = partial(MapBatchesOperator, _identity, batch.schema)
    operator: Operator = make(operator="score")
    context = OperatorContext("bench", "score", 0, 1, 16, 1)
    if where == "isolated":
        operator = IsolatedOperator(make, operator="score")
        context = replace(context, processes=companion.process)
    operator.open(context)

    def call() -> None:
        for _ in range(CALLS):
            for _ in operator.process(batch, 0):
                pass

    benchmark(call)
    operator.close()
    if benchmark.stats is not None:
        stats = benchmark.stats.stats
        fastest_us, median_us = (s / CALLS * 1e6 for s in (stats.min, stats.median))
        benchmark.extra_info["us_per_batch"] = round(median_us, 1)
        print(f"\n{where}, {rows} rows: {median_us:.0f} µs a batch, fastest {fastest_us:.0f}")
