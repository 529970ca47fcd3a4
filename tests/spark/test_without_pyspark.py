"""`threads` and `processes` do without PySpark; what needs it says how to install it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: Before a program: no module of PySpark can be imported, here or in a child.
_BLOCKED = """
import sys

class NoSpark:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoSpark())
"""


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run a program from a file; its worker processes import `sitecustomize` from its folder."""
    (folder / "sitecustomize.py").write_text(_BLOCKED)
    program = folder / "program.py"
    program.write_text(_BLOCKED + code)
    return subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_a_job_runs_where_pyspark_is_missing(tmp_path: Path, runner: str) -> None:
    done = run(
        tmp_path,
        f"""
import headrace as hr

def seen(batch):
    import importlib.util
    try:
        found = importlib.util.find_spec("pyspark") is not None
    except ModuleNotFoundError:
        found = False
    return {{"found": [found] * batch.num_rows}}

if __name__ == "__main__":
    import pyarrow as pa
    schema = pa.schema([("found", pa.bool_())])
    rows = hr.read.sequence(100, name="in").map_batches(seen, schema=schema, name="seen")
    counted = rows.key_by("found").aggregate(n=hr.count(), emit="final", name="n")
    job = hr.Job("tiny", counted.write.collect(name="out"), parallelism=2, checkpoints="ckpt")
    print(job.run("{runner}").collected["out"].to_pylist())
""",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[{'found': False, 'n': 100}]"


def test_the_runner_spark_says_how_to_install_it(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
import headrace as hr

job = hr.Job("tiny", hr.read.sequence(1, name="in").write.blackhole(name="out"))
try:
    job.run()
except hr.UserError as error:
    print(error)
""",
    )
    assert "pip install 'headrace[spark]'" in done.stdout, done.stderr
