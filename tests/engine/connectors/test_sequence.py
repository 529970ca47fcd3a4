"""The sequence source makes each number once, whatever the restarts, and keeps its rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.connectors.sequence import SequenceSource, Stride, share
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.operators import Polled, RestoredState, SourceStatus

Make = Callable[..., Any]


@pytest.mark.parametrize("seed", range(5))
def test_every_number_appears_once_over_restarts_at_any_parallelism(drive: Make, seed: int) -> None:
    run = drive(SequenceSource(rows=500), seed=seed)
    for parallelism in (2, 3, 3, 1, 4):
        run.some(parallelism, steps=9)
    run.rest(2)
    assert sorted(run.column("sequence")) == list(range(500))


@given(
    attempts=st.lists(
        st.lists(st.integers(min_value=0, max_value=20), min_size=1, max_size=5), max_size=6
    ),
    end=st.integers(min_value=0, max_value=200),
)
def test_sharing_out_loses_and_doubles_nothing(attempts: list[list[int]], end: int) -> None:
    made: list[int] = []
    saved: list[Stride] = []
    for counts in [*attempts, [end] * 3]:
        left = []
        for index, count in enumerate(counts):
            for stride in share(saved, end=end, parallelism=len(counts), index=index):
                taken = min(count, stride.count)
                made += range(stride.next, stride.end, stride.step)[:taken]
                left.append(stride.after(taken))
        saved = left
    assert sorted(made) == list(range(end))


@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.integers(0, 60))
def test_at_the_same_parallelism_each_subtask_goes_on_with_its_own_numbers(
    counts: list[int], end: int
) -> None:
    width = len(counts)
    saved = [
        share([], end=end, parallelism=width, index=index)[0].after(count)
        for index, count in enumerate(counts)
    ]
    for index, own in enumerate(saved):
        assert share(saved, end=end, parallelism=width, index=index) == [own]


def test_a_longer_source_goes_on_where_the_shorter_one_ended(drive: Make) -> None:
    run = drive(SequenceSource(rows=10))
    run.rest(3)
    run.source = SequenceSource(rows=25)
    run.rest(2)
    assert sorted(run.column("sequence")) == list(range(25))


def test_what_slower_subtasks_owe_is_open_before_what_comes_after_it(at: Make) -> None:
    source = SequenceSource(rows=30)
    old = [source.reader() for _ in range(3)]
    for index, reader in enumerate(old):
        reader.open(at(index, 3))
        reader.poll(2 * index + 1)
        reader.commit()
        assert reader.open_splits() == {f"{index}/3"}
    reader = source.reader()
    reader.open(at(0, 1))
    reader.restore([RestoredState(s.name, s.kind, s.table()) for o in old for s in o.snapshot()])
    assert reader.open_splits() == {"0/3<17", "1/3<17"}
    order = []
    while (polled := reader.poll(100)).batches:
        assert polled.split in reader.open_splits()
        order.append(polled.split)
    assert order == ["0/3<17", "1/3<17", "0/1"]


def test_offsets_of_a_poll_are_invisible_before_its_commit(at: Make) -> None:
    reader = SequenceSource(rows=None).reader()
    reader.open(at(0, 1))
    reader.poll(5)
    assert reader.snapshot()[0].table().column("next").to_pylist() == [0]
    reader.commit()
    assert reader.snapshot()[0].table().column("next").to_pylist() == [5]


def test_columns_depend_on_the_sequence_alone(drive: Make) -> None:
    source = SequenceSource(
        rows=300, payload_bytes=9, key_count=16, columns={"odd": lambda numbers: numbers % 2 == 1}
    )
    tables = []
    for parallelism in (1, 3):
        run = drive(source)
        run.rest(parallelism)
        tables.append(run.table().sort_by("sequence").combine_chunks())
    assert tables[0].equals(tables[1])
    tables[0].validate(full=True)
    assert tables[0].column("odd").to_pylist()[:3] == [False, True, False]
    assert {len(value) for value in tables[0].column("payload").to_pylist()} == {9}


@pytest.mark.parametrize("key_count", [1, 2, 7, 1000, 1_640_531_527])
def test_keys_are_in_range_and_each_run_of_numbers_holds_all(drive: Make, key_count: int) -> None:
    run = drive(SequenceSource(rows=2000, key_count=key_count), rows_max=500)
    run.rest(1)
    keys = np.array(run.column("key"))
    assert keys.min() >= 0
    assert keys.max() < key_count
    for first in range(0, 2000 - key_count + 1, key_count):
        assert len(set(keys[first : first + key_count])) == key_count
    assert len(set(keys)) == min(key_count, 2000)


def test_a_rate_is_divided_over_the_subtasks_and_told_by_the_clock(at: Make) -> None:
    now = [0]
    source = SequenceSource(rows=None, rate_per_s=100, clock=lambda: now[0])
    reader = source.reader()
    reader.open(at(1, 2))
    first = reader.poll(50)
    assert first.batches[0].column("sequence").to_pylist() == [1]
    assert first.status is SourceStatus.IDLE
    assert 19_000_000 <= first.wait_ns <= 20_000_001
    assert reader.poll(50) == Polled((), SourceStatus.IDLE, first.wait_ns)
    now[0] += first.wait_ns
    assert reader.poll(50).batches[0].column("sequence").to_pylist() == [3]
    now[0] += 1_000_000_000
    assert reader.poll(100).batches[0].num_rows == 50


def test_a_high_rate_makes_batches_and_not_single_records(at: Make) -> None:
    now = [0]
    reader = SequenceSource(rows=None, rate_per_s=1e6, clock=lambda: now[0]).reader()
    reader.open(at(0, 1))
    polled = reader.poll(8192)
    assert polled.status is SourceStatus.IDLE
    now[0] += polled.wait_ns
    assert reader.poll(8192).batches[0].num_rows >= 1000


def test_a_paced_source_ends_with_its_last_record(at: Make) -> None:
    now = [0]
    reader = SequenceSource(rows=3, rate_per_s=1e6, clock=lambda: now[0]).reader()
    reader.open(at(0, 1))
    rows = 0
    while (polled := reader.poll(10)).status is not SourceStatus.END:
        rows += sum(batch.num_rows for batch in polled.batches)
        now[0] += polled.wait_ns
    assert rows == 3
    assert now[0] < 1_000_000


def test_generation_is_not_the_bottleneck(at: Make) -> None:
    reader = SequenceSource(rows=None, payload_bytes=76).reader()
    reader.open(at(0, 2))
    best = 0.0
    for _ in range(5):
        # The processor's time, not the clock's: others may run in between.
        begin = time.thread_time()
        rows = sum(reader.poll(8192).batches[0].num_rows for _ in range(200))
        best = max(best, rows / (time.thread_time() - begin))
    # 180 million/s on a quiet machine; record by record it would be a hundredth of that.
    assert best > 20e6


@pytest.mark.parametrize(
    "options",
    [
        {"rows": -1},
        {"rate_per_s": 0},
        {"key_count": 0},
        {"payload_bytes": -1},
        {"columns": {"key": abs}},
    ],
)
def test_senseless_options_are_the_users_mistake(options: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        SequenceSource(**{"rows": 1, **options})


def test_a_column_function_must_return_a_value_for_each_number() -> None:
    source = SequenceSource(rows=1, columns={"bad": lambda numbers: np.array([1])})
    with pytest.raises(UserError, match="'bad' gave 1 values for 2 records"):
        _ = source.schema
