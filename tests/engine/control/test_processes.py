"""A job in another process: it is asked, answers, and its process ends with its answer sent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from headrace.engine.control import messages as m
from headrace.engine.control.client import ask
from headrace.engine.control.folder import running

WAIT_S = 120.0
_JOB = """
import headrace as hr
if __name__ == "__main__":
    numbers = hr.read.sequence(None, name="numbers", rate=1000)
    checkpoints = hr.Checkpoints("checkpoints", interval="100ms")
    out = numbers.write.blackhole(name="out")
    hr.Job("endless", out, parallelism=1, checkpoints=checkpoints).run("threads")
"""


def test_a_job_in_another_process_takes_a_savepoint_is_rescaled_and_stops(tmp_path: Path) -> None:
    folder = tmp_path / "headrace"
    with subprocess.Popen(
        [sys.executable, "-c", _JOB],
        cwd=tmp_path,
        env=os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)},
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        deadline_s = time.monotonic() + WAIT_S
        while not (folder.exists() and running(folder)):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline_s, "the job did not start"
            time.sleep(0.02)
        address = str(folder)
        saved = ask("endless", m.Savepoint(None, None), address=address)
        assert isinstance(saved, m.SavepointDone)
        assert (tmp_path / saved.path / "metadata").exists()
        rescaled = ask("endless", m.Rescale(2), address=address)
        assert isinstance(rescaled, m.RescaleDone)
        assert rescaled.parallelism == 2
        assert isinstance(ask("endless", m.Stop(False), address=address), m.StopDone)
        assert process.wait(WAIT_S) == 0, process.stderr.read()
    assert running(folder) == []
