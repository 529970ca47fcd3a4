"""Windows and joins in simulated jobs: the product's operators over the event time of `event_time.py`.

A window is a bucket, so the windows of a key tell what the timers of another job tell. A join emits a record for each pair, and for each record
that met none: a pair that is lost, doubled or let go of too early shows in what the sinks hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..operators import aggregations
from ..operators.join import Interval, JoinOperator
from ..operators.join_runs import JoinInput
from ..operators.stateless import StatelessOperator
from ..operators.window import TimeWindowOperator
from ..operators.window_output import window_schema
from ..operators.window_store import WindowAggregate
from ..operators.windows import TimeWindow
from .event_time import BUCKET_NS, time_of, told_of
from .source import SCHEMA

_TIME: Final = pa.field("time", pa.timestamp("ns"))
_TIMED: Final = SCHEMA.append(_TIME)
_SUMS: Final = {"n": aggregations.count(), "total": aggregations.sum("id")}
_WINDOWS: Final = window_schema(["key"], "time", _SUMS, _TIMED)
_SIDE: Final = JoinInput(("key",), "time", _TIMED)
#: Records of a key that are at most this far apart are joined.
DISTANCE_NS: Final = 40


def _timed(batch: pa.RecordBatch) -> pa.RecordBatch:
    times = pa.array(time_of(batch.column(0).to_numpy())).view(_TIME.type)
    return pa.RecordBatch.from_arrays([*batch.columns, times], schema=_TIMED)


def _record(ids: Any, keys: pa.Array) -> pa.RecordBatch:
    zeros = pa.array(np.zeros(len(keys), np.int64))
    return pa.RecordBatch.from_arrays([pa.array(ids), keys, *[zeros] * 4], schema=SCHEMA)


class Windows(TimeWindowOperator):
    """Counts and sums the ids of each key by window."""

    def __init__(self, name: str) -> None:
        window = TimeWindow(BUCKET_NS, BUCKET_NS)
        spec = WindowAggregate(["key"], "time", 0, _SUMS, _TIMED, _WINDOWS)
        super().__init__(window, spec, operator=name)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Take in records with their times."""
        return super().process(_timed(batch), port)


class WindowsTold(StatelessOperator):
    """Makes records of windows."""

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """A record per window that tells what was in it."""
        ends = batch.column("window_end").view(pa.int64()).to_numpy()
        counts, totals = batch.column("n").to_numpy(), batch.column("total").to_numpy()
        yield _record(told_of(counts, totals, ends - 1), batch.column("key"))


class Joined(JoinOperator):
    """Joins the records of the first input with those of the others, and tells who met none."""

    def __init__(self, name: str) -> None:
        match = Interval(-DISTANCE_NS, DISTANCE_NS)
        super().__init__(_SIDE, _SIDE, match, "full", 1, operator=name)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Take in records with their times."""
        return super().process(_timed(batch), port)


class PairsTold(StatelessOperator):
    """Makes records of pairs."""

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """A record per pair that tells who met."""
        ids = (pc.fill_null(batch.column(name), -1).to_numpy() for name in ("id", "id_right"))
        yield _record(pair_of(*ids), batch.column("key"))


def pair_of(left: Any, right: Any) -> Any:
    """The id of the record that tells of a pair; -1 where there was none."""
    return (left + 1) * 1_000_003 + right + 1


def pairs_of(
    left: Counter[tuple[int, int]], right: Counter[tuple[int, int]]
) -> Counter[tuple[int, int]]:
    """What a join of (id, key) must tell: {(id, key): how often}."""
    told: Counter[tuple[int, int]] = Counter()
    met: set[tuple[int, int, int]] = set()
    for (one, times), (other, others) in product(left.items(), right.items()):
        if one[1] == other[1] and abs(time_of(one[0]) - time_of(other[0])) <= DISTANCE_NS:
            told[pair_of(one[0], other[0]), one[1]] += times * others
            met |= {(0, *one), (1, *other)}
    for (id, key), times in left.items():
        told[pair_of(id, -1), key] += 0 if (0, id, key) in met else times
    for (id, key), times in right.items():
        told[pair_of(-1, id), key] += 0 if (1, id, key) in met else times
    return +told
