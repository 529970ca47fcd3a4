"""State that expires (`ttl`) in simulated jobs: a key without a record for a while begins anew.

The record at hand sees or misses older state depending on the order of a key's records. So a first
operator sorts records by event time (`in_order`): a timer releases each record at its time. In
event-time order times alone decide the output: how many records a key had since its last gap, and
their sum. Each record tells both, once by declared state (`lives`), once by an aggregate
(`Expiring`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa

from ...operators import aggregations
from ...operators.expiring_aggregate import ExpiringAggregate
from ...operators.process import StatefulProcessor
from ...operators.timed_process import TimedProcessOperator
from ...state.keyed import map_state, value_state
from .event_time import time_of, told_of
from .source import SCHEMA
from .windows import TIMED_SCHEMA, record, timed

#: A gap this long, between two records of a key, ends a life.
TTL_NS: Final = 60
_SUMS: Final = {"n": aggregations.count(), "total": aggregations.sum("id")}
#: A timer without records tells of this id.
_NOTHING: Final = -1


class InOrder(StatefulProcessor):
    """Emits records of each key by event time, and by id at equal times."""

    held = map_state(pa.int64(), pa.list_(pa.int64()))

    def process(self, key: Any, row: dict[str, Any]) -> None:
        """Hold the record back until the record's time."""
        time_ns = int(time_of(row["id"]))
        self.held[time_ns] = [*self.held.get(time_ns, []), row["id"]]
        self.timers.set(time_ns)

    def on_timer(self, key: Any, time_ns: int) -> Iterator[dict[str, Any]]:
        """Let go of the records of this time."""
        for id in sorted(self.held.pop(time_ns, [_NOTHING])):
            yield dict.fromkeys(SCHEMA.names, 0) | {"id": id, "key": key}


class Lives(StatefulProcessor):
    """Counts and sums ids in two expiring states."""

    n = value_state(pa.int64(), default=0, ttl=f"{TTL_NS}ns")
    total = value_state(pa.int64(), default=0, ttl=f"{TTL_NS}ns")

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Tell the count and sum of the key's present life."""
        id = row["id"]
        self.n.value += 1
        self.total.value += id
        told = told_of(self.n.value, self.total.value, int(time_of(id)))
        yield dict.fromkeys(SCHEMA.names, 0) | {"id": told, "key": key}


class LivesOperator(TimedProcessOperator):
    """Runs `Lives` over records with their times."""

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Take in records in order of their times."""
        return super().process(timed(batch), port)


class Expiring(ExpiringAggregate):
    """Aggregates ids by key, and tells of each record: batches differ between runs."""

    def __init__(self, name: str) -> None:
        super().__init__(["key"], "time", TTL_NS, _SUMS, TIMED_SCHEMA, operator=name)

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Take in records in order of event time, each by itself."""
        for row in range(batch.num_rows):
            one = timed(batch.slice(row, 1))
            for found in super().process(one, port):
                n, total = found.column("n").to_numpy(), found.column("total").to_numpy()
                ids = told_of(n, total, time_of(one.column(0).to_numpy()))
                yield record(ids, found.column("key"))


def in_order(name: str) -> TimedProcessOperator:
    """The sorting operator."""
    return TimedProcessOperator(InOrder, ["key"], SCHEMA, SCHEMA, operator=name)


def lives(name: str) -> LivesOperator:
    """The operator with declared state."""
    given = (Lives, ["key"], TIMED_SCHEMA, SCHEMA)
    return LivesOperator(*given, operator=name, event_time="time")
