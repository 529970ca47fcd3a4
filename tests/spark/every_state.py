"""A job that keeps every kind of state there is, over every kind of edge, and a checkpoint of it
with records in flight.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.sizes import sizes_of

WAIT_S = 240.0
KEYS = 7
AT = pa.timestamp("ms")
CLICKS = pa.schema([("id", pa.int64()), ("key", pa.int64()), ("at", AT)])
OUT = pa.schema([("key", pa.int64())])


class Everything(hr.StatefulProcessor):
    """Values, lists and maps, with and without an end, and timers of both kinds."""

    seen = hr.value_state(pa.struct([("n", pa.int64()), ("last", AT)]))
    ids = hr.list_state(pa.int64())
    by_rest = hr.map_state(pa.string(), pa.list_(pa.int64()))
    recent = hr.value_state(pa.int64(), ttl="1h")

    def process(self, key: int, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """Remember the record everywhere."""
        self.seen.value = {"n": (self.seen.value or {"n": 0})["n"] + 1, "last": row["at"]}
        self.ids.append(row["id"])
        self.by_rest[str(row["id"] % 3)] = [row["id"]]
        self.recent.value = row["id"]
        self.timers.set(10**18)
        self.processing_timers.set_after("1h")
        return ()

    def on_timer(self, key: int, time_ns: int) -> Iterable[dict[str, Any]]:
        """Nothing to say."""
        return ()

    def on_processing_timer(self, key: int, time_ns: int) -> Iterable[dict[str, Any]]:
        """Nothing to say."""
        return ()


class Rules(hr.BroadcastProcessor):
    """Broadcast state beside state per key."""

    rules = hr.broadcast_state(pa.int64(), pa.struct([("id", pa.int64())]))
    count = hr.value_state(pa.int64(), default=0)

    def process_broadcast(self, row: dict[str, Any]) -> None:
        """Remember the rule."""
        self.rules[row["key"]] = {"id": row["sequence"]}

    def process(self, key: int, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
        """Count."""
        self.count.value += 1
        return ()


def to_click(batch: pa.RecordBatch) -> dict[str, Any]:
    """A millisecond a record."""
    return {"id": batch["sequence"], "key": batch["key"], "at": batch["sequence"].view(AT)}


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A stage that is behind."""
    time.sleep(0.02)
    return batch


def by_id(batch: pa.RecordBatch, consumers: int) -> npt.ArrayLike:
    """A partitioner of one's own."""
    targets: npt.ArrayLike = batch["id"].to_numpy() % consumers
    return targets


def every_state(folder: Path, backend: Literal["heap", "rocksdb"], parallelism: int = 2) -> hr.Job:
    """The job; its checkpoints go to `folder`."""
    numbers = hr.read.sequence(None, keys=KEYS, name="numbers", rate=3_000)
    clicks = numbers.map_batches(to_click, schema=CLICKS, name="clicks").with_watermark(
        "at", "1ms", name="times"
    )
    slow = {
        name: partitioned.map_batches(slowly, name=name)
        for name, partitioned in (
            ("rebalanced", clicks.rebalance()),
            ("shuffled", clicks.shuffle()),
            ("everywhere", clicks.broadcast()),
            ("by-id", clicks.partition_by(by_id, "id")),
        )
    }
    keyed = slow["rebalanced"].key_by("key")
    rules = hr.read.sequence(20, keys=4, name="rules", parallelism=1).broadcast()
    streams = {
        "totals": keyed.aggregate(n=hr.count(), mean=hr.mean("id"), name="totals"),
        "tumbled": keyed.window(hr.tumbling("1h")).aggregate(n=hr.count(), name="tumbled"),
        "sessions": keyed.window(hr.session("1h")).aggregate(last=hr.max("at"), name="sessions"),
        "everything": keyed.process(Everything, schema=OUT, name="everything"),
        "ruled": keyed.connect(rules, Rules, schema=OUT, name="ruled"),
        "pairs": slow["shuffled"].join(slow["by-id"], "key", within="1h", how="full", name="pairs"),
        "met": slow["shuffled"].join(slow["by-id"], "key", window=hr.tumbling("1h"), name="met"),
        "met-in-sessions": slow["shuffled"].join(
            slow["by-id"], "key", window=hr.session("1h"), name="met-in-sessions"
        ),
        "copies": slow["everywhere"],
    }
    return hr.Job(
        "job",
        *(stream.write.blackhole(name=f"{name}-out") for name, stream in streams.items()),
        parallelism=parallelism,
        max_parallelism=16,
        checkpoints=hr.Checkpoints(str(folder), interval=None, mode="unaligned", retain=9),
        state=hr.State(backend),
        network=hr.Network(buffer="2KiB", window="16KiB"),
    )


def checkpointed(job: hr.Job, inflight_records: int = 1000, **start: Any) -> CheckpointMetadata:
    """Run until a checkpoint holds so many records in flight, and cancel; that checkpoint."""
    handle = job.start("threads", **start)
    deadline_s = time.monotonic() + WAIT_S
    try:
        while True:
            handle.checkpoint()
            newest = handle.status().checkpoints[-1]
            if sizes_of(newest).inflight_records > inflight_records:
                return newest
            assert time.monotonic() < deadline_s, "nothing is in flight"
    finally:
        handle.cancel()
        handle.wait(WAIT_S)
