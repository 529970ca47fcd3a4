"""Lives are told in order of event time, whatever the order of records."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest

from headrace.channels.events import MAX_WATERMARK
from headrace.engine.contract.operators import EventTimeOperator, Operator, OperatorContext
from headrace.engine.simulation.jobs.event_time import DELAY_NS, time_of
from headrace.engine.simulation.jobs.lives import Expiring, in_order, lives
from headrace.engine.simulation.jobs.source import SCHEMA, key_of
from headrace.engine.simulation.jobs.timed_reference import lives_of

KEYS = 3


def opened(operator: Operator) -> EventTimeOperator:
    operator.open(OperatorContext("job", "lives2", 0, 1, 16, 1))
    assert isinstance(operator, EventTimeOperator)
    return operator


def rows(ids: list[int]) -> pa.RecordBatch:
    zeros = dict.fromkeys(SCHEMA.names, 0)
    found = [zeros | {"id": id, "key": key_of(id, KEYS)} for id in ids]
    return pa.RecordBatch.from_pylist(found, schema=SCHEMA)


def pieces(seed: int) -> Iterator[tuple[list[int], int]]:
    """Records of one split in pieces, with the watermark after each."""
    rng = random.Random(seed)
    ids = list(range(200))
    while ids:
        taken, ids = ids[: (size := rng.randint(1, 9))], ids[size:]
        newest = max(map(time_of, taken))
        yield rng.sample(taken, len(taken)), newest - DELAY_NS - 1 if ids else MAX_WATERMARK


@pytest.mark.parametrize("second", [lives, Expiring])
@pytest.mark.parametrize("seed", range(4))
def test_each_record_tells_the_present_life_of_its_key(second: type[Expiring], seed: int) -> None:
    order, operator = opened(in_order("order")), opened(second("lives2"))
    told: Counter[tuple[int, int]] = Counter()
    for ids, watermark_ns in pieces(seed):
        list(order.process(rows(ids), 0))
        for batch in order.advance(watermark_ns, 1000).batches:
            for out in operator.process(batch, 0):
                told.update((row["id"], row["key"]) for row in out.to_pylist())
        operator.advance(watermark_ns, 1000)
        order.commit()
        operator.commit()
    expected = lives_of(Counter((id, key_of(id, KEYS)) for id in range(200)))
    assert told == expected
    lengths = Counter(key_of(id, KEYS) for id in range(200))
    assert len(expected) == sum(lengths.values())
