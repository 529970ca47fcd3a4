"""Event time in simulated jobs: no record is late, and every bucket is told once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.channels.events import MIN_WATERMARK
from headrace.channels.partitioners.hash import Hash
from headrace.engine.contract.operators import OperatorContext
from headrace.engine.simulation.jobs.event_time import DELAY_NS, Times, bucket_of, time_of, told_of
from headrace.engine.simulation.jobs.graphs import MAX_PARALLELISM, Graph, Kind, TaskSpec
from headrace.engine.simulation.jobs.reference import Record, reference_of
from headrace.engine.simulation.jobs.source import SCHEMA, key_of, records_of

KEY = Hash(("key",), MAX_PARALLELISM)


@pytest.mark.parametrize(("source", "step"), [(0, 1), (1, 1), (0, 3)])
def test_records_that_are_read_in_order_are_never_late(source: int, step: int) -> None:
    for first in range(step):
        times = time_of(np.array(records_of(source, 3000)[first::step]))
        newest = np.maximum.accumulate(times)
        assert (times >= newest - DELAY_NS).all()
        assert not (times[1:] >= times[:-1]).all(), "and yet out of order"
        assert not (times % 2).any()


def test_a_bucket_holds_its_last_nanosecond() -> None:
    for id in records_of(1, 200):
        assert 0 <= bucket_of(id) - time_of(id) < 70


def test_the_reference_tells_each_keys_buckets() -> None:
    tasks = (
        TaskSpec(Kind.SOURCE, 1),
        TaskSpec(Kind.BUCKETS, 2, ((0, KEY),)),
        TaskSpec(Kind.SINK, 1, ((1, KEY),)),
    )
    expected: dict[tuple[int, int], list[int]] = {}
    for id in records_of(0, 40):
        expected.setdefault((key_of(id, 3), bucket_of(id)), []).append(id)
    found = reference_of(Graph(tasks, 40, 3)).sinks["sink2"]
    assert found == {
        Record(told_of(len(ids), sum(ids), bucket), key, 2, 0): 1
        for (key, bucket), ids in expected.items()
    }


def test_watermarks_are_made_split_by_split() -> None:
    subject = Times()
    subject.open(OperatorContext("job", "times", 0, 1, 16, 1))
    subject.opened(frozenset("01"))
    for id, expected in ((4, MIN_WATERMARK), (1, time_of(1) - DELAY_NS - 1)):
        subject.polled(str(id % 2), frozenset("01"), 0, empty=False)
        list(subject.process(pa.record_batch([pa.array([id])] * 6, schema=SCHEMA), 0))
        assert subject.watermark_ns == expected
