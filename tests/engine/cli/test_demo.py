from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.cli.demo import Killer, conclude, gather, pause_s
from headrace.engine.cli.identifiers import identifiers_job
from headrace.engine.cli.reporter import JsonReporter
from headrace.engine.contract.messages import SubtaskNumbers
from headrace.engine.contract.outcomes import JobResult

from .looks import numbers_of, status_of


def rows_in(task: int, rows: int) -> SubtaskNumbers:
    return numbers_of(task, rows_in=rows)


def test_the_worker_is_killed_once_at_half_and_recovery_ends_with_the_first_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: killed.append((pid, number)))
    (tmp_path / "a.py").touch()
    job = identifiers_job(tmp_path, tmp_path / "out", tmp_path / "ck", pause_s=0.0)
    plan = job.plan()
    killer = Killer(plan, 1000, JsonReporter())
    slow, totals = 1, 2

    def look(*numbers: SubtaskNumbers, epoch: int = 1) -> None:
        killer.watch(replace(status_of(*numbers, epoch=epoch), workers={0: 10, 1: 11}))

    look(rows_in(slow, 499))
    assert killed == []
    look(rows_in(slow, 500), rows_in(totals, 500))
    look(rows_in(slow, 600), rows_in(totals, 600))
    assert killed == [(11, signal.SIGKILL)]
    look(rows_in(slow, 600), rows_in(totals, 0), epoch=2)
    assert killer.recovery_ns is None
    look(rows_in(slow, 600), rows_in(totals, 1), epoch=2)
    assert killer.recovery_ns is not None
    assert len(killed) == 1


@pytest.mark.parametrize(
    ("found", "recovery_ns", "code", "differences"),
    [
        ({"a": 2, "b": 1}, 10**9, 0, "recovered 1.0 s after the kill, 0 missing, 0 extra"),
        ({"a": 1, "b": 2}, 10**9, 3, "recovered 1.0 s after the kill, 1 missing, 1 extra"),
        ({"a": 2, "b": 1}, None, 3, "NO recovery seen, 0 missing, 0 extra"),
    ],
)
def test_the_last_line_counts_every_difference(
    found: dict[str, int], recovery_ns: int | None, code: int, differences: str
) -> None:
    class Last:
        """A reporter that keeps the last line."""

        text: str | None = None

        def event(self, event: str, text: str | None, **fields: Any) -> None:
            self.text = text

        def look(self, status: object, now_ns: int) -> None: ...

        def close(self) -> None: ...

    last = Last()
    expected = Counter({"a": 2, "b": 1})
    result = JobResult("identifiers", checkpoints=5)
    assert conclude(expected, Counter(found), result, recovery_ns, last) == code
    assert last.text == f"3 words, 5 checkpoints, {differences}"


def test_the_library_is_gathered_under_names_that_are_read(tmp_path: Path) -> None:
    files, size_bytes = gather(tmp_path / "library")
    names = {path.name for path in (tmp_path / "library").iterdir()}
    assert {"python.re.__init__.py", "python._pydecimal.py"} <= names
    assert len(names) == files
    assert size_bytes > 5_000_000
    assert not [name for name in names if "site-packages" in name]


def test_the_slow_stage_takes_its_time_whatever_there_is_to_do() -> None:
    assert pause_s(3_000_000) * 3_000_000 / 2 == pytest.approx(18)
    assert pause_s(0) > 0


@pytest.mark.spark
@pytest.mark.slow
def test_the_demonstration_keeps_its_promise(long: bool) -> None:
    """With `--long` on embedded Spark, as users see it; else without a Java of its own."""
    code = "import sys; from headrace.engine.cli.main import main; sys.exit(main(['demo']))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | ({} if long else {"HEADRACE_RUNNER": "processes"}),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.rstrip().endswith(" after the kill, 0 missing, 0 extra")
