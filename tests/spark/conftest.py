"""Embedded Spark, started once for all tests here, and an entry that tells which process it is
in.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.engine.contract.launcher import Entry, Incarnation, WorkerProgram
from headrace.engine.spark.session import open_session

WAIT_S = 240.0


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = open_session("tests", slots=2, master="local[2,4]")
    yield session
    session.stop()


class Roster:
    """Workers of a fake program: each writes FOLDER/WORKER.NUMBER with its process id, then waits
    for FOLDER/stop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def entry(self) -> Entry:
        """Return a nested function: cloudpickle ships it by value, the workers cannot import
        this.
        """
        folder = self.folder

        def enter(program: WorkerProgram, incarnation: Incarnation, host: str) -> None:
            import os
            import time

            name = f"{incarnation.worker}.{incarnation.number}"
            (folder / f"part-{name}").write_text(f"{os.getpid()} {host} {program.secret.decode()}")
            (folder / f"part-{name}").rename(folder / name)
            while not (folder / "stop").exists():
                time.sleep(0.02)

        return enter

    def pids(self, worker: int) -> dict[int, int]:
        """Return {incarnation number: process id} of what has started so far."""
        files = self.folder.glob(f"{worker}.*")
        return {int(file.suffix[1:]): int(file.read_text().split()[0]) for file in sorted(files)}

    def wait_for(self, worker: int, *, starts: int) -> dict[int, int]:
        wait_for(lambda: len(self.pids(worker)) >= starts)
        return self.pids(worker)

    def newest(self, worker: int, *, starts: int) -> int:
        """Wait until the worker has started so many times; return the last one's process id."""
        pids = self.wait_for(worker, starts=starts)
        assert len(pids) == starts, pids
        return pids[max(pids)]

    def wait_until_dead(self, pids: list[int]) -> None:
        wait_for(lambda: not any(is_alive(pid) for pid in pids))

    def stop(self) -> None:
        (self.folder / "stop").touch()


@pytest.fixture
def roster(tmp_path: Path) -> Iterator[Roster]:
    roster = Roster(tmp_path)
    yield roster
    roster.stop()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "condition not met in time"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
