"""Broadcast: the same batch to all."""

from __future__ import annotations

from headrace.channels.partitioners.broadcast import Broadcast

from .batches import batch_of


def test_broadcast_gives_the_same_batch_to_all() -> None:
    batch = batch_of(0, 5)
    slices = Broadcast().open(0, 1, 3, 0).split(batch)
    assert [target for target, _ in slices] == [0, 1, 2]
    assert all(rows is batch for _, rows in slices)
