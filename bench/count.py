"""Keyed count: how many records per second pass a keyed exchange into state, with and without
checkpoints.

Question: records per second of `sequence -> key_by -> count and sum` on one machine; unit: records
per second of wall time between the moment when all workers run and the end of the job, the last
commit included. A record is an int64 key of 100,000 distinct ones, an int64 timestamp, an int64
sequence and 76 bytes of payload (104 bytes). The payload crosses the exchange like the rest:
nothing is pruned or pre-aggregated before it. The answer is checked key by key.

Arms with text keys or with skew have the key in a further column (text: 16 characters), which the
source makes while it is measured. With skew, three of ten records have one key. With `emit` of
"changes" each batch's changed keys are emitted, about as many rows as there are records; a filter
behind the count keeps those with the least final count or more, for the check.

Noise: machines are shared; compare figures of one run only, as ratios.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.contract.options import Runner

from .measure import all_batches, run_and_measure

KEYS = 100_000
PAYLOAD_BYTES = 76


Keys = Literal["numbers", "text"]
Emit = Literal["final", "changes"]
_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Arm:
    """One variation of the count.

    Attributes:
        skewed: three of ten records have one key.
        emit: of the aggregate.
    """

    records: int
    keys: Keys = "numbers"
    skewed: bool = False
    emit: Emit = "final"

    @property
    def column(self) -> str:
        """The key: the source's own, or the further column of an arm."""
        return "key" if self.keys == "numbers" and not self.skewed else "customer"

    def source(self, payload_bytes: int, batch_rows: int) -> SequenceSource:
        """The records."""
        return SequenceSource(
            rows=self.records,
            key_count=KEYS,
            payload_bytes=payload_bytes,
            batch_rows=batch_rows,
            columns={} if self.column == "key" else {"customer": self._customers},
        )

    def key_numbers(self, keys: pa.ChunkedArray | pa.Array) -> _Numbers:
        """The numbers of keys as they are in records."""
        if self.keys == "text":
            keys = pc.index_in(keys, value_set=_names())
        return np.asarray(keys).astype(np.int64)

    def _customers(self, sequence: _Numbers) -> npt.ArrayLike:
        runs = sequence // KEYS
        within = sequence - runs * KEYS
        numbers = within * 48271 % KEYS
        if self.skewed:
            # Each key gives the same share of its records to key 0, at any time.
            numbers = np.where((runs + within) % 10 < 3, 0, numbers)
        return numbers if self.keys == "numbers" else _names().take(pa.array(numbers))


@cache
def _names() -> pa.Array:
    """The text keys, in the order of their numbers."""
    return pc.binary_join_element_wise(
        "customer", pc.utf8_lpad(pc.cast(pa.array(range(KEYS)), pa.string()), 7, "0"), "-"
    )


def run(
    *,
    records: int = 30_000_000,
    parallelism: int = 2,
    runner: Runner = "processes",
    checkpoint_interval: str | None = "1s",
    checkpoint_dir: str | None = None,
    keys: Keys = "numbers",
    skewed: bool = False,
    emit: Emit = "final",
    logged: bool = False,
) -> dict[str, Any]:
    """Run once. Returns one flat object: `records_per_s`, `correct`, `parallelism`, `checkpoints`,
    `checkpoint_p50_ms`, ...

    Args:
        checkpoint_interval: None: no checkpoints.
        checkpoint_dir: None: a temporary folder.
        logged: the records go through a durable log between source and exchange.
    """
    arm = Arm(records, keys, skewed, emit)
    counts, totals = expected(arm)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        source = hr.from_source(arm.source(PAYLOAD_BYTES, batch_rows=32768), name="sequence")
        if logged:
            source = source.logged(name="log")
        found = source.key_by(arm.column).aggregate(
            n=hr.count(), total=hr.sum("sequence"), emit=emit, name="count"
        )
        if emit == "changes":
            found = found.filter(pc.field("n") >= int(counts[counts > 0].min()))
        job = hr.Job(
            "bench-count",
            found.write.collect(name="out"),
            parallelism=parallelism,
            checkpoints=None
            if checkpoint_interval is None
            else hr.Checkpoints(checkpoint_dir or folder, interval=checkpoint_interval),
        )
        measured = run_and_measure(job, runner)
    answer = measured.result.collected["out"]
    return {
        "bench": "count",
        "records": records,
        "keys": keys,
        "skew": skewed,
        "emit": emit,
        "logged": logged,
        "records_per_s": round(records / measured.running_s),
        "correct": correct(arm, answer, counts, totals),
        "parallelism": parallelism,
        "runner": runner,
        **measured.checkpoints(checkpoint_interval),
    }


def expected(arm: Arm) -> tuple[_Numbers, _Numbers]:
    """Count and sum of each key, computed here in one plain pass over the same records."""
    counts, totals = np.zeros(KEYS, dtype=np.int64), np.zeros(KEYS, dtype=np.int64)
    for batch in all_batches(arm.source(payload_bytes=0, batch_rows=1 << 20)):
        numbers = arm.key_numbers(batch.column(arm.column))
        counts += np.bincount(numbers, minlength=KEYS)
        np.add.at(totals, numbers, batch.column("sequence").to_numpy())
    return counts, totals


def correct(arm: Arm, answer: pa.Table, counts: _Numbers, totals: _Numbers) -> bool:
    """Whether every key has its count and its sum: once, or after all its changes."""
    numbers = arm.key_numbers(answer[arm.column])
    if arm.emit == "final" and len(numbers) != np.count_nonzero(counts):
        return False
    found, summed = np.zeros_like(counts), np.zeros_like(totals)
    np.maximum.at(found, numbers, answer["n"].to_numpy())
    np.maximum.at(summed, numbers, answer["total"].to_numpy())
    return np.array_equal(found, counts) and np.array_equal(summed, totals)
