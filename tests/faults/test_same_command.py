"""The same command line, however the run before it ended: nothing is lost, nothing is doubled."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from .conftest import WAIT_S, is_alive, wait_for

pytestmark = pytest.mark.slow

ROWS = 20_000
#: Nobody waits longer for a process that was told to end.
TERM_S = 10.0
PROGRAM = """
import os, time
import headrace as hr


def work(batch):
    if os.path.exists("slow"):
        time.sleep(0.002 * batch.num_rows)
    if os.path.exists("stuck"):
        open("begun", "w").close()
        time.sleep(60.0)
    return batch


rate = None if os.path.exists("slow") else {rate}
numbers = hr.read.sequence({rows}, keys=5, rate=rate, name="numbers")
worked = numbers.rebalance().map_batches(work, name="work")
job = hr.Job(
    "same",
    worked.write.parquet("out", name="out"),
    parallelism=2,
    checkpoints=hr.Checkpoints("checkpoints", interval="{interval}"),
)
"""
MAIN = "import sys; from headrace.engine.cli.main import main; sys.exit(main())"


class Command:
    """One and the same command line in one folder, run again and again."""

    def __init__(self, folder: Path, interval: str = "100ms") -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None
        program = PROGRAM.format(rows=ROWS, rate=8_000.0, interval=interval)
        (folder / "job.py").write_text(program)

    def start(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "run", "job.py", "--runner", "processes"],
            cwd=self.folder,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self.process

    def finish(self) -> str:
        """Run to the end; return what was said."""
        _, said = self.start().communicate(timeout=WAIT_S)
        assert self.process is not None
        assert self.process.returncode == 0, said
        return said

    def assert_exact(self) -> None:
        assert sorted(visible(self.folder / "out")) == list(range(ROWS))


def visible(folder: Path) -> list[int]:
    table = ds.dataset(folder, format="parquet").to_table(columns=["sequence"])
    found: list[int] = table["sequence"].to_pylist()
    return found


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, now."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    below, found = {pid}, [pid]
    while below:
        below = {child for child, parent in parents.items() if parent in below}
        found += sorted(below)
    return found


def kill_all(process: subprocess.Popen[str]) -> None:
    """SIGKILL for the driver and all below it, at once."""
    doomed = descendants(process.pid)
    for pid in doomed:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.communicate()
    wait_for(lambda: not any(map(is_alive, doomed)), f"the end of {doomed}")


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    made = Command(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        kill_all(made.process)


def test_after_kills_at_random_moments_the_same_command_is_exact(
    command: Command, long: bool
) -> None:
    rng = random.Random(5)
    for _ in range(20 if long else 3):
        process = command.start()
        time.sleep(rng.uniform(0.1, 5.0))
        kill_all(process)
    command.finish()
    command.assert_exact()
    files = sorted((command.folder / "out").iterdir())
    said = command.finish()
    assert "job same had finished, and its sources have nothing new" in said
    assert sorted((command.folder / "out").iterdir()) == files


def terminated(process: subprocess.Popen[str]) -> tuple[float, str]:
    """Send SIGTERM; return how long the end took, and what was said."""
    doomed = descendants(process.pid)
    began_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    took_s = time.monotonic() - began_s
    wait_for(lambda: not any(map(is_alive, doomed)), f"the end of {doomed}")
    assert process.returncode == 128 + signal.SIGTERM, said
    return took_s, said


@pytest.mark.parametrize("state", ["slow", "stuck"])
def test_sigterm_is_over_in_time_and_the_same_command_goes_on(
    tmp_path: Path, state: str, long: bool
) -> None:
    """Full queues behind a slow function; a call that lasts a minute."""
    command = Command(tmp_path, interval="30s")
    (tmp_path / state).touch()
    for _ in range(5 if long else 1):
        (tmp_path / "begun").unlink(missing_ok=True)
        process = command.start()
        try:
            if state == "stuck":
                wait_for((tmp_path / "begun").exists, "the call")
            else:
                time.sleep(6.0)
            took_s, said = terminated(process)
        finally:
            if process.poll() is None:
                kill_all(process)
        assert took_s < TERM_S, said
        assert "job same stopped after" in said
        assert "the last is chk-" in said
    (tmp_path / state).unlink()
    command.finish()
    command.assert_exact()
