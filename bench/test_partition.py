"""How long does it take to split one batch among the consumers of an edge, and to hash its key?

Unit: time per batch; `extra_info` has the rows per second of the fastest and of the median round.
The record is that of the main experiment: three int64 columns and a payload of 76 bytes. Batches of
512 rows show the fixed cost of a call, 32,768 rows the cost of memory. The data is in the cache,
and nothing else should run on the machine; expect 10 % of noise on a quiet one.

Run: `pytest bench/test_partition.py -o addopts=--import-mode=importlib`; add
`--benchmark-json=FILE` for the figures.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from headrace.channels.hashing import hash_rows
from headrace.channels.partitioners.custom import Custom
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.partitioner import Partitioner
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.channels.partitioners.shuffle import Shuffle

ROWS = [512, 4096, 8192, 32768]
CONSUMERS = [2, 3, 8, 32, 128]
PAYLOADS = {"fixed": pa.binary(76), "string": pa.string()}
#: Calls per round, so that a round is long against the resolution of the clock.
CALLS = 20

KEYS: dict[str, Callable[[int], pa.Array]] = {
    "int64": lambda rows: pa.array(np.random.default_rng(1).integers(0, 100_000, rows)),
    "string-11": lambda rows: pa.array([f"user-{index:06d}" for index in range(rows)]),
    "string-6-to-10": lambda rows: pa.array(
        [f"user-{index * 37 % 100_000}" for index in range(rows)]
    ),
    "string-76": lambda rows: pa.array([f"{index:076d}" for index in range(rows)]),
}


def record_batch(rows: int, payload: pa.DataType) -> pa.RecordBatch:
    rng = np.random.default_rng(1)
    integers = [pa.array(rng.integers(0, 100_000, rows)) for _ in range(3)]
    texts = pa.array([rng.bytes(38).hex() for _ in range(rows)])
    columns = [*integers, texts.cast(pa.binary()).cast(payload)]
    return pa.RecordBatch.from_arrays(columns, names=["key", "timestamp", "sequence", "payload"])


def measure(benchmark: BenchmarkFixture, rows: int, call: Callable[[], object]) -> None:
    # Ignored, because pytest-benchmark leaves this one function untyped.
    benchmark.pedantic(call, rounds=50, iterations=CALLS, warmup_rounds=3)  # type: ignore[no-untyped-call]
    if benchmark.stats is not None:  # with --benchmark-disable
        stats = benchmark.stats.stats
        benchmark.extra_info["rows_per_second_best"] = rows / stats.min
        benchmark.extra_info["rows_per_second_median"] = rows / stats.median


@pytest.mark.parametrize("consumers", CONSUMERS)
@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("rows", ROWS)
def test_split_by_key(benchmark: BenchmarkFixture, rows: int, payload: str, consumers: int) -> None:
    batch = record_batch(rows, PAYLOADS[payload])
    splitter = Hash(("key",), 128).open(0, 1, consumers, 0)
    measure(benchmark, rows, lambda: splitter.split(batch))


def modulo(batch: pa.RecordBatch, consumers: int) -> npt.ArrayLike:
    targets: npt.NDArray[np.int64] = batch.column("key").to_numpy() % consumers
    return targets


@pytest.mark.parametrize("consumers", [2, 8])
@pytest.mark.parametrize(
    "partitioner", [Rebalance(), Shuffle(), Custom(modulo)], ids=lambda value: value.name
)
def test_split_without_key(
    benchmark: BenchmarkFixture, partitioner: Partitioner, consumers: int
) -> None:
    batch = record_batch(8192, PAYLOADS["fixed"])
    splitter = partitioner.open(0, 1, consumers, 0)
    measure(benchmark, batch.num_rows, lambda: splitter.split(batch))


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("rows", ROWS)
def test_hash_rows(benchmark: BenchmarkFixture, rows: int, key: str) -> None:
    batch = pa.RecordBatch.from_arrays([KEYS[key](rows)], names=["key"])
    measure(benchmark, rows, lambda: hash_rows(batch, ["key"]))
