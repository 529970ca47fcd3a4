"""A subtask whose blocked channels spill, driven by hand: credit, runs, and cuts that name them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from headrace.channels.events import CheckpointMode
from headrace.channels.spilled import RunFile, Spilled
from headrace.engine.worker.subtask_events import (
    DeadlineReached,
    DiskUsed,
    PartStored,
)
from headrace.inflight.spill import RunRead, RunUnwritten, RunWritten, SpillLimits

from .driven_subtask import LIMITS, ROW_BYTES, A, B, Driven, barrier

SPILL = replace(LIMITS, window_bytes=8 * ROW_BYTES, spill=SpillLimits(16 * ROW_BYTES, 1 << 30))


def file(number: int, rows: int) -> RunFile:
    return RunFile(number, rows, 10, "0" * 16)


def blocked(**options: object) -> Driven:
    """A is blocked, and a run of 4 records is being written."""
    subject = Driven(limits=replace(SPILL, **options))  # type: ignore[arg-type]  # of Limits
    subject.start()
    subject.event(A, barrier(1))
    assert subject.records(A, 4) == [f"grant {A} {12 * ROW_BYTES}"]
    assert subject.records(A, 4) == [f"grant {A} {16 * ROW_BYTES}"]
    (granted, written) = subject.records(A, 4)
    assert granted == f"grant {A} {20 * ROW_BYTES}"
    assert "WriteRun(number=0" in written
    return subject


def test_credit_is_granted_on_arrival_over_a_blocked_channel_alone() -> None:
    subject = blocked()
    assert subject.records(B, 4)[0].startswith("run 1")


def test_spilled_records_follow_the_head_when_the_alignment_is_over() -> None:
    subject = blocked()
    subject.step(DiskUsed(RunWritten(file(0, 4))))
    unblocked = subject.event(B, barrier(1))
    assert "run 1: port 0 [0, 1, 2, 3]" in unblocked
    assert any("ReadRun" in effect for effect in unblocked)
    assert not any("run 2" in effect for effect in subject.done(1))
    records = pa.table({"x": pa.array(range(4, 8), pa.int64())})
    read = subject.step(DiskUsed(RunRead(0, records)))
    assert read[0] == "run 2: port 0 [4, 5, 6, 7]"
    assert "DeleteRun" in read[-1]


def test_a_cut_that_overtakes_names_spilled_records_and_holds_their_run() -> None:
    subject = blocked(alignment_timeout_ns=100)
    subject.step(DiskUsed(RunWritten(file(0, 4))))
    subject.event(B, barrier(1))
    assert [cut.checkpoint for cut in subject.cuts] == [1]
    subject.event(B, barrier(2, CheckpointMode.UNALIGNED))
    subject.event(A, barrier(2, CheckpointMode.UNALIGNED))
    (run,) = (run for run in subject.cuts[1].inflight if run.channel == A)
    assert [type(item) for item in run.buffers].count(Spilled) == 1
    assert (run.first, run.buffers[-1].end) == (0, 12)
    subject.done(1)
    records = pa.table({"x": pa.array(range(4, 8), pa.int64())})
    read = subject.step(DiskUsed(RunRead(0, records)))
    assert not any("DeleteRun" in effect for effect in read)
    assert "DeleteRun" in subject.step(PartStored(2))[-1]


def test_a_write_that_failed_is_tried_again_and_its_reason_is_told() -> None:
    subject = blocked()
    subject.step(DiskUsed(RunUnwritten(0, "no space")))
    assert subject.subtask.statistics(0).unspilled == "no space"
    deadline_ns = subject.subtask.next_deadline_ns()
    assert deadline_ns is not None
    subject.now_ns = deadline_ns
    assert "WriteRun(number=1" in subject.step(DeadlineReached())[-1]
