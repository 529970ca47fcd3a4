"""Shuffle: random, repeatable, and nobody starves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.partitioners.shuffle import Shuffle
from headrace.channels.partitioners.slices import RUN_ROWS_MIN

from .batches import batch_of


def test_shuffle_repeats_with_its_seed_and_differs_between_seeds_and_producers() -> None:
    def run(producer: int, seed: int) -> list[tuple[int, int]]:
        splitter = Shuffle().open(producer, 2, 4, seed)
        slices = [
            part for size in (10, 400, 3000) * 5 for part in splitter.split(batch_of(0, size))
        ]
        return [(target, rows.num_rows) for target, rows in slices]

    assert run(0, 1) == run(0, 1)
    assert run(0, 1) != run(0, 2)
    assert run(0, 1) != run(1, 1)


@given(st.lists(st.integers(1, 9000), max_size=40), st.integers(2, 9), st.integers(0, 8))
def test_shuffle_starves_no_consumer(sizes: list[int], consumers: int, seed: int) -> None:
    splitter = Shuffle().open(0, 1, consumers, seed)
    dealt = dict.fromkeys(range(consumers), 0)
    for size in sizes:
        for target, rows in splitter.split(batch_of(0, size)):
            dealt[target] += rows.num_rows
    largest = max([RUN_ROWS_MIN, *sizes])
    assert max(dealt.values()) - min(dealt.values()) <= RUN_ROWS_MIN + largest


@pytest.mark.parametrize("rows", [10, 700, 5000])
def test_shuffle_gives_every_place_of_a_batch_to_every_consumer_evenly(rows: int) -> None:
    splitter = Shuffle().open(0, 1, 4, 5)
    batch = batch_of(0, rows)
    counts = np.zeros((4, rows), np.int64)
    for _ in range(800):
        for target, part in splitter.split(batch):
            first = part.column("sequence")[0].as_py()
            counts[target, first : first + part.num_rows] += 1
            assert part.num_rows >= min(rows, RUN_ROWS_MIN // 2)
    assert counts.min() > 130
    assert counts.max() < 270
