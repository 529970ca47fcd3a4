"""The fixtures of `headrace.pytest_plugin`, in a pytest of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import pyarrow as pa
import pytest
import headrace as hr

SCHEMA = pa.schema([("key", pa.string()), ("n", pa.int64())])


class Counts(hr.StatefulProcessor):
    n = hr.value_state(pa.int64(), default=0)

    def process(self, key, row):
        self.n.value += 1
        yield {"key": key, "n": self.n.value}


rows = hr.read.batches([pa.RecordBatch.from_pylist([{"key": "a"}] * 30)], name="rows")
out = rows.key_by("key").process(Counts, schema=SCHEMA, name="counts")
job = hr.Job("counts", out.write.collect(name="out"))


def test_harness(headrace_harness):
    assert headrace_harness(Counts).process("a", {"x": 1}) == [{"key": "a", "n": 1}]


def test_simulated(headrace_simulated):
    run = headrace_simulated(job, seed=3)
    run.until()
    assert len(run.output("out")) == 30


def test_simulate(headrace_simulate):
    assert headrace_simulate(job).seeds == 2
    assert headrace_simulate(job, seeds=1).seeds == 1
"""


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(TESTS, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    options = ["-q", "-p", "no:cacheprovider", "-p", "headrace.pytest_plugin"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *words],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_fixtures_run_a_processor_and_jobs(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--headrace-seeds=5:7")
    assert "3 passed" in done.stdout, done.stdout


def test_strange_seeds_are_refused(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, "--headrace-seeds=many", "-k", "test_simulate")
    assert "--headrace-seeds takes a number, or FIRST:LAST, not 'many'" in done.stdout


def test_the_plugin_alone_imports_neither_arrow_nor_the_engine() -> None:
    code = (
        "import sys, headrace.pytest_plugin;"
        "print([m for m in sys.modules if m == 'pyarrow' or m.startswith('headrace.engine')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
