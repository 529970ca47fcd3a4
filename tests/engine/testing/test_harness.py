"""A processor alone: its calls, its time, its state, and what a crash takes away."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.state.types import StateTypeError
from headrace.testing import Harness

NOON = datetime(2026, 11, 23, 12, tzinfo=UTC)
NOON_NS = int(NOON.timestamp()) * 10**9
MINUTE_NS = 60 * 10**9
TOTALS = pa.schema([("key", pa.string()), ("total", pa.int64())])
#: A user's module may have such a thing.
calls = 0


class Totals(hr.StatefulProcessor):
    total = hr.value_state(pa.int64(), default=0)
    seen = hr.list_state(pa.int64())
    by = hr.map_state(pa.string(), pa.int64())

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.total.value += row["n"]
        self.seen.append(row["n"])
        self.by["last"] = row["n"]
        yield {"key": key, "total": self.total.value}
        if row["n"] < 0:
            raise ValueError("a negative number")


class Forgetful(hr.StatefulProcessor):
    of_class: dict[str, int] = {}  # noqa: RUF012  # the mistake

    def open(self) -> None:
        self.of_instance = 0

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        global calls
        calls += 1
        self.of_instance += 1
        self.of_class[key] = self.of_class.get(key, 0) + 1
        yield {"instance": self.of_instance, "class": self.of_class[key], "module": calls}


class Reminders(hr.StatefulProcessor):
    paid = hr.value_state(pa.bool_(), default=False)

    def process(self, key: Any, row: dict[str, Any]) -> None:
        self.timers.set(row["at"] + timedelta(minutes=1))
        self.processing_timers.set_after("5s")

    def on_timer(self, key: Any, time_ns: int) -> Iterator[dict[str, Any]]:
        if key == "bad":
            raise ValueError("not this one")
        yield {"late": key, "at": time_ns}

    def on_processing_timer(self, key: Any, time_ns: int) -> Iterator[dict[str, Any]]:
        yield {"clock": key, "at": time_ns}


class Expiring(hr.StatefulProcessor):
    n = hr.value_state(pa.int64(), default=0, ttl="1h")

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.n.value += 1
        yield {"n": self.n.value}


class Both(hr.CoProcessor):
    left = hr.value_state(pa.int64(), default=0)

    def process_left(self, key: Any, row: dict[str, Any]) -> None:
        self.left.value = row["a"]

    def process_right(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"key": key, "sum": self.left.value + row["b"]}


class Limits(hr.BroadcastProcessor):
    limits = hr.broadcast_state(pa.string(), pa.int64())
    told = hr.value_state(pa.int64(), default=0)

    def process_broadcast(self, row: dict[str, Any]) -> None:
        self.limits[row["kind"]] = row["limit"]

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if row["n"] > self.limits.get(row["kind"], 100):
            self.told.value += 1
            yield {"key": key, "told": self.told.value}


class Batches(hr.StatefulProcessor):
    n = hr.value_state(pa.int64(), default=0)

    def process_batch(self, key: Any, rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
        self.n.value += rows.num_rows
        yield {"key": key, "total": self.n.value}


def test_calls_return_results_and_state_is_by_key() -> None:
    harness = Harness(Totals)
    assert harness.process("a", {"n": 1}) == [{"key": "a", "total": 1}]
    assert harness.process("b", {"n": 5}) == [{"key": "b", "total": 5}]
    assert harness.process("a", {"n": 2}) == [{"key": "a", "total": 3}]
    assert harness.state("a") == {"total": 3, "seen": [1, 2], "by": {"last": 2}}
    assert harness.state("c") == {"total": 0, "seen": [], "by": {}}
    assert [row["total"] for row in harness.output] == [1, 5, 3]
    assert len(harness.take()) == 3
    assert harness.take() == []


def test_state_can_be_set_before_the_first_record() -> None:
    harness = Harness(Totals)
    harness.set_state("a", total=40, seen=[7], by={"x": 1})
    assert harness.process("a", {"n": 2}) == [{"key": "a", "total": 42}]
    assert harness.state("a") == {"total": 42, "seen": [7, 2], "by": {"x": 1, "last": 2}}
    with pytest.raises(hr.UserError, match=r"declares no state 'totl'; did you mean 'total'"):
        harness.set_state("a", totl=1)
    with pytest.raises(StateTypeError, match="'total'"):
        harness.set_state("a", total="x")


def test_a_crash_keeps_declared_state_and_nothing_else() -> None:
    totals, forgetful = Harness(Totals), Harness(Forgetful)
    for _ in range(2):
        totals.process("a", {"n": 1})
        found = forgetful.process("a", {"n": 1})
    assert found == [{"instance": 2, "class": 2, "module": 2}]
    totals.crash()
    forgetful.crash()
    assert totals.process("a", {"n": 1}) == [{"key": "a", "total": 3}]
    assert forgetful.process("a", {"n": 1}) == [{"instance": 1, "class": 1, "module": 1}]
    assert len(forgetful.output) == 3
    assert (calls, Forgetful.of_class) == (0, {}), "the test's own module is left alone"


def test_a_snapshot_starts_another_harness() -> None:
    harness = Harness(Totals)
    harness.process("a", {"n": 1})
    snapshot = harness.snapshot()
    harness.process("a", {"n": 1})
    other = Harness(Totals)
    other.restore(snapshot)
    assert other.state("a")["total"] == 1
    assert harness.state("a")["total"] == 2
    harness.restore(snapshot)
    assert harness.state("a")["total"] == 1
    with pytest.raises(hr.UserError, match=r"'seen'|'total'|'by'"):
        Harness(Reminders).restore(snapshot)


def test_a_failed_call_leaves_nothing_behind() -> None:
    harness = Harness(Totals)
    harness.process("a", {"n": 1})
    with pytest.raises(hr.UserCodeError, match=r"a negative number for record {'n': -1}"):
        harness.process("a", {"n": -1})
    assert harness.state("a") == {"total": 1, "seen": [1], "by": {"last": 1}}
    assert harness.process("a", {"n": 1}) == [{"key": "a", "total": 2}]
    assert len(harness.output) == 2


def test_timers_fire_as_time_advances_and_outlive_a_crash() -> None:
    harness = Harness(Reminders)
    harness.process("a", {"at": NOON})
    harness.process("b", {"at": NOON + timedelta(seconds=1)})
    assert harness.timers("a") == [NOON_NS + MINUTE_NS]
    assert harness.processing_timers("a") == [5 * 10**9]
    harness.crash()
    assert harness.advance_watermark(NOON + timedelta(seconds=59)) == []
    assert harness.advance_watermark(NOON + timedelta(seconds=60)) == [
        {"late": "a", "at": NOON_NS + MINUTE_NS}
    ]
    assert harness.timers("a") == []
    assert harness.advance_time("4s") == []
    assert [row["clock"] for row in harness.advance_time(1)] == ["a", "b"]
    harness.crash()
    assert [row["late"] for row in harness.finish()] == ["b"]
    with pytest.raises(hr.UserError, match="never goes back"):
        harness.advance_watermark(NOON)


def test_a_timer_that_fails_takes_event_time_back() -> None:
    harness = Harness(Reminders)
    harness.process("bad", {"at": NOON})
    with pytest.raises(hr.UserCodeError, match="not this one"):
        harness.advance_watermark(NOON_NS + MINUTE_NS)
    assert harness.timers("bad") == [NOON_NS + MINUTE_NS]
    assert harness.advance_watermark(NOON_NS) == []


def test_state_expires_by_event_time() -> None:
    with pytest.raises(hr.UserError, match="event_time="):
        Harness(Expiring)
    harness = Harness(Expiring, event_time="at")
    assert harness.process("a", {"at": NOON}) == [{"n": 1}]
    assert harness.process("a", {"at": NOON + timedelta(minutes=59)}) == [{"n": 2}]
    harness.crash()
    assert harness.process("a", {"at": NOON + timedelta(hours=1, minutes=58)}) == [{"n": 3}]
    harness.advance_watermark(NOON + timedelta(hours=3))
    assert harness.state("a") == {"n": 0}


def test_both_sides_of_a_co_processor() -> None:
    harness = Harness(Both)
    harness.process_left(1, {"a": 40})
    harness.crash()
    assert harness.process_right(1, {"b": 2}) == [{"key": 1, "sum": 42}]
    with pytest.raises(hr.UserError, match="call process_left"):
        harness.process(1, {"a": 1})
    with pytest.raises(hr.UserError, match="Totals is no CoProcessor"):
        Harness(Totals).process_left(1, {"a": 1})


def test_broadcast_records_come_before_the_first_key() -> None:
    harness = Harness(Limits)
    harness.process_broadcast({"kind": "x", "limit": 10})
    assert harness.process(7, {"kind": "x", "n": 11}) == [{"key": 7, "told": 1}]
    harness.crash()
    assert harness.state(7) == {"limits": {"x": 10}, "told": 1}
    harness.set_state(7, limits={"x": 20})
    assert harness.process(7, {"kind": "x", "n": 11}) == []
    with pytest.raises(hr.UserError, match="Totals is no BroadcastProcessor"):
        Harness(Totals).process_broadcast({"a": 1})


def test_a_broadcast_state_without_harness_names_the_harness() -> None:
    limits = Limits()
    uses: list[Any] = [
        lambda: limits.process_broadcast({"kind": "x", "limit": 10}),
        lambda: list(limits.process(7, {"kind": "x", "n": 11})),
    ]
    for use in uses:
        with pytest.raises(hr.UserError, match=r"hr\.testing\.Harness"):
            use()


def test_batches_of_a_key_need_the_columns_of_the_results() -> None:
    with pytest.raises(hr.UserError, match="give them with output="):
        Harness(Batches)
    harness = Harness(Batches, output=TOTALS)
    assert harness.process("a", {"n": 1}) == [{"key": "a", "total": 1}]
    assert harness.process("a", {"n": 1}) == [{"key": "a", "total": 2}]


def test_keys_of_several_columns_and_of_stated_types() -> None:
    harness = Harness(Totals)
    harness.process(("a", 1), {"n": 1})
    harness.crash()
    assert harness.state(("a", 1))["total"] == 1
    narrow = Harness(Totals, key=pa.int16())
    narrow.process(5, {"n": 1})
    assert narrow.snapshot().keys == pa.schema([("key", pa.int16())])
    with pytest.raises(hr.UserError, match="key 'a' is not of type int16; state it with"):
        narrow.process("a", {"n": 1})


def test_records_and_results_are_held_to_their_columns() -> None:
    harness = Harness(Totals, schema=pa.schema([("n", pa.int64())]), output=TOTALS)
    with pytest.raises(hr.UserError, match="has the columns n, m; schema= has n"):
        harness.process("a", {"n": 1, "m": 2})
    with pytest.raises(hr.UserError, match="does not fit into columns"):
        harness.process("a", {"n": "x"})
    with pytest.raises(hr.UserError, match="no columns"):
        harness.process("a", {})
    with pytest.raises(hr.UserCodeError, match="column 'key'"):
        harness.process(1, {"n": 1})


@pytest.mark.parametrize("processor", [Totals(), Totals])
def test_an_instance_is_as_good_as_a_class(processor: Any) -> None:
    assert Harness(processor).process("a", {"n": 1}) == [{"key": "a", "total": 1}]


def test_other_things_are_refused() -> None:
    wrong: Any = dict
    with pytest.raises(hr.UserError, match="Harness takes a StatefulProcessor"):
        Harness(wrong)
