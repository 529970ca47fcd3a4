"""A job's checkpoints and recoveries as OpenTelemetry traces, made after the fact.

Each complete checkpoint is a trace: a span from its trigger until it was durable, with a child for
each subtask. Each recovery is a span from the failure until an attempt ran again. Nothing is
measured for traces: checkpoints tell their times in their metadata, notices in the driver. The
library is imported by `follow` alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot

from ..contract.errors import JobFailed
from ..contract.extras import extra
from ..contract.outcomes import JobResult
from ..coordinator.coordinator_events import Notice, NoticeKind
from ..drivers.status import Status

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_LOOK_EVERY_S = 1.0
_MS = 1_000_000


class Traced(Protocol):
    """The job to trace: a `JobHandle`."""

    @property
    def name(self) -> str: ...
    def status(self) -> Status: ...
    def wait(self, timeout_s: float | None = None) -> JobResult: ...


def follow(
    handle: Traced, tracer: Tracer | None = None, *, look_every_s: float = _LOOK_EVERY_S
) -> threading.Thread:
    """Trace the job in a thread until it ends.

    `tracer`: None: that of the program's tracer provider.

    Raises: UserError without the library.
    """
    with extra("otel", "JobHandle.trace"):
        from opentelemetry import trace

    spans = _Spans(handle.name, tracer or trace.get_tracer("headrace"))
    thread = threading.Thread(
        target=_follow, args=(handle, spans, look_every_s), name=f"trace-{handle.name}", daemon=True
    )
    thread.start()
    return thread


def _follow(handle: Traced, spans: _Spans, look_every_s: float) -> None:
    running = True
    while running:
        try:
            handle.wait(look_every_s)
            running = False
        except TimeoutError:
            pass
        except JobFailed:
            running = False
        spans.tell(handle.status())


class _Spans:
    """Makes spans of the notices that it has not seen yet."""

    def __init__(self, job: str, tracer: Tracer) -> None:
        self._job = job
        self._tracer = tracer
        self._newest = 0
        #: The notice of the failure that the job has not recovered from.
        self._failure: Notice | None = None

    def tell(self, status: Status) -> None:
        """Take a look at the job."""
        for number, notice in status.notices:
            if number <= self._newest:
                continue
            self._newest = number
            if notice.checkpoint is not None:
                self._checkpoint(notice.checkpoint)
            elif notice.kind is NoticeKind.ATTEMPT_FAILED:
                self._failure = self._failure or notice
            elif notice.kind is NoticeKind.RUNNING and self._failure is not None:
                self._recovery(self._failure, notice)
                self._failure = None

    def _checkpoint(self, metadata: CheckpointMetadata) -> None:
        from opentelemetry.trace import set_span_in_context

        began_ns = metadata.created_ms * _MS
        span = self._tracer.start_span(
            "checkpoint",
            start_time=began_ns,
            attributes={
                "headrace.job": self._job,
                "headrace.checkpoint": metadata.checkpoint,
                "headrace.mode": metadata.mode,
            },
        )
        parent = set_span_in_context(span)
        for snapshot in metadata.subtasks:
            attributes = dict(_attributes(metadata, snapshot))
            part_ns = began_ns + snapshot.start_delay_ns
            part = self._tracer.start_span(
                f"subtask {attributes['headrace.task']} #{snapshot.index}",
                context=parent,
                start_time=part_ns,
                attributes=attributes,
            )
            took_ns = snapshot.alignment_ns + snapshot.sync_ns + snapshot.async_ns
            part.end(part_ns + took_ns)
        span.end(began_ns + metadata.duration_ns)

    def _recovery(self, failure: Notice, running: Notice) -> None:
        span = self._tracer.start_span(
            "recovery",
            start_time=failure.at_ms * _MS,
            attributes={
                "headrace.job": self._job,
                "headrace.reason": failure.text.partition("\n")[0],
                "headrace.attempt": running.text,
            },
        )
        span.end(running.at_ms * _MS)


def _attributes(
    metadata: CheckpointMetadata, snapshot: SubtaskSnapshot
) -> Iterator[tuple[str, str | int | float]]:
    tasks = metadata.tasks
    name = tasks[snapshot.task].name if snapshot.task < len(tasks) else str(snapshot.task)
    yield "headrace.task", name
    yield "headrace.subtask", snapshot.index
    for key in ("start_delay", "alignment", "sync", "async"):
        yield f"headrace.{key}_ms", getattr(snapshot, f"{key}_ns") / 1e6
