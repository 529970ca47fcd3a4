"""The Kafka sink: processor time of its whole writer, and how long its pre-commits take.

The codec alone is measured by `kafka.py`. Here records go the way they take in a job: batches are
gathered, partitioned, encoded and sent within transactions, which are committed. Pre-commits are
timed in the writers of a job of two workers with a steady load, each of which has a process.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.engine.connectors.kafka.committer import KafkaCommitter
from headrace.engine.connectors.kafka.compression import Compression
from headrace.engine.connectors.kafka.outgoing import Layout
from headrace.engine.connectors.kafka.sink import KafkaSink
from headrace.engine.connectors.kafka.sink_settings import Settings
from headrace.engine.connectors.kafka.writer import KafkaWriter
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.contract.connectors import Delivery
from headrace.engine.contract.operators import OperatorContext, Transaction

from .measure import percentile, run_and_measure

_TRANSACTION_BATCHES = 64
_INTERVAL = "1s"
_PARALLELISM = 2


def write(
    servers: str, topic: str, values: pa.Array, batches: int, compression: Compression, *, key: bool
) -> int:
    """Write the values so many times through one writer. Returns how many records were written.

    Args:
        key: records have keys, by which they are partitioned.
    """
    layout = Layout(topic=topic, value="value", key="key" if key else None)
    sink = KafkaSink(layout, servers, compression=compression)
    job = f"{topic}-{layout.key}"
    writer, committer = sink.writer(), sink.committer(job, "out")
    assert committer is not None, "the sink is exactly once"
    committer.own("run", anew=True)
    writer.open(OperatorContext(job, "out", 0, 1, 128, 1, owner="run"))
    keys = pa.array(np.arange(len(values)) % 1000, pa.int64())
    batch = pa.record_batch({"key": keys, "value": values})
    for turn in range(1, batches + 1):
        writer.write(batch)
        if turn % _TRANSACTION_BATCHES == 0 or turn == batches:
            committer.commit(turn, writer.precommit(turn))
    writer.close()
    return batches * len(values)


def time_checkpoints(
    servers: str,
    topic: str,
    *,
    value_bytes: int,
    compression: Compression,
    rate: float,
    seconds: float,
) -> dict[str, Any]:
    """Run a job that writes at a steady rate. Returns one flat object, times in milliseconds."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        source = SequenceSource(
            rows=round(rate * seconds), rate_per_s=rate, payload_bytes=value_bytes
        )
        sink = KafkaSink(
            Layout(topic=topic, value="payload", key="key"), servers, compression=compression
        )
        times = Path(folder, "times")
        times.mkdir()
        stream = hr.from_source(source, name="numbers")
        job = hr.Job(
            topic,
            stream.write.to(_TimedSink(sink, str(times)), name="out"),
            parallelism=_PARALLELISM,
            checkpoints=hr.Checkpoints(f"{folder}/checkpoints", interval=_INTERVAL),
        )
        measured = run_and_measure(job, "processes")
        rows = [np.fromfile(path, dtype=np.int64) for path in times.iterdir()]
    took_ms = sorted((np.concatenate(rows) / 1e6).tolist())
    return {
        "rate": rate,
        "precommits": len(took_ms),
        "precommit_p50_ms": percentile(took_ms, 50),
        "precommit_p99_ms": percentile(took_ms, 99),
        "precommit_max_ms": percentile(took_ms, 100),
        **measured.checkpoints(_INTERVAL),
    }


@dataclass(frozen=True, slots=True)
class _TimedSink:
    """A Kafka sink that notes how long pre-commits take in files below `folder`."""

    sink: KafkaSink
    folder: str

    @property
    def delivery(self) -> Delivery:
        return self.sink.delivery

    def check(self, schema: pa.Schema) -> None:
        self.sink.check(schema)

    def writer(self) -> _TimedWriter:
        return _TimedWriter(self.sink.settings, self.folder)

    def committer(self, job: str, operator: str) -> KafkaCommitter | None:
        return self.sink.committer(job, operator)


class _TimedWriter(KafkaWriter):
    """Appends the time of each pre-commit to a file of its own, in nanoseconds."""

    def __init__(self, settings: Settings, folder: str) -> None:
        super().__init__(settings)
        self._file = Path(folder, f"{os.getpid()}-{id(self)}").open("ab", buffering=0)  # noqa: SIM115

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        began_ns = time.monotonic_ns()
        transactions = super().precommit(checkpoint)
        if transactions:
            self._file.write(np.int64(time.monotonic_ns() - began_ns).tobytes())
        return transactions

    def close(self) -> None:
        self._file.close()
        super().close()
