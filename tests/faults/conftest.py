"""What the fault tests share: waiting, looking at processes, and a driver that can be killed.

`make faults LONG=1` runs long campaigns (`--long`); `make faults` the same tests with fewer kills.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.bench.audit import AuditedJob, judge

WAIT_S = 240.0
DRIVER = Path(__file__).with_name("driver.py")
#: Stops itself at a step.
FROZEN_DRIVER = Path(__file__).with_name("frozen_driver.py")


def wait_for(condition: Callable[[], Any], what: str = "condition") -> Any:
    """Wait until `condition` returns something true, and return that."""
    deadline_s = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"{what}: not in time"
        time.sleep(0.01)
    return found


def is_alive(pid: int) -> bool:
    """A zombie is dead: whoever should reap it may be a careless init."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until_dead(pids: list[int]) -> None:
    wait_for(lambda: not any(map(is_alive, pids)), f"the end of {pids}")


def assert_prefix(audited: AuditedJob) -> None:
    """What is visible is some moment of a run without failures: the records of each source subtask,
    or partition, up to one of them, once.
    """
    table = audited.visible()
    assert table.num_rows, "nothing is visible"
    producers = audited.partitions or audited.parallelism
    for producer in range(producers):
        sequence = np.sort(table["sequence"].to_numpy())
        own = sequence[sequence % producers == producer]
        gapless = np.arange(len(own)) * producers + producer
        assert np.array_equal(own, gapless), f"source subtask {producer} has gaps or repetitions"
    assert judge(table, audited.rows, producers=producers).misplaced == 0


def assert_no_repeats(audited: AuditedJob) -> None:
    """A driver killed amid a commit leaves some of its files visible; each is whole, and no record
    is in two.
    """
    sequence = audited.visible()["sequence"].to_numpy()
    assert len(np.unique(sequence)) == len(sequence), "a record is visible twice"


class Program:
    """A Python program in a process of its own, and what it says."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.said: queue.Queue[dict[str, Any]] = queue.Queue()
        #: {word: what was said with it last}, of words that `until` has heard.
        self.last: dict[str, Any] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.said.put(json.loads(line))

    def until(self, word: str) -> Any:
        """Wait until the program says `word`; return what it says with it."""
        deadline_s = time.monotonic() + WAIT_S
        heard: list[dict[str, Any]] = []
        while True:
            over = self.process.poll() is not None
            try:
                heard.append(self.said.get(timeout=0.5))
                self.last |= heard[-1]
            except queue.Empty:
                assert not over, f"it ended without {word!r}: {heard}, {self.ended()}"
                assert time.monotonic() < deadline_s, f"{word!r}: not in time: {heard}"
                continue
            if word in heard[-1]:
                return heard[-1][word]

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.process.pid, number)

    def ended(self) -> tuple[int, str]:
        """Wait for the end; return exit code and standard error."""
        code = self.process.wait(WAIT_S)
        assert self.process.stderr is not None
        return code, self.process.stderr.read()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class Driver(Program):
    """`driver.py`."""

    def __init__(self, audited: AuditedJob, *arguments: str, frozen_at: str = "") -> None:
        facts = [str(audited.folder), str(audited.rows), str(audited.rate_per_s)]
        program = [str(FROZEN_DRIVER), frozen_at] if frozen_at else [str(DRIVER)]
        super().__init__(*program, *facts, *arguments)


StartDriver = Callable[..., Driver]


@pytest.fixture
def start_driver() -> Iterator[StartDriver]:
    """Starts drivers, and ends those that still run after the test."""
    drivers: list[Driver] = []

    def start(audited: AuditedJob, *arguments: str, frozen_at: str = "") -> Driver:
        drivers.append(Driver(audited, *arguments, frozen_at=frozen_at))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.close()
