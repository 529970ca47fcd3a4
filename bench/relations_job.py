"""A job of windows, a join, timers and a connect whose output SQLite can tell: what `relations` kills and rescales.

Records are out of order within each partition of the two inputs, and partitions are apart in event time; none is late for its partition, so none may
be dropped. A slow stage before the windows keeps queues full.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from headrace.engine.operators.windows import Window

from .partitions import PartitionedSource

_PARTITIONS = 6
_KEYS = 20
_RULES = 40
#: What a record costs in the slow stage, in a subtask.
PAUSE_S = 0.002
#: A pause shorter than this takes longer than it says.
_NAP_S = 0.005
#: Event time in microseconds: of the first record (SQLite divides towards zero), between neighbours of a partition, the disorder in it, and from one partition to the next.
_BEGIN_US, _STEP_US, _DISORDER_US, _APART_US = 10_000_000, 5_000, 200_000, 700_000
_WINDOW_US, _SLIDE_US, _GAP_US, _WITHIN_US = 1_000_000, 400_000, 60_000, 10_000
#: Each input lacks every so-many-th record, so that the join has records that meet none.
_LEFT_LACKS, _RIGHT_LACKS = 11, 7

_EVENTS = pa.schema(
    [("key", pa.int64()), ("sequence", pa.int64()), ("at", pa.timestamp("us", "UTC"))]
)
_TIMED = pa.schema([(name, pa.int64()) for name in ("key", "start", "end", "n", "total")])
_RULED = pa.schema([("key", pa.int64()), ("sequence", pa.int64()), ("rules", pa.int64())])

#: {output: what it must hold}; times in microseconds.
_QUERIES = {
    "tumbling": f"""
        select key, at / {_WINDOW_US} * {_WINDOW_US} s, at / {_WINDOW_US} * {_WINDOW_US} + {_WINDOW_US}, count(*), sum(sequence)
        from events group by key, s""",
    "sliding": f"""
        select key, (at / {_SLIDE_US} - back) * {_SLIDE_US} s, (at / {_SLIDE_US} - back) * {_SLIDE_US} + {_WINDOW_US}, count(*), sum(sequence)
        from events, (select 0 back union select 1 union select 2)
        where s + {_WINDOW_US} > at group by key, s""",
    "sessions": f"""
        with marked as (
            select *, at - lag(at, 1, 0) over (partition by key order by at) >= {_GAP_US} first from events
        ), numbered as (
            select *, sum(first) over (partition by key order by at range unbounded preceding) session from marked
        )
        select key, min(at), max(at) + {_GAP_US}, count(*), sum(sequence) from numbered group by key, session""",
    "joined": f"""
        select coalesce(l.key, r.key), l.sequence, l.at, r.sequence, r.at
        from events l full join others r on l.key = r.key and r.at between l.at - {_WITHIN_US} and l.at + {_WITHIN_US}""",
}

Row = tuple[Any, ...]
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
        end = _micros(row["at"]) // _WINDOW_US * _WINDOW_US + _WINDOW_US
        self.counts[end] = self.counts.get(end, 0) + 1
        self.totals[end] = self.totals.get(end, 0) + row["sequence"]
        self.timers.set(end * 1000 - 1)

    def on_timer(self, key: int, time_ns: int) -> Iterator[dict[str, Any]]:
        """Emit a window and forget it."""
        end = (time_ns + 1) // 1000
        n, total = self.counts.pop(end, 0), self.totals.pop(end, 0)
        yield {"key": key, "start": end - _WINDOW_US, "end": end, "n": n, "total": total}


@dataclass(frozen=True, slots=True)
class RelationsJob:
    """The job in a folder of its own, and what it left there. `rows`: of each of its two inputs."""

    folder: Path
    rows: int
    rate_per_s: float

    def build(self, **options: Any) -> hr.Job:
        """Make the job; `options` are those of `hr.Job`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        left, right = self._events("left", _LEFT_LACKS), self._events("right", _RIGHT_LACKS)
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
        results["timed"] = slow.key_by("key").process(Timed, schema=_TIMED, name="timed")
        rules = hr.read.sequence(_RULES, name="rules", rate=_RULES, parallelism=1).broadcast()
        results["ruled"] = slow.key_by("key").connect(rules, Rules, schema=_RULED, name="ruled")
        sinks = [
            stream.write.parquet(str(self.folder / name), name=f"{name}-out")
            for name, stream in results.items()
        ]
        return hr.Job("relations", *sinks, max_parallelism=32, **options)

    def _events(self, name: str, lacks: int) -> hr.Stream:
        source = PartitionedSource(self.rows, _PARTITIONS, _KEYS, self.rate_per_s, str(self._hurry))
        events = hr.from_source(source, name=name)
        timed = events.map_batches(Stamped(lacks), schema=_EVENTS, name=f"{name}-times")
        return timed.with_watermark("at", _DISORDER_US / 1e6, name=f"{name}-watermark")

    @property
    def _hurry(self) -> Path:
        return self.folder / "hurry"

    def hurry(self) -> None:
        """Let all that is left come at once."""
        self._hurry.touch()

    def differences(self) -> dict[str, int]:
        """{output: rows that it has too many or too few}."""
        found = {name: self._compared(name, expected) for name, expected in self._expected()}
        return found | {"ruled": self._unruly()}

    def _compared(self, name: str, expected: list[Row]) -> int:
        rows = Counter(tuple(_micros(v) for v in row.values()) for row in self._written(name))
        right = Counter(expected)
        return (rows - right).total() + (right - rows).total()

    def _written(self, name: str) -> list[dict[str, Any]]:
        files = sorted((self.folder / name).glob("part-*.parquet"))
        return [row for file in files for row in pq.read_table(file).to_pylist()]

    def _unruly(self) -> int:
        """Records of `ruled` that are not there once; and keys whose records never know all rules, or know more than there are."""
        rows = self._written("ruled")
        times = Counter(row["sequence"] for row in rows)
        expected = Counter(_sequences(_LEFT_LACKS, self.rows).tolist())
        wrong = (times - expected).total() + (expected - times).total()
        known = dict.fromkeys(range(_KEYS), 0)
        for row in rows:
            known[row["key"]] = max(known[row["key"]], row["rules"])
        return wrong + sum(most != _RULES for most in known.values())

    def _expected(self) -> Iterator[tuple[str, list[Row]]]:
        with sqlite3.connect(":memory:") as base:
            for table, lacks in (("events", _LEFT_LACKS), ("others", _RIGHT_LACKS)):
                self._fill(base, table, _sequences(lacks, self.rows))
            for name, query in _QUERIES.items():
                yield name, base.execute(query).fetchall()
            yield "timed", base.execute(_QUERIES["tumbling"]).fetchall()
        base.close()

    def _fill(self, base: sqlite3.Connection, table: str, sequence: Numbers) -> None:
        base.execute(f"create table {table} (key int, sequence int, at int)")
        places = sequence // _PARTITIONS * 31 + sequence % _PARTITIONS
        rows = zip(
            (places % _KEYS).tolist(), sequence.tolist(), at_us(sequence).tolist(), strict=True
        )
        base.executemany(f"insert into {table} values (?, ?, ?)", rows)
        base.execute(f"create index {table}_by_key on {table} (key, at)")


def _sequences(lacks: int, rows: int) -> Numbers:
    """Those of an input that lacks every so-many-th."""
    sequence: Numbers = np.arange(rows)
    kept: Numbers = sequence[sequence % lacks != 0]
    return kept


def _micros(value: Any) -> Any:
    """Times as SQLite has them."""
    return round(value.timestamp() * 1e6) if hasattr(value, "timestamp") else value
