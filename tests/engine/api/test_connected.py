from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.engine.api.read import batches
from headrace.engine.api.stream import Stream
from headrace.engine.contract.errors import UserError

SCHEMA = pa.schema([("who", pa.string())])


class OddRules(hr.BroadcastProcessor):
    """Never run here."""

    known = hr.broadcast_state(pa.string(), pa.int64())


class Counted(OddRules):
    """Never run here either."""

    n = hr.value_state(pa.int64())

    def process(self, key: Any, row: dict[str, Any]) -> Iterable[dict[str, Any]] | None:
        return None


class Timed(OddRules):
    """Nor this."""

    def on_timer(self, key: Any, time_ns: int) -> Iterable[dict[str, Any]] | None:
        return None


class Alarmed(OddRules):
    """Nor this."""

    def on_processing_timer(self, key: Any, time_ns: int) -> Iterable[dict[str, Any]] | None:
        return None


class Forgetful(OddRules):
    """Nor this."""

    seen = hr.value_state(pa.int64(), ttl="1h")


def stream(name: str) -> Stream:
    return batches([pa.RecordBatch.from_pylist([], schema=SCHEMA)], name=name)


def sentence(call: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    return str(caught.value)


def test_the_main_side_keeps_its_partitioning_and_the_other_is_broadcast() -> None:
    rules = stream("rules").broadcast()
    keyed = stream("a").key_by("who").connect(rules, Counted, schema=SCHEMA, name="keyed")
    plain = stream("b").connect(rules, OddRules(), schema=SCHEMA, name="plain")
    plan = hr.Job("j", keyed.union(plain).write.collect(name="out"), parallelism=2).plan()
    found = {edge.key: type(edge.partitioner) for edge in plan.edges}
    assert found["a->keyed/0"] is Hash
    assert found["rules->keyed/1"] is Broadcast
    assert found["b->plain/0"] is Forward
    assert found["rules->plain/1"] is Broadcast


def test_mistakes_are_told_in_one_sentence() -> None:
    main, rules = stream("main"), stream("rules").broadcast()

    def connect(other: Any = rules, processor: Any = OddRules, **more: Any) -> Callable[[], object]:
        return lambda: main.connect(other, processor, **{"schema": SCHEMA, "name": "c", **more})

    assert "connect takes a stream" in sentence(connect(other="rules"))
    assert "the other stream must be broadcast" in sentence(connect(other=stream("rules")))
    assert "connect takes a BroadcastProcessor" in sentence(connect(processor=print))
    assert "Counted declares state per key ('n')" in sentence(connect(processor=Counted))
    assert "OddRules declares broadcast state" in sentence(
        lambda: main.key_by("who").process(OddRules, schema=SCHEMA, name="p")
    )
    assert "Timed implements on_timer" in sentence(connect(processor=Timed))
    assert "Alarmed implements on_processing_timer" in sentence(connect(processor=Alarmed))
    keyed = main.key_by("who")
    assert "connect: state with a ttl needs to know which column" in sentence(
        lambda: keyed.connect(rules, Forgetful, schema=SCHEMA, name="rules")
    )
    assert "for example name='odd-rules'" in sentence(connect(name=None))
    assert "takes a pyarrow schema" in sentence(connect(schema=None))
