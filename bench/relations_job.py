"""A job of windows, joins, timers and a connect whose output Spark SQL can tell: what `relations`
kills and rescales.

Records are out of order within each partition of the two inputs, and partitions are apart in event
time; none is late for its partition, so none may be dropped. A slow stage before the windows keeps
queues full.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from headrace.engine.operators.windows import Window

from .partitions import PartitionedSource

_PARTITIONS = 6
KEYS = 20
RULES = 40
#: What a record costs in the slow stage, in a subtask.
PAUSE_S = 0.002
#: A pause shorter than this takes longer than it says.
_NAP_S = 0.005
#: Event time in microseconds: of the first record, between neighbours of a partition, the disorder
#: in it, and from one partition to the next.
_BEGIN_US, _STEP_US, _DISORDER_US, _APART_US = 10_000_000, 5_000, 200_000, 700_000
WINDOW_US, SLIDE_US, GAP_US = 1_000_000, 400_000, 60_000
#: Of the joins: how far apart records may be, and windows so small that few records meet in them.
WITHIN_US, MEET_US, MEET_SLIDE_US, MEET_GAP_US = 10_000, 20_000, 8_000, 10_000
#: Each input lacks every so-many-th record, so that the join has records that meet none.
LEFT_LACKS, RIGHT_LACKS = 11, 7

_EVENTS = pa.schema(
    [("key", pa.int64()), ("sequence", pa.int64()), ("at", pa.timestamp("us", "UTC"))]
)
_TIMED = pa.schema([(name, pa.int64()) for name in ("key", "start", "end", "n", "total")])
_RULED = pa.schema([("key", pa.int64()), ("sequence", pa.int64()), ("rules", pa.int64())])

Numbers = npt.NDArray[np.int64]


def at_us(sequence: Numbers) -> Numbers:
    """When records happened, in microseconds."""
    place, partition = sequence // _PARTITIONS, sequence % _PARTITIONS
    disorder = (sequence * 2_654_435_761 >> 7) % _DISORDER_US
    times: Numbers = _BEGIN_US + place * _STEP_US + partition * _APART_US - disorder
    return times


@dataclass(frozen=True, slots=True)
class Stamped:
    """Gives records their times, and drops every `lacks`-th."""

    lacks: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        sequence = batch["sequence"].to_numpy()
        times = pa.array(at_us(sequence)).cast(_EVENTS[2].type)
        columns = [batch["key"], batch["sequence"], times]
        kept = pa.array(sequence % self.lacks != 0)
        return pa.RecordBatch.from_arrays(columns, schema=_EVENTS).filter(kept)


@dataclass(frozen=True, slots=True)
class Slow:
    """Passes records on, each at a cost, until the file `hurry` is there."""

    hurry: str

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for _ in range(int(batch.num_rows * PAUSE_S / _NAP_S)):
            if not os.path.exists(self.hurry):
                time.sleep(_NAP_S)
        return batch


class Rules(hr.BroadcastProcessor):
    """Tells for each record how many rules its subtask knows."""

    known = hr.broadcast_state(pa.int64(), pa.int64())

    def process_broadcast(self, row: dict[str, Any]) -> None:
        """Count the rules: each is to be counted once in every subtask, whatever happens."""
        self.known[0] = self.known.get(0, 0) + 1

    def process(self, key: int, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Pass the record on with the count."""
        yield {"key": key, "sequence": row["sequence"], "rules": self.known.get(0, 0)}


class Timed(hr.StatefulProcessor):
    """Tumbling windows once more, with timers."""

    counts = hr.map_state(pa.int64(), pa.int64())
    totals = hr.map_state(pa.int64(), pa.int64())

    def process(self, key: int, row: dict[str, Any]) -> None:
        """Add the record to its window, and have the window's end told."""
        end = micros(row["at"]) // WINDOW_US * WINDOW_US + WINDOW_US
        self.counts[end] = self.counts.get(end, 0) + 1
        self.totals[end] = self.totals.get(end, 0) + row["sequence"]
        self.timers.set(end * 1000 - 1)

    def on_timer(self, key: int, time_ns: int) -> Iterator[dict[str, Any]]:
        """Emit a window and forget it."""
        end = (time_ns + 1) // 1000
        n, total = self.counts.pop(end, 0), self.totals.pop(end, 0)
        yield {"key": key, "start": end - WINDOW_US, "end": end, "n": n, "total": total}


@dataclass(frozen=True, slots=True)
class RelationsJob:
    """The job in a folder of its own, and what it left there. `rows`: of each of its two inputs."""

    folder: Path
    rows: int
    rate_per_s: float

    def build(self, **options: Any) -> hr.Job:
        """Make the job; `options` are those of `hr.Job`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        left, right = self._events("left", LEFT_LACKS), self._events("right", RIGHT_LACKS)
        slow = left.rebalance().map_batches(Slow(str(self._hurry)), schema=_EVENTS, name="slow")
        kinds: dict[str, Window] = {
            "tumbling": hr.tumbling("1s"),
            "sliding": hr.sliding("1s", every="400ms"),
            "sessions": hr.session("60ms"),
        }
        results: dict[str, hr.Stream] = {
            name: slow.key_by("key")
            .window(window)
            .aggregate(n=hr.count(), total=hr.sum("sequence"), name=name)
            for name, window in kinds.items()
        }
        results["joined"] = slow.join(right, "key", within="10ms", how="full", name="joined")
        meetings: dict[str, Window] = {
            "joined_tumbling": hr.tumbling("20ms"),
            "joined_sliding": hr.sliding("20ms", every="8ms"),
            "joined_sessions": hr.session("10ms"),
        }
        results |= {
            name: slow.join(right, "key", window=window, how="full", name=name)
            for name, window in meetings.items()
        }
        results["timed"] = slow.key_by("key").process(Timed, schema=_TIMED, name="timed")
        rules = hr.read.sequence(RULES, name="rules", rate=RULES, parallelism=1).broadcast()
        results["ruled"] = slow.key_by("key").connect(rules, Rules, schema=_RULED, name="ruled")
        sinks = [
            stream.write.parquet(str(self.folder / name), name=f"{name}-out")
            for name, stream in results.items()
        ]
        return hr.Job("relations", *sinks, max_parallelism=32, **options)

    def _events(self, name: str, lacks: int) -> hr.Stream:
        source = PartitionedSource(self.rows, _PARTITIONS, KEYS, self.rate_per_s, str(self._hurry))
        events = hr.from_source(source, name=name)
        timed = events.map_batches(Stamped(lacks), schema=_EVENTS, name=f"{name}-times")
        return timed.with_watermark("at", _DISORDER_US / 1e6, name=f"{name}-watermark")

    @property
    def _hurry(self) -> Path:
        return self.folder / "hurry"

    def hurry(self) -> None:
        """Let all that is left come at once."""
        self._hurry.touch()


def keys_of(sequence: Numbers) -> Numbers:
    """Keys of records."""
    places: Numbers = sequence // _PARTITIONS * 31 + sequence % _PARTITIONS
    return places % KEYS


def sequences(lacks: int, rows: int) -> Numbers:
    """Those of an input that lacks every so-many-th."""
    sequence: Numbers = np.arange(rows)
    kept: Numbers = sequence[sequence % lacks != 0]
    return kept


def micros(value: Any) -> Any:
    """A time in microseconds since 1970; other values as they are."""
    return round(value.timestamp() * 1e6) if hasattr(value, "timestamp") else value
