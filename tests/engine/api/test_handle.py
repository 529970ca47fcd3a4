"""The handle: delegates to the session, adds what was collected."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

from headrace.engine.api.errors import UserError
from headrace.engine.api.handle import JobHandle, JobResult


class RecordingSession:
    """Notes each call; answers with something that can be told apart."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def checkpoint(self) -> int:
        self.calls.append("checkpoint")
        return 7

    def savepoint(self, path: str) -> str:
        self.calls.append(("savepoint", path))
        return f"{path}/chk-7"

    def rescale(self, parallelism: int) -> None:
        self.calls.append(("rescale", parallelism))

    def stop(self) -> None:
        self.calls.append("stop")

    def wait(self, timeout_s: float | None) -> JobResult:
        self.calls.append(("wait", timeout_s))
        return JobResult("orders", checkpoints=3)

    def metrics(self) -> Mapping[str, float]:
        return {"headrace_restarts_total": 1.0}


def test_every_call_reaches_the_session() -> None:
    session = RecordingSession()
    handle = JobHandle("orders", session, {})
    assert (handle.checkpoint(), handle.savepoint("/s")) == (7, "/s/chk-7")
    handle.rescale(4)
    handle.stop()
    assert handle.metrics() == {"headrace_restarts_total": 1.0}
    assert session.calls == ["checkpoint", ("savepoint", "/s"), ("rescale", 4), "stop"]


def test_waiting_adds_what_the_collect_sinks_hold() -> None:
    session = RecordingSession()
    table = pa.table({"a": [1]})
    result = JobHandle("orders", session, {"all": lambda: table}).wait(5)
    assert result == JobResult("orders", checkpoints=3, collected={"all": table})
    assert session.calls == [("wait", 5)]


def test_a_rescale_to_nothing_is_refused_before_the_session_hears_of_it() -> None:
    session = RecordingSession()
    with pytest.raises(UserError) as caught:
        JobHandle("orders", session, {}).rescale(0)
    assert str(caught.value) == "rescale: parallelism=0 is not a whole number from 1 to 32768"
    assert session.calls == []
