"""Jobs with planted trouble, as programs that `headrace run --ui` runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.services.process import free_port, wait_for

PRELUDE = """\
import os, time
import headrace as hr, pyarrow as pa, pyarrow.compute as pc

S = pa.schema([("key", pa.int64()), ("sequence", pa.int64())])

def slow(us):
    def score(batch):
        time.sleep(batch.num_rows * us * 1e-6)
        return batch.select(["key", "sequence"])
    return score

def counted(stream, **options):
    out = stream.key_by("key").aggregate(n=hr.count(), emit="final", name="count")
    sink = out.write.parquet("out", name="out")
    return hr.Job("shop", sink, **{"parallelism": 2, "checkpoints": CHECKPOINTS} | options)

CHECKPOINTS = hr.Checkpoints("ck", interval="1s", mode="unaligned")
orders = hr.read.sequence(10**9, keys=100, name="orders")
"""

SLOW = """\
scored = orders.rebalance().map_batches(slow(20), schema=S, name="score <b>x")
job = counted(scored)
"""

#: Nine in ten records have one key, so one subtask of four gets them.
SKEWED = """\
def skew(batch):
    key = pc.if_else(pc.greater(batch["key"], 9), 7, batch["key"])
    return pa.record_batch({"key": key, "sequence": batch["sequence"]})

class Rules(hr.StatefulProcessor):
    def process_batch(self, key, rows):
        time.sleep(rows.num_rows * 20e-6)
        return rows

keyed = orders.map_batches(skew, schema=S, name="skew").key_by("key")
job = counted(keyed.process(Rules, schema=S, name="rules"), parallelism=4)
"""

#: Aligned barriers wait behind queued records for longer than a checkpoint may take.
FAILING = """\
scored = orders.rebalance().map_batches(slow(100), schema=S, name="score")
checkpoints = hr.Checkpoints(
    "ck", interval="1s", mode="aligned", alignment_timeout=None, timeout="200ms",
    tolerable_failures=1000,
)
job = counted(scored, checkpoints=checkpoints, network=hr.Network(debloat_target="0s"))
"""

#: Raises once, five seconds after the start.
RESTARTING = """\
began = time.monotonic()

def score(batch):
    time.sleep(batch.num_rows * 20e-6)
    if time.monotonic() - began > 5 and not os.path.exists("raised"):
        open("raised", "w").close()
        raise ValueError("the model <i>is</i> gone")
    return batch.select(["key", "sequence"])

job = counted(orders.rebalance().map_batches(score, schema=S, name="score"))
"""


class Run:
    """`headrace run` of a program in a process of its own, in a folder of its own.

    Args:
        port: of the page; 0: a free one.
    """

    def __init__(
        self, folder: Path, program: str, *, port: int = 0, runner: str = "threads"
    ) -> None:
        (folder / "program.py").write_text(PRELUDE + program)
        self.port = port or free_port()
        self._log = folder / "log"
        command = [
            *(str(Path(sys.executable).with_name("headrace")), "run", "program.py"),
            *("--runner", runner, f"--ui={self.port}"),
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_for(lambda: bool(self._link()) or self._has_ended(), "the page's link")

    @property
    def link(self) -> str:
        """Of the page, with its token."""
        link = self._link()
        assert link, self._log.read_text()
        return link

    def kill(self) -> None:
        """End the process by SIGKILL, unless it has ended."""
        if not self._has_ended():
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Let the job take a last checkpoint and end."""
        if not self._has_ended():
            os.kill(self._process.pid, signal.SIGINT)
        self._process.wait(60)

    def _link(self) -> str:
        found = re.search(r"page: (http\S+)", self._log.read_text())
        return "" if found is None else found[1]

    def _has_ended(self) -> bool:
        return self._process.poll() is not None
