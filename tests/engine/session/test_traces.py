"""Checkpoints and recoveries as spans, by notices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.engine.contract.outcomes import JobResult
from headrace.engine.coordinator.coordinator_events import Notice, NoticeKind
from headrace.engine.drivers.status import Status
from headrace.engine.session.traces import follow
from headrace.recovery.metadata import SubtaskSnapshot, TaskInfo
from tests.engine.cli.looks import CHECKPOINT, COMPLETE, status_of

WAIT_S = 60.0
MS = 1_000_000


class Job:
    """A job that has gone through some notices when it is looked at first."""

    name = "orders"

    def __init__(self, *notices: Notice) -> None:
        self._notices = notices
        self._looks = 0

    def status(self) -> Status:
        return status_of(notices=self._notices)

    def wait(self, timeout_s: float | None = None) -> JobResult:
        self._looks += 1
        if self._looks < 3:
            raise TimeoutError
        return JobResult("orders")


def spans_of(*notices: Notice) -> Sequence[ReadableSpan]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    follow(Job(*notices), provider.get_tracer("test"), look_every_s=0.0).join(WAIT_S)
    return exporter.get_finished_spans()


def test_a_checkpoint_is_a_trace_with_a_child_for_each_subtask() -> None:
    part = SubtaskSnapshot(
        0, 1, False, [], [], [], start_delay_ns=3 * MS, alignment_ns=4 * MS, async_ns=10 * MS
    )
    tasks = [TaskInfo("score", ["score"], [], 2)]
    metadata = msgspec.structs.replace(CHECKPOINT, created_ms=1_000, tasks=tasks, subtasks=[part])
    child, root = spans_of(replace(COMPLETE, checkpoint=metadata))
    assert (root.name, root.start_time, root.end_time) == ("checkpoint", 1_000 * MS, 1_038 * MS)
    assert (child.name, child.start_time, child.end_time) == (
        "subtask score #1",
        1_003 * MS,
        1_017 * MS,
    )
    assert child.parent is not None
    assert root.context is not None
    assert child.parent.span_id == root.context.span_id
    assert root.attributes is not None
    assert root.attributes["headrace.checkpoint"] == 7


def test_a_recovery_lasts_from_the_first_failure_until_an_attempt_runs() -> None:
    (span,) = spans_of(
        Notice(NoticeKind.RUNNING, "attempt 1 runs", at_ms=1),
        Notice(NoticeKind.ATTEMPT_FAILED, "worker 1 was lost\nand more", at_ms=5),
        Notice(NoticeKind.ATTEMPT_FAILED, "again", at_ms=7),
        Notice(NoticeKind.RUNNING, "attempt 3 runs", at_ms=9),
    )
    assert (span.name, span.start_time, span.end_time) == ("recovery", 5 * MS, 9 * MS)
    assert span.attributes is not None
    assert span.attributes["headrace.reason"] == "worker 1 was lost"
