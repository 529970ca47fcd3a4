"""A count by key of many keys: how fast is it on RocksDB against the heap, and where does the time
go?

Unit: records per second of `sequence -> key_by -> count` with a checkpoint every few seconds, from
the moment when all workers run to the end of the job. Every key occurs about three times, far
apart, so nothing is gained by keeping the latest ones at hand: each record is a read and a write of
the database.

Where the time goes is told by one subtask's work in this process, on a part of the records and as
large a part of the keys, in processor time a record: without waiting and without what others do on
the machine. `background` is the time of RocksDB's own threads. The parts lie on several threads of
a worker, so they do not add up to the time between two records of a job.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import pyarrow as pa

import headrace as hr
from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.partitioners.hash import Hash
from headrace.channels.wire import BufferFrame, FrameDecoder, FrameEncoder
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.contract.execution import SubtaskId
from headrace.engine.contract.operators import OperatorContext, Snapshot, StateBackend
from headrace.engine.contract.options import Runner
from headrace.engine.operators import aggregations
from headrace.engine.operators.aggregate import AggregateOperator
from headrace.engine.state.rocks.backend import open_backend
from headrace.engine.state.rocks.codecs import KeyCodec, PackedValues
from headrace.engine.state.rocks.database import RocksDatabase
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.engine.storage.databases import StoredFiles
from headrace.engine.storage.snapshots import write_checkpoint
from headrace.engine.worker.subtask_events import Cut
from headrace.inflight.confirmed import Confirmed

from .measure import all_batches, run_and_measure

_SUBTASK = SubtaskId(0, 0)
_GROUPS = 128
#: About what a subtask takes at a time from its gate when a record costs some microseconds.
_PIECE_ROWS = 4096
_SCHEMA = pa.schema([("key", pa.int64())])
_KEY = b"k" * 32

_SUM = pa.schema([("keys", pa.int64()), ("n", pa.int64())])


def run_count(
    *,
    records: int = 30_000_000,
    keys: int = 10_000_000,
    parallelism: int = 2,
    runner: Runner = "processes",
    checkpoint_interval: str = "5s",
    backend: str = "rocksdb",
) -> dict[str, Any]:
    """Count records by key with the state on `backend`; `correct` says whether no record was lost
    or counted twice.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        source = SequenceSource(rows=records, key_count=keys, batch_rows=32_768)
        stream = hr.from_source(source, name="sequence").select("key")
        totals = stream.key_by("key").aggregate(n=hr.count(), emit="final", name="count")
        summed = totals.map_batches(_sum, schema=_SUM, name="sum")
        job = hr.Job(
            "bench-state",
            summed.write.collect(name="out"),
            parallelism=parallelism,
            state=hr.State("rocksdb" if backend == "rocksdb" else "heap"),
            checkpoints=hr.Checkpoints(f"{folder}/checkpoints", interval=checkpoint_interval),
        )
        measured = run_and_measure(job, runner)
    out = measured.result.collected["out"]
    return {
        "bench": "state-count",
        "backend": backend,
        "records": records,
        "keys": sum(out["keys"].to_pylist()),
        "records_per_s": round(records / measured.running_s),
        "correct": sum(out["n"].to_pylist()) == records,
        "parallelism": parallelism,
        "runner": runner,
        **measured.checkpoints(checkpoint_interval),
    }


def run_counts(**arguments: Any) -> dict[str, Any]:
    """`run_count` on RocksDB and then on the heap: the one's results, the other's speed, and what
    it is over that.
    """
    found = run_count(**arguments)
    heap = run_count(**arguments, backend="heap")
    return found | {
        "correct": found["correct"] and heap["correct"],
        "heap_records_per_s": heap["records_per_s"],
        "over_heap": round(found["records_per_s"] / heap["records_per_s"], 3),
    }


