"""Jobs for the tests of simulations: right ones, and ones with a planted bug."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa

import headrace as hr

ROWS = [{"key": f"k{number % 5}", "n": number} for number in range(60)]
TOTALS = pa.schema([("key", pa.string()), ("total", pa.int64())])
#: A global of a user's module, in which a bug keeps its state.
of_module: dict[str, int] = {}


class Totals(hr.StatefulProcessor):
    total = hr.value_state(pa.int64(), default=0)

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.total.value += row["n"]
        yield {"key": key, "total": self.total.value}


class InInstance(hr.StatefulProcessor):
    def open(self) -> None:
        self.totals: dict[Any, int] = {}

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.totals[key] = self.totals.get(key, 0) + row["n"]
        yield {"key": key, "total": self.totals[key]}


class InModule(hr.StatefulProcessor):
    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        of_module[key] = of_module.get(key, 0) + row["n"]
        yield {"key": key, "total": of_module[key]}


class Calls(hr.StatefulProcessor):
    """Counts the calls in its process."""

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        of_module["calls"] = of_module.get("calls", 0) + 1
        yield {"key": key, "total": of_module["calls"]}


class LastThree(hr.StatefulProcessor):
    """Sums the last three numbers of a key."""

    last = hr.list_state(pa.int64())

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.last.append(row["n"])
        if len(self.last) > 3:
            self.last.pop(0)
        yield {"key": key, "total": sum(self.last)}


class Lost(hr.StatefulProcessor):
    """Looks for its attribute where it has declared state: after a crash it is not there."""

    known = hr.value_state(pa.bool_(), default=False)

    def open(self) -> None:
        self.totals: dict[Any, int] = {}

    def process(self, key: Any, row: dict[str, Any]) -> None:
        if not self.known.value:
            self.known.value = True
            self.totals[key] = 0
        self.totals[key] += row["n"]


class Raising(hr.StatefulProcessor):
    def process(self, key: Any, row: dict[str, Any]) -> None:
        if row["n"] == 33:
            raise ValueError("thirty-three")


class Silent(hr.StatefulProcessor):
    """Tells of a key that has been silent for ten milliseconds of event time."""

    def process(self, key: Any, row: dict[str, Any]) -> None:
        for time in self.timers:
            self.timers.delete(time)
        self.timers.set(row["at"] + timedelta(milliseconds=10))

    def on_timer(self, key: Any, time_ns: int) -> Iterator[dict[str, Any]]:
        yield {"key": key, "total": time_ns}


def rows_of(count: int = 60) -> hr.Stream:
    records = [{"key": f"k{number % 5}", "n": number} for number in range(count)]
    batch = pa.RecordBatch.from_pylist(records)
    return hr.read.batches([batch], name="rows", parallelism=1)


def job_of(processor: Any, **options: Any) -> hr.Job:
    """A job whose keyed records go through this processor."""
    out = rows_of().key_by("key").process(processor, schema=TOTALS, name="totals")
    return hr.Job("totals", out.write.collect(name="out"), **{"parallelism": 2, **options})


def totals_due(count: int = 60) -> list[tuple[str, int]]:
    """What `Totals` emits, sorted."""
    sums: dict[str, int] = {}
    due = []
    for number in range(count):
        key = f"k{number % 5}"
        sums[key] = sums.get(key, 0) + number
        due.append((key, sums[key]))
    return sorted(due)
