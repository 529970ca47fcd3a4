"""When the next batch of a region begins; whole jobs are in test_regions.py."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.connectors.edge_log import EdgeLogCommitter
from headrace.engine.session.region_batches import Batches, Next
from headrace.engine.session.region_plan import RegionsPlan
from headrace.recovery.edge_log import committed
from tests.engine.session.test_regions import numbers


@pytest.fixture
def plan(tmp_path: Path) -> RegionsPlan:
    out = numbers(10).logged(name="log").write.collect(name="out")
    job = hr.Job(
        "job",
        out,
        checkpoints=hr.Checkpoints(str(tmp_path)),
        regions=[hr.Region("out", policy="batch")],
    )
    return job._regions_plan(job.options)


def grow(plan: RegionsPlan, first: int, end: int) -> None:
    files = plan.files("log")
    piece = files.write(0, 1, first, pa.table({"n": list(range(first, end))}), 0)
    entry = committed(files.last(), 1, end, [piece])
    assert entry is not None
    assert files.append(entry)


def test_a_batch_begins_when_there_is_something_and_it_is_time(plan: RegionsPlan) -> None:
    batches = Batches(plan, plan.regions[1], every_ns=10, now_ns=0)
    assert batches.next(50) is Next.WAIT, "nothing has come"
    grow(plan, 0, 4)
    assert batches.next(9) is Next.WAIT
    assert batches.next(10) is Next.BEGIN
    assert batches.next(19) is Next.WAIT


def test_the_last_batch_does_not_wait_and_nothing_follows_a_log_that_was_read(
    plan: RegionsPlan,
) -> None:
    batches = Batches(plan, plan.regions[1], every_ns=10, now_ns=0)
    grow(plan, 0, 4)
    EdgeLogCommitter(plan.files("log")).finish()
    assert batches.next(1) is Next.BEGIN


def test_a_log_that_ended_empty_needs_no_batch(plan: RegionsPlan) -> None:
    EdgeLogCommitter(plan.files("log")).finish()
    assert Batches(plan, plan.regions[1], every_ns=10, now_ns=0).next(0) is Next.OVER
