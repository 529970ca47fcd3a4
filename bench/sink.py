"""What a Parquet sink costs: the same job with the sink, and with one that drops its records.

Question: by how much does a job take longer, and more processor, if it writes Parquet files with a
checkpoint each second, instead of dropping its records with the same checkpoints? Beside them the
same job with `map_batches` of a function that does nothing before the dropping sink: the cost of
any operator.

    read:   sequence -> sink
    count:  sequence -> key_by -> count and sum, each change -> sink
    map:    sequence -> map of each row -> sink; a twentieth of the records

The less a job does with a record, the larger is the sink's share: records of `read` cost next to
nothing to make, those of `map` a call of a Python function. Results are ratios to the dropping sink
within a round, of wall time (from the moment when all workers run to the end of the job, its last
commit included) and of processor time (workers and driver, from their first moment to that end).
`arrow_ratio` is the share that no sink can save: the processor time that pyarrow alone takes, by
its defaults, to write the same records to Parquet files of the same size, over the job's with the
dropping sink, added to 1. A run that is too short to be measured has no ratio.

Noise: machines are shared; a round runs its arms one after the other, and each round begins with
another one.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import headrace as hr
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.connectors.writers import PARQUET
from headrace.engine.contract.options import Runner

from .measure import run_and_measure

_KEYS = 100_000

Pipeline = Literal["read", "count", "map"]
PIPELINES: tuple[Pipeline, ...] = get_args(Pipeline)
_Arm = Literal["blackhole", "identity", "parquet"]
_ARMS: tuple[_Arm, ...] = ("blackhole", "identity", "parquet")


def identity(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Do nothing."""
    return batch


def add_one(row: dict[str, Any]) -> dict[str, Any]:
    """Change a cell."""
    row["key"] += 1
    return row


def _read(records: int) -> hr.Stream:
    source = SequenceSource(rows=records, key_count=_KEYS, batch_rows=32768)
    return hr.from_source(source, name="sequence")


def _counted(records: int) -> hr.Stream:
    return (
        _read(records)
        .key_by("key")
        .aggregate(n=hr.count(), total=hr.sum("sequence"), emit="changes", name="count")
    )


def _mapped(records: int) -> hr.Stream:
    return _read(records).map(add_one, name="map")


_STREAMS: Mapping[Pipeline, Callable[[int], hr.Stream]] = {
    "read": _read,
    "count": _counted,
    "map": _mapped,
}
#: Records of a pipeline, as a share of those asked for.
_SHARES: Mapping[Pipeline, int] = {"read": 1, "count": 1, "map": 20}


def run(
    *,
    pipeline: Pipeline = "count",
    records: int = 20_000_000,
    rounds: int = 3,
    parallelism: int = 2,
    runner: Runner = "processes",
    checkpoint_interval: str = "1s",
) -> dict[str, Any]:
    """Run every arm so many times. Returns one flat object, of medians over the rounds."""
    records //= _SHARES[pipeline]
    taken: list[dict[str, float]] = []
    last: dict[str, Any] = {}
    for number in range(rounds):
        turn = number % len(_ARMS)
        found: dict[str, float] = {}
        for arm in (*_ARMS[turn:], *_ARMS[:turn]):
            with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
                job = _job(pipeline, arm, records, parallelism, folder, checkpoint_interval)
                measured = run_and_measure(job, runner)
                found[f"{arm}_wall"] = measured.running_s
                found[f"{arm}_processor"] = measured.processor_s
                if arm == "parquet":
                    table = pq.read_table(_output(folder))
                    found["arrow"] = _rewritten(folder)
                    whole = last.get("correct", True) and _is_whole(pipeline, table, records)
                    last = {"correct": whole, **measured.checkpoints(checkpoint_interval)}
        taken.append(found)
    return {
        "bench": "sink",
        "pipeline": pipeline,
        "records": records,
        **_ratios(taken),
        "rounds": rounds,
        "parallelism": parallelism,
        "runner": runner,
        **last,
    }


def _job(
    pipeline: Pipeline, arm: _Arm, records: int, parallelism: int, folder: str, interval: str
) -> hr.Job:
    stream = _STREAMS[pipeline](records)
    if arm == "identity":
        stream = stream.map_batches(identity, name="identity")
    write = stream.write
    parquet = arm == "parquet"
    return hr.Job(
        f"bench-sink-{arm}",
        write.parquet(_output(folder), name="out") if parquet else write.blackhole(name="out"),
        parallelism=parallelism,
        checkpoints=hr.Checkpoints(f"{folder}/checkpoints", interval=interval),
    )


def _output(folder: str) -> str:
    return f"{folder}/out"


def _rewritten(folder: str) -> float:
    """Write each file of the output once more by pyarrow alone; return the processor time."""
    used_s = 0.0
    for number, path in enumerate(sorted(Path(_output(folder)).glob("part-*"))):
        table = pq.read_table(path)
        began_s = time.process_time()
        with open(Path(folder, f"arrow-{number}"), "wb") as file:
            pq.write_table(table, file, compression=PARQUET.compression)
        used_s += time.process_time() - began_s
    return used_s


def _is_whole(pipeline: Pipeline, written: pa.Table, records: int) -> bool:
    """Whether all records are there, once; of changes, the last one of each key."""
    if pipeline != "count":
        total = records * (records - 1) // 2
        return (len(written), pc.sum(written["sequence"]).as_py()) == (records, total)
    last = written.group_by("key").aggregate([("n", "max"), ("n", "count_distinct")])
    distinct = pc.sum(last["n_count_distinct"]).as_py()
    return (pc.sum(last["n_max"]).as_py(), distinct) == (records, len(written))


def _ratios(taken: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """The medians of each round's ratios to the dropping sink."""

    def of(figure: str, base: str) -> float | None:
        found = [each[figure] / each[base] for each in taken if each[base]]
        return round(median(found), 3) if found else None

    ratios = {
        f"{arm}_{kind}_ratio": of(f"{arm}_{kind}", f"blackhole_{kind}")
        for arm in ("parquet", "identity")
        for kind in ("wall", "processor")
    }
    share = of("arrow", "blackhole_processor")
    ratios["arrow_ratio"] = None if share is None else round(1 + share, 3)
    for kind in ("wall", "processor"):
        ratios[f"blackhole_{kind}_s"] = round(median(t[f"blackhole_{kind}"] for t in taken), 3)
    return ratios
