"""A newcomer's first programs: read, one function, write, at defaults; and a slow function against
a plain loop.

Question: records per second of `read -> filter`, `read -> map` and `read -> map_batches`, Parquet
to Parquet and Parquet to nowhere, between the moment when all workers run and the end of the job,
the last commit included. A record is an int64 id, an int64 key and a float64 value. And: a function
of 30 ms a call and 5 us a row, called by a job with `batch_size=4096`, by a job that learns the
size, and by a plain loop over the same 4096-row batches, in one subtask each; as ratios to the
loop. The function sleeps, as a model does that computes without the GIL. And: `map_async` with
calls of 100 ms, 64 at a time, with an unaligned checkpoint each 200 ms; as a ratio to 640 a second.
And: `read -> map` to nowhere in bytewax, after ours and on the same files, if it is installed.

Noise: machines are shared; compare figures of one run only, as ratios.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import headrace as hr
from headrace.engine.contract.options import Runner

from . import bytewax_map
from .measure import run_and_measure

BATCH_ROWS = 4096
#: Cost of a call of the slow function, and of each of its rows.
CALL_S, ROW_S = 0.030, 5e-6
#: Records of the programs that handle a row at a time, as a share of the others'.
_ROW_SHARE = 10
_FILES = 4
#: Calls of a service: seconds of each, and how many at a time.
_ANSWER_S, _CAPACITY = 0.1, 64


def run(
    *,
    records: int = 20_000_000,
    slow_calls: int = 300,
    parallelism: int = 2,
    runner: Runner = "processes",
) -> Iterator[dict[str, Any]]:
    """Run every program once, and yield a flat object for each."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        for operator, share in (("filter", 1), ("map_batches", 1), ("map", _ROW_SHARE)):
            path = write_input(Path(folder, f"in-{share}"), records // share)
            for sink in ("blackhole", "parquet"):
                out = Path(folder, f"out-{operator}")
                yield _measured(operator, sink, path, out, records // share, parallelism, runner)
        yield _peer(Path(folder, f"in-{_ROW_SHARE}"), records // _ROW_SHARE, parallelism)
        slow_records = slow_calls * BATCH_ROWS
        path = write_input(Path(folder, "slow"), slow_records)
        yield from _slow(path, slow_records, runner)
        yield _asked(Path(folder), slow_calls * _CAPACITY // 3, runner)


def write_input(path: Path, records: int) -> Path:
    """Write records as Parquet files, unless they are there."""
    if path.exists():
        return path
    path.mkdir()
    for number, ids in enumerate(np.array_split(np.arange(records), _FILES)):
        columns = {"id": ids, "key": ids % 1000, "value": ids * 0.5}
        pq.write_table(pa.table(columns), path / f"{number}.parquet")
    return path


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Take a fixed time, and some for each row."""
    time.sleep(CALL_S + ROW_S * batch.num_rows)
    return batch


async def ask(row: dict[str, Any]) -> dict[str, Any]:
    """Wait for an answer."""
    await asyncio.sleep(_ANSWER_S)
    return row


def add_one(batch: pa.RecordBatch) -> dict[str, Any]:
    """Add 1 to a column."""
    return {"id": batch["id"], "key": pc.add(batch["key"], 1), "value": batch["value"]}


def add_one_to_row(row: dict[str, Any]) -> dict[str, Any]:
    """Add 1 to a cell."""
    row["key"] += 1
    return row


#: {operator: adds it to a stream}.
OPERATORS: dict[str, Callable[[hr.Stream], hr.Stream]] = {
    "filter": lambda stream: stream.filter(pc.field("key") < 100),
    "map_batches": lambda stream: stream.map_batches(add_one),
    "map": lambda stream: stream.map(add_one_to_row),
}


def _measured(
    operator: str,
    sink: str,
    path: Path,
    out: Path,
    records: int,
    parallelism: int,
    runner: Runner,
) -> dict[str, Any]:
    stream = OPERATORS[operator](hr.read.parquet(str(path), name="in"))
    write = stream.write
    end = (
        write.blackhole(name="out") if sink == "blackhole" else write.parquet(str(out), name="out")
    )
    job = hr.Job(f"bench-first-{operator}", end, parallelism=parallelism)
    running_s = run_and_measure(job, runner).running_s
    return {
        "bench": "first",
        "program": f"read -> {operator} -> {sink}",
        "records": records,
        "records_per_s": round(records / running_s),
        "parallelism": parallelism,
        "runner": runner,
    }


def _peer(path: Path, records: int, parallelism: int) -> dict[str, Any]:
    """The row function in bytewax."""
    rate = bytewax_map.rate(path, records, parallelism)
    told = {"bench": "first", "program": "bytewax: read -> map -> blackhole", "records": records}
    if rate is None:
        return told | {"skipped": "bytewax is not installed here (pip install bytewax)"}
    return told | {"records_per_s": round(rate), "parallelism": parallelism}


def _slow(path: Path, records: int, runner: Runner) -> Iterator[dict[str, Any]]:
    """The slow function in a plain loop and in jobs."""
    began = time.monotonic()
    for file in sorted(path.iterdir()):
        for batch in pq.ParquetFile(file).iter_batches(BATCH_ROWS):
            slow(batch)
    loop = records / (time.monotonic() - began)
    for batch_size in (BATCH_ROWS, None):
        stream = hr.read.parquet(str(path), name="in").map_batches(slow, batch_size=batch_size)
        job = hr.Job("bench-first-slow", stream.write.blackhole(name="out"), parallelism=1)
        rate = records / run_and_measure(job, runner).running_s
        yield {
            "bench": "first",
            "program": f"slow function, batch_size={batch_size}",
            "records": records,
            "records_per_s": round(rate),
            "loop_records_per_s": round(loop),
            "ratio": round(rate / loop, 3),
            "runner": runner,
        }


def _asked(folder: Path, records: int, runner: Runner) -> dict[str, Any]:
    """Calls that wait for a service."""
    path = write_input(folder / "asked", records)
    stream = hr.read.parquet(str(path), name="in").map_async(ask, name="ask", capacity=_CAPACITY)
    interval = "200ms"
    checkpoints = hr.Checkpoints(str(folder / "checkpoints"), interval=interval, mode="unaligned")
    sink = stream.write.blackhole(name="out")
    job = hr.Job("bench-first-asked", sink, parallelism=1, checkpoints=checkpoints)
    measured = run_and_measure(job, runner)
    rate = records / measured.running_s
    return {
        "bench": "first",
        "program": "map_async, calls of 100 ms, capacity 64",
        "records": records,
        "records_per_s": round(rate),
        "ratio": round(rate * _ANSWER_S / _CAPACITY, 3),
        "runner": runner,
        **measured.checkpoints(interval),
    }
