"""Rebalance: even shares."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.partitioners.rebalance import Rebalance
from headrace.channels.partitioners.slices import RUN_ROWS_MIN

from .batches import batch_of


@given(st.lists(st.integers(1, 4000), max_size=30), st.integers(1, 9), st.integers(0, 8))
def test_rebalance_keeps_the_shares_even(sizes: list[int], consumers: int, producer: int) -> None:
    splitter = Rebalance().open(producer, 9, consumers, 0)
    dealt = dict.fromkeys(range(consumers), 0)
    for size in sizes:
        slices = splitter.split(batch_of(0, size))
        assert len({target for target, _ in slices}) == len(slices)
        assert len(slices) == min(consumers, max(1, size // RUN_ROWS_MIN))
        for target, rows in slices:
            dealt[target] += rows.num_rows
    assert max(dealt.values()) - min(dealt.values()) <= 2 * RUN_ROWS_MIN


def test_rebalance_gives_small_batches_whole_and_in_turn() -> None:
    splitter = Rebalance().open(1, 2, 3, 0)
    targets = [target for _ in range(6) for target, _ in splitter.split(batch_of(0, 20))]
    assert targets == [1, 2, 0, 1, 2, 0]
