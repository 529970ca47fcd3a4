"""Shuffle: each record at random, repeatable, and evenly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.partitioners.shuffle import Shuffle

from .batches import batch_of


def _targets(consumers: int, sizes: list[int], *, producer: int = 0, seed: int = 1) -> list[int]:
    """The consumer of each record of the batches, in the order of the records."""
    splitter = Shuffle().open(producer, 2, consumers, seed)
    found = np.full(sum(sizes), -1)
    first = 0
    for size in sizes:
        for target, rows in splitter.split(batch_of(first, size)):
            places = rows.column("sequence").to_numpy()
            assert (np.diff(places) > 0).all()
            assert (found[places] == -1).all()
            found[places] = target
        first += size
    return [int(target) for target in found]


def test_shuffle_repeats_with_its_seed_and_differs_between_seeds_and_producers() -> None:
    sizes = [10, 400, 3000]
    drawn = _targets(4, sizes)
    assert drawn == _targets(4, sizes)
    assert drawn != _targets(4, sizes, seed=2)
    assert drawn != _targets(4, sizes, producer=1)


@given(st.lists(st.integers(0, 600), max_size=12), st.integers(1, 9), st.integers(0, 8))
def test_every_record_has_one_consumer(sizes: list[int], consumers: int, seed: int) -> None:
    assert set(_targets(consumers, sizes, seed=seed)) <= set(range(consumers))


@pytest.mark.parametrize("consumers", [2, 3, 4, 300])
def test_every_record_is_drawn_by_itself_and_evenly(consumers: int) -> None:
    rows = 200 * consumers
    drawn = np.array(_targets(consumers, [rows] * 5))
    counts = np.bincount(drawn, minlength=consumers)
    # 1,000 each, give or take 32; six times that is never seen.
    assert counts.min() > 800
    assert counts.max() < 1200
    together = np.count_nonzero(drawn[1:] == drawn[:-1]) / (len(drawn) - 1)
    assert abs(together - 1 / consumers) < 0.06
