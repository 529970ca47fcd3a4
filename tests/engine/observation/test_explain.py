"""What holds a job back, by made observations."""

from __future__ import annotations

from headrace.engine.observation.observer import Observer
from tests.engine.cli.looks import BUSY, PLAN, status_of


def test_the_busiest_task_is_named() -> None:
    finding = Observer(PLAN).look(status_of(BUSY), 0, 0).finding
    assert finding.task == "totals -> out"


def test_a_job_without_work_is_in_order() -> None:
    finding = Observer(PLAN).look(status_of(), 0, 0).finding
    assert (finding.severity, finding.cause) == ("ok", "none")
