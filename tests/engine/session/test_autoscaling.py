"""The driver of automatic rescaling: a real job under pressure is rescaled, and what fails does not
end the watch.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.contract.errors import HeadraceError
from headrace.engine.contract.messages import SubtaskNumbers
from headrace.engine.contract.outcomes import JobResult, Rescaled
from headrace.engine.coordinator.autoscale import AutoscaleRules
from headrace.engine.coordinator.rules import Phase
from headrace.engine.drivers.coordinator_driver import Status
from headrace.engine.session.autoscaling import autoscale

WAIT_S = 120.0


class PressedJob:
    """Always under pressure; the first rescale fails."""

    name = "pressed"
    parallelism: int | None = None

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.ended = threading.Event()
        self._looks = 0

    def rescale(self, parallelism: int) -> Rescaled:
        self.asked.append(parallelism)
        if len(self.asked) == 1:
            raise HeadraceError("no room just now")
        self.ended.set()
        return Rescaled(parallelism, 1, 0, 0, 0)

    def status(self) -> Status:
        self._looks += 1
        spent = self._looks * 1000
        numbers = {
            (0, 0): SubtaskNumbers(0, 0, 0, 0, 0, spent, 0, 0, 0),
            (1, 0): SubtaskNumbers(1, 0, 0, 0, spent, 0, 0, 0, 0),
        }
        return Status(Phase.RUNNING, 1, 0, numbers, (), (), 0)

    def wait(self, timeout_s: float | None = None) -> JobResult:
        if not self.ended.wait(timeout_s):
            raise TimeoutError
        return JobResult("pressed")


def test_a_rescale_that_fails_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    job = PressedJob()
    rules = AutoscaleRules(least=1, most=4, after_ns=1, idle_after_ns=10**12, pause_ns=1)
    autoscale(job, rules, 2, look_every_s=0.01).join(WAIT_S)
    assert job.asked == [4, 4]
    assert "was not rescaled by itself: no room just now" in caplog.text


def _slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.001 * batch.num_rows)
    return batch


def test_a_job_under_pressure_is_rescaled(tmp_path: Path) -> None:
    numbers = hr.read.sequence(None, keys=5, name="numbers")
    job = hr.Job(
        "pressed",
        numbers.rebalance().map_batches(_slow, name="slow").write.blackhole(name="out"),
        parallelism=1,
        checkpoints=str(tmp_path),
        network=hr.Network(heartbeat="100ms"),
        autoscale=hr.Autoscale(most=2, after="1s", pause="0s"),
    )
    handle = job.start("threads")
    try:
        deadline_s = time.monotonic() + WAIT_S
        while handle.parallelism != 2:
            assert time.monotonic() < deadline_s, handle.status()
            time.sleep(0.05)
    finally:
        handle.cancel()
        handle.wait(WAIT_S)


def test_a_bound_without_checkpoints_or_beyond_the_key_groups_is_refused(tmp_path: Path) -> None:
    sink = hr.read.sequence(1, name="numbers").write.blackhole(name="out")
    with pytest.raises(hr.UserError, match=r"autoscale\.most needs a checkpoint directory"):
        hr.Job("job", sink, autoscale=hr.Autoscale(most=2)).start("threads")
    job = hr.Job("job", sink, checkpoints=str(tmp_path), autoscale=hr.Autoscale(most=200))
    with pytest.raises(hr.UserError, match=r"autoscale\.most"):
        job.start("threads")
