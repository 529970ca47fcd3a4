from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.channels.partitioners.hash import Hash
from headrace.engine.api.keyed import KeyedStream
from headrace.engine.api.read import batches
from headrace.engine.contract.errors import UserError

AT = pa.timestamp("ms")
ORDERS = pa.schema([("id", pa.int64()), ("at", AT)])
PAYMENTS = pa.schema([("order", pa.int64()), ("by", pa.string()), ("at", AT)])


class Paid(hr.CoProcessor):
    """Never run here."""

    n = hr.value_state(pa.int64())


class Timed(Paid):
    """Nor this."""

    def on_timer(self, key: Any, time_ns: int) -> Iterable[dict[str, Any]] | None:
        return None


class Forgetful(hr.CoProcessor):
    """Nor this."""

    seen = hr.value_state(pa.int64(), ttl="1h")


class Ruled(hr.CoProcessor):
    """Nor this."""

    known = hr.broadcast_state(pa.string(), pa.int64())


class OneSided(hr.CoProcessor):
    """Nor this."""

    def process(self, key: Any, row: dict[str, Any]) -> Iterable[dict[str, Any]] | None:
        return None


def keyed(schema: pa.Schema, name: str, *keys: str, timed: bool = True) -> KeyedStream:
    stream = batches([pa.RecordBatch.from_pylist([], schema=schema)], name=name)
    return replace(stream, event_time="at" if timed else None).key_by(*keys)


ORDERED, PAYED = keyed(ORDERS, "orders", "id"), keyed(PAYMENTS, "payments", "order")


def sentence(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    return str(caught.value)


def connect(
    processor: Any = Paid, left: Any = ORDERED, right: Any = PAYED, **more: Any
) -> Callable[[], object]:
    return lambda: left.connect(right, processor, **{"schema": ORDERS, "name": "paid", **more})


def test_both_sides_are_partitioned_by_their_keys() -> None:
    paid = ORDERED.connect(PAYED, Timed(), schema=ORDERS, name="paid")
    plan = hr.Job("j", paid.write.collect(name="out"), parallelism=2).plan()
    keys = {e.key: e.partitioner for e in plan.edges}
    assert {k: p.columns for k, p in keys.items() if isinstance(p, Hash)} == {
        "orders->paid/0": ("id",),
        "payments->paid/1": ("order",),
    }


def test_mistakes_are_told_in_one_sentence() -> None:
    assert "takes a CoProcessor, got" in sentence(connect(hr.StatefulProcessor))
    assert "connect needs name=" in sentence(connect(name=None))
    assert "for example name='paid'" in sentence(connect(name=None))
    assert "takes a pyarrow schema" in sentence(connect(schema=None))
    more = keyed(PAYMENTS, "payments", "order", "by")
    assert "keyed by as many columns as this one (1), got 2: order, by" in sentence(
        connect(right=more)
    )
    by = keyed(PAYMENTS, "payments", "by")
    assert "'id' is int64 on the left and 'by' is string on the right" in sentence(
        connect(right=by)
    )
    assert "Ruled declares broadcast state" in sentence(connect(Ruled))
    assert "OneSided implements process, but" in sentence(connect(OneSided))
    timeless = keyed(PAYMENTS, "payments", "order", timed=False)
    assert "connect: Timed.on_timer needs to know which column" in sentence(
        connect(Timed, right=timeless)
    )
    assert "connect: state with a ttl needs to know" in sentence(connect(Forgetful, right=timeless))
    assert "Paid is a processor of two streams" in sentence(
        lambda: ORDERED.process(Paid, schema=ORDERS, name="paid")
    )
    assert "connect takes a BroadcastProcessor" in sentence(connect(right=PAYED.stream.broadcast()))
