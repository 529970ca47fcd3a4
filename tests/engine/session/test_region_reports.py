"""What is told of several regions: numbered once, and what a failure repeats."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace.engine.coordinator.coordinator_events import Notice, NoticeKind
from headrace.engine.session.region_reports import Notices, Progress


def status(*texts: str, **numbers: Any) -> Any:
    """A look at a region. `rows`: of its source, task 0."""
    notices = [(n, Notice(NoticeKind.WORKER_LOST, text)) for n, text in enumerate(texts, 1)]
    seen = {(0, 0): SimpleNamespace(rows_out=numbers.pop("rows", 0))}
    checkpoints = [SimpleNamespace(checkpoint=n) for n in numbers.pop("checkpoints", ())]
    usual = {"restarts": 0, "completed": 0} | numbers
    return SimpleNamespace(notices=notices, numbers=seen, checkpoints=checkpoints, **usual)


def told(notices: Notices, **statuses: Any) -> list[tuple[int, str]]:
    return [(number, notice.text) for number, notice in notices.of(statuses)]


def test_each_notice_is_told_once_under_one_numbering() -> None:
    notices = Notices(["a", "b"])
    assert told(notices, a=status("x")) == [(1, "a: x")]
    notices.add(Notice(NoticeKind.FAILOVER, "of the job"))
    found = told(notices, a=status("x", "y"), b=status("z"))
    assert found == [(1, "a: x"), (2, "of the job"), (3, "a: y"), (4, "b: z")]


def test_a_session_that_starts_again_numbers_from_one() -> None:
    notices = Notices(["a"])
    told(notices, a=status("x", "y"))
    notices.begin("a")
    assert told(notices, a=status("again"))[-1] == (3, "a: again")


def test_a_restart_is_told_with_what_is_read_once_more() -> None:
    region: Any = SimpleNamespace(
        name="a", plan=SimpleNamespace(tasks=[SimpleNamespace(index=0, is_source=True)])
    )
    progress = Progress(region)
    assert progress.looked(status(rows=100, completed=1, checkpoints=[1])) is None
    assert progress.looked(status(rows=170, completed=1, checkpoints=[1])) is None
    found = progress.looked(status("killed\nmore", restarts=1, completed=1, checkpoints=[1]))
    assert found is not None
    assert (found.region, found.checkpoint, found.rows) == ("a", 1, 70)
    assert found.reason == "killed"
    assert progress.looked(status(restarts=1, completed=1, checkpoints=[1])) is None
