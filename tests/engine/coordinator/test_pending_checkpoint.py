"""A pending checkpoint, and the metadata that comes of it."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.channels.events import CheckpointMode
from headrace.engine.contract import messages as m
from headrace.engine.coordinator.pending_checkpoint import PendingCheckpoint, metadata_of
from headrace.recovery.metadata import SubtaskSnapshot, TransactionRecord


def snapshot(task: int, index: int) -> SubtaskSnapshot:
    return SubtaskSnapshot(task, index, False, [], [], [])


def acknowledge(*places: tuple[int, int], transaction: str = "t") -> m.Acknowledge:
    record = TransactionRecord("out", transaction, {})
    return m.Acknowledge(1, 7, [snapshot(*place) for place in places], [record])


def test_a_checkpoint_is_complete_when_every_worker_has_acknowledged() -> None:
    pending = PendingCheckpoint(7, 0, final=False, request=None, mode=CheckpointMode.ALIGNED)
    assert not pending.complete([0, 1])
    pending.acknowledge(1, acknowledge((1, 1), (0, 1), transaction="b"))
    assert not pending.complete([0, 1])
    pending.acknowledge(0, acknowledge((1, 0), (0, 0), transaction="a"))
    assert pending.complete([0, 1])
    assert [(s.task, s.index) for s in pending.subtasks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [t.id for t in pending.transactions] == ["a", "b"]


def test_a_repeated_acknowledgement_must_say_the_same() -> None:
    pending = PendingCheckpoint(7, 0, final=False, request=None, mode=CheckpointMode.ALIGNED)
    pending.acknowledge(0, acknowledge((0, 0)))
    pending.acknowledge(0, acknowledge((0, 0)))
    with pytest.raises(AssertionError, match="worker 0 acknowledged 7 twice, differently"):
        pending.acknowledge(0, acknowledge((0, 1)))


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
