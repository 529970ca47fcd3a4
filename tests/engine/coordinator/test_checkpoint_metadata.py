"""Metadata that comes of a checkpoint."""

from __future__ import annotations

import pyarrow.compute as pc

import headrace as hr
from headrace.channels.events import CheckpointMode
from headrace.engine.coordinator.checkpoint_metadata import metadata_of
from headrace.engine.coordinator.pending import PendingCheckpoint


def test_the_metadata_says_how_edges_deal_out_records() -> None:
    numbers = hr.read.sequence(10, keys=2, name="numbers")
    totals = (
        numbers.rebalance()
        .filter(pc.field("key") > 0)
        .key_by("key")
        .aggregate(n=hr.count(), name="totals")
    )
    plan = hr.Job("job", totals.write.collect(name="out"), parallelism=2).plan()
    pending = PendingCheckpoint(1, 0, False, None, CheckpointMode.ALIGNED)
    found = metadata_of(plan, pending, [], epoch=1, now_ns=0)
    assert [(e.partitioning, e.columns) for e in found.edges] == [
        ("rebalance", []),
        ("hash", ["key"]),
    ]
