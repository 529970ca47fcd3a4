from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.channels.events import MAX_WATERMARK
from headrace.engine.contract.errors import UserCodeError, UserError
from headrace.engine.contract.operators import OperatorContext, RestoredState, StateKind
from headrace.engine.operators.connect import (
    BroadcastProcessor,
    ConnectOperator,
    ExpiringConnectOperator,
)
from headrace.engine.state.broadcast import broadcast_state
from headrace.engine.state.keyed import value_state

from . import rocks_cases

ORDERS = pa.schema([("who", pa.string()), ("amount", pa.int64())])
LIMITS = pa.schema([("who", pa.string()), ("limit", pa.int64())])
OUT = pa.schema([("who", pa.string()), ("total", pa.int64()), ("limit", pa.int64())])


class Limits(BroadcastProcessor):
    """Tells totals above the limit."""

    limits = broadcast_state(pa.string(), pa.int64())
    total = value_state(pa.int64(), default=0)

    def process(self, key: Any, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
        self.total.value += row["amount"]
        limit = self.limits.get(key)
        if limit is not None and self.total.value > limit:
            yield {"who": key, "total": self.total.value, "limit": limit}

    def process_broadcast(self, row: dict[str, Any]) -> Iterable[dict[str, Any]] | None:
        self.limits[row["who"]] = row["limit"]
        return None


class Keyless(BroadcastProcessor):
    """Lets pass whom it was told of."""

    known = broadcast_state(pa.string(), pa.int64())

    def process(self, key: Any, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
        assert key is None
        if row["who"] in self.known:
            yield {"who": row["who"], "total": row["amount"], "limit": self.known[row["who"]]}

    def process_broadcast(self, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
        self.known[row["who"]] = row["limit"]
        yield {"who": row["who"], "total": 0, "limit": row["limit"]}


class Meddler(BroadcastProcessor):
    """Does what it must not."""

    limits = broadcast_state(pa.string(), pa.int64())
    total = value_state(pa.int64(), default=0)

    def process(self, key: Any, row: dict[str, Any]) -> Iterable[dict[str, Any]] | None:
        self.limits["x"] = 1
        return None

    def process_broadcast(self, row: dict[str, Any]) -> Iterable[dict[str, Any]] | None:
        self.total.value += 1
        return None


def operator_of(
    processor: type[BroadcastProcessor], keys: Sequence[str], main_ports: int = 1
) -> ConnectOperator:
    operator = ConnectOperator(processor, keys, main_ports, ORDERS, OUT, operator="rules")
    operator.open(OperatorContext("job", "rules", 0, 1, 16, 0))
    return operator


def orders(*rows: tuple[str, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([row[0] for row in rows]), pa.array([row[1] for row in rows])], schema=ORDERS
    )


def limits(*rows: tuple[str, int]) -> pa.RecordBatch:
    return orders(*rows).rename_columns(LIMITS.names)


def told(operator: ConnectOperator, batch: pa.RecordBatch, port: int) -> list[dict[str, Any]]:
    rows = [row for out in operator.process(batch, port) for row in out.to_pylist()]
    operator.commit()
    return rows


def states_of(operator: ConnectOperator) -> list[RestoredState]:
    return [RestoredState(s.name, s.kind, s.table()) for s in operator.snapshot()]


def test_the_main_side_reads_what_the_broadcast_side_was_told() -> None:
    operator = operator_of(Limits, ["who"])
    assert told(operator, orders(("ann", 5)), 0) == []
    assert told(operator, limits(("ann", 6), ("bob", 0)), 1) == []
    assert told(operator, orders(("ann", 1), ("ann", 1), ("bob", 1)), 0) == [
        {"who": "ann", "total": 7, "limit": 6},
        {"who": "bob", "total": 1, "limit": 0},
    ]


def test_without_keys_there_is_the_broadcast_state_alone() -> None:
    operator = operator_of(Keyless, [], main_ports=2)
    assert told(operator, orders(("ann", 5)), 1) == []
    assert told(operator, limits(("ann", 6)), 2) == [{"who": "ann", "total": 0, "limit": 6}]
    assert told(operator, orders(("ann", 5), ("bob", 1)), 0) == [
        {"who": "ann", "total": 5, "limit": 6}
    ]


def test_a_restored_operator_goes_on_with_both_kinds_of_state() -> None:
    operator = operator_of(Limits, ["who"])
    told(operator, limits(("ann", 6)), 1)
    told(operator, orders(("ann", 5)), 0)
    states = states_of(operator)
    assert {s.name: s.kind for s in states} == {
        "limits": StateKind.BROADCAST,
        "total": StateKind.KEYED,
    }
    restored = operator_of(Limits, ["who"])
    restored.restore(states)
    assert told(restored, orders(("ann", 2)), 0) == [{"who": "ann", "total": 7, "limit": 6}]


def test_a_snapshot_amid_a_call_is_the_state_before_it() -> None:
    operator = operator_of(Limits, ["who"])
    told(operator, limits(("ann", 6)), 1)
    before = {s.name: s.table for s in states_of(operator)}
    list(operator.process(limits(("ann", 7), ("bob", 1)), 1))
    list(operator.process(orders(("ann", 7)), 0))
    assert {s.name: s.table for s in states_of(operator)} == before
    operator.commit()
    assert {s.name: s.table for s in states_of(operator)} != before


def test_broadcast_state_that_has_changed_its_type_is_refused() -> None:
    operator = operator_of(Limits, ["who"])
    table = pa.table({"key": ["ann"], "value": ["six"]})
    with pytest.raises(UserError, match="holds state 'limits' as"):
        operator.restore([RestoredState("limits", StateKind.BROADCAST, table)])


def test_each_side_keeps_to_its_own_state() -> None:
    operator = operator_of(Meddler, ["who"])
    with pytest.raises(UserCodeError, match="changed in process_broadcast only"):
        list(operator.process(orders(("ann", 1)), 0))
    with pytest.raises(UserCodeError, match="no state per key, in process_broadcast"):
        list(operator.process(limits(("ann", 1)), 1))


def test_state_per_key_may_lie_on_disk_and_broadcast_state_never_does(tmp_path: Path) -> None:
    first = ConnectOperator(Limits, ["who"], 1, ORDERS, OUT, operator="rules")
    first.open(rocks_cases.context(tmp_path))
    told(first, limits(("ann", 6)), 1)
    told(first, orders(("ann", 5), ("bob", 1)), 0)
    held = states_of(first)
    assert [state.name for state in held] == ["limits"]
    restored = rocks_cases.stored(rocks_cases.frozen(first), tmp_path)(1, 0)
    first.close()
    for kind in ("rocksdb", "heap"):
        second = ConnectOperator(Limits, ["who"], 1, ORDERS, OUT, operator="rules")
        second.open(rocks_cases.context(tmp_path, kind))
        taken = second.restore_databases([restored])
        assert taken is (kind == "rocksdb")
        second.restore([*held, *(() if taken else restored.tables())])
        assert told(second, orders(("ann", 2)), 0) == [{"who": "ann", "total": 7, "limit": 6}]
        second.close()


def test_states_of_other_types_are_refused_before_anything_is_opened() -> None:
    operator = operator_of(Limits, ["who"])
    held = states_of(operator)
    operator.check_states(held)

    class Fewer(Limits):
        limits = broadcast_state(pa.string(), pa.string())

    other = ConnectOperator(Fewer, ["who"], 1, ORDERS, OUT, operator="rules")
    with pytest.raises(UserError, match="holds state 'limits'"):
        other.check_states(held)


TIMED = pa.schema([*ORDERS, pa.field("at", pa.timestamp("s"))])


class Forgetful(Limits):
    """Totals of who ordered within the last ten seconds."""

    total = value_state(pa.int64(), default=0, ttl="10s")


def forgetful(folder: Path, kind: str) -> ExpiringConnectOperator:
    operator = ExpiringConnectOperator(
        Forgetful, ["who"], 1, TIMED, OUT, event_time="at", operator="limits"
    )
    operator.open(rocks_cases.context(folder, kind))
    return operator


def totals(operator: ConnectOperator, *orders: tuple[str, int, int]) -> list[int]:
    rows = [{"who": who, "amount": amount, "at": at} for who, amount, at in orders]
    batch = pa.RecordBatch.from_pylist(rows, schema=TIMED)
    found = [row["total"] for b in operator.process(batch, 0) for row in b.to_pylist()]
    operator.commit()
    return found


@pytest.mark.parametrize("kind", ["heap", "rocksdb"])
def test_state_per_key_expires_and_broadcast_state_does_not(tmp_path: Path, kind: str) -> None:
    operator = forgetful(tmp_path, kind)
    told = pa.RecordBatch.from_pylist(
        [{"who": who, "limit": 0} for who in ("a", "b")], schema=LIMITS
    )
    list(operator.process(told, 1))
    operator.commit()
    assert totals(operator, ("a", 1, 0), ("a", 1, 9), ("b", 1, 0)) == [1, 2, 1]
    assert totals(operator, ("a", 1, 18), ("b", 1, 18)) == [3, 1]
    assert operator.advance(30 * 10**9, 100).done
    operator.commit()
    # A late record counts as come at the watermark: what it might have seen may be removed already.
    assert totals(operator, ("a", 1, 19)) == [1]
    assert operator.advance(MAX_WATERMARK, 100).done
    operator.commit()
    assert totals(operator, ("a", 1, 31)) == [2]
    operator.close()


def test_what_has_expired_is_removed_and_restored_with_its_age(tmp_path: Path) -> None:
    operator = forgetful(tmp_path, "heap")
    totals(operator, *((f"k{number}", 1, number) for number in range(20)))
    operator.advance(15 * 10**9, 100)
    operator.commit()
    totals(operator, ("k19", 1, 19))
    states = [RestoredState(s.name, s.kind, s.table()) for s in operator.snapshot()]
    rows = {state.name: state.table.num_rows for state in states}
    assert rows == {"limits": 0, "total": 14, "total__written": 14}
    operator.check_states(states)
    again = forgetful(tmp_path, "heap")
    again.restore(states)
    told = pa.RecordBatch.from_pylist([{"who": "k19", "limit": 0}], schema=LIMITS)
    list(again.process(told, 1))
    again.commit()
    assert totals(again, ("k19", 1, 28)) == [3]
    assert totals(again, ("k19", 1, 38)) == [1]