@dataclass(slots=True)
class Parts:
    """Processor time of this thread by part; a part inside another is taken off that."""

    seconds: dict[str, float] = field(default_factory=dict)
    _stack: list[str] = field(default_factory=list)
    _since: float = 0.0

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What runs inside is `name`'s."""
        self._charge()
        self._stack.append(name)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function or method, whose time is `name`'s."""

        def timed(*arguments: Any) -> Any:
            with self.part(name):
                return call(*arguments)

        return timed

    def _charge(self) -> None:
        now = time.thread_time()
        if self._stack:
            name = self._stack[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now


#: Whose time is told apart inside the operator's.
_INSIDE: tuple[tuple[str, type, str], ...] = (
    ("get", RocksDatabase, "get_many"),
    ("put", RocksDatabase, "settle"),
    ("serialise", KeyCodec, "encode"),
    ("serialise", KeyCodec, "encode_sorted"),
    ("serialise", PackedValues, "encode"),
    ("serialise", PackedValues, "decode"),
)


def run_parts(
    *, records: int = 3_000_000, keys: int = 1_000_000, checkpoints: int = 6
) -> dict[str, Any]:
    """Count in this process, as one subtask would, on both backends; processor time in microseconds
    a record, by part.
    """
    result: dict[str, Any] = {"bench": "state-parts", "records": records, "keys": keys}
    for kind in ("rocksdb", "heap"):
        parts = Parts()
        began = time.process_time()
        with contextlib.ExitStack() as patched:
            for name, class_, method in _INSIDE:
                timed = parts.timed(name, getattr(class_, method))
                patched.enter_context(mock.patch.object(class_, method, timed))
            _count(kind, records, keys, checkpoints, parts)
        background = time.process_time() - began - sum(parts.seconds.values())
        found = parts.seconds | {"background": background}
        result[kind] = {name: round(1e6 * s / records, 3) for name, s in found.items()}
        result[f"{kind}_total"] = round(1e6 * sum(found.values()) / records, 3)
    return result


def _count(kind: str, records: int, keys: int, checkpoints: int, parts: Parts) -> None:
    source = SequenceSource(rows=records, key_count=keys, batch_rows=32_768)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        names = itertools.count()
        databases = partial(open_backend, folder=lambda: f"{folder}/{next(names)}")
        backend = StateBackend(kind, databases=databases)
        operator = AggregateOperator(["key"], {"n": aggregations.count()}, _SCHEMA, "final")
        operator.open(OperatorContext("bench", "count", 0, 1, _GROUPS, 1, backend))
        take = _Checkpoints(FsspecStore(f"{folder}/checkpoints"), operator, parts)
        crossing = _Exchange(parts)
        batches = all_batches(source)
        every = -(-records // checkpoints)
        rows = 0
        while (batch := parts.timed("source", next)(batches, None)) is not None:
            for piece in crossing.pieces(batch.select(["key"])):
                with parts.part("aggregate"):
                    list(operator.process(piece, 0))
                    operator.commit()
                rows += piece.num_rows
                if rows // every > take.number:
                    take.one()
        operator.close()


class _Exchange:
    """Records to the subtask that owns their key, by way of the wire format; here both are one."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._encoder = FrameEncoder(_KEY)
        self._decoder = FrameDecoder(_KEY, lambda edge: _SCHEMA)
        self._splitter = Hash(("key",), _GROUPS).open(0, 1, 2, 0)

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        with self._parts.part("shuffle"):
            crossed = [self._cross(part) for _, part in self._splitter.split(batch)]
        for part in crossed:
            for first in range(0, part.num_rows, _PIECE_ROWS):
                yield part.slice(first, _PIECE_ROWS)

    def _cross(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        header, *bodies = self._encoder.encode(BufferFrame(ChannelId(0, 0, 0), Buffer.of(0, batch)))
        body = pa.py_buffer(b"".join(bodies))
        frame = self._decoder.frame(self._decoder.header(memoryview(header)), body)
        assert isinstance(frame, BufferFrame), "what was sent"
        (batch,) = frame.buffer.parts
        return batch


class _Checkpoints:
    """Incremental checkpoints of one operator, each complete before the next."""

    def __init__(self, store: FsspecStore, operator: AggregateOperator, parts: Parts) -> None:
        self.number = 0
        self._store = store
        self._operator = operator
        self._parts = parts
        self._stored = StoredFiles()

    def one(self) -> None:
        self.number += 1
        with self._parts.part("checkpoint"):
            states: list[tuple[str, Snapshot]] = [("n", s) for s in self._operator.snapshot()]
            if (frozen := self._operator.freeze_database()) is not None:
                states.append(("n", frozen))
            cut = Cut(_SUBTASK, self.number, False, (), (), (), (), (), 0, 0)
            written = write_checkpoint(
                *(self._store, "bench", self.number, 0, 1, {_SUBTASK: states}, [cut]),
                Confirmed(),
                stored=self._stored,
            )
            self._stored.stored(self.number, written.files)
            self._stored.confirmed(self.number)


def _sum(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"keys": [batch.num_rows], "n": [int(batch["n"].to_numpy().sum())]}
