"""Standard streams that are closed, full, or without a reader, and a machine without loopback; in a
shell, as users meet them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Write

_LINES = """\
def loud(row):
    print("working")
    return row

job = hr.Job("orders", orders.map(loud, name="loud").write.collect(name="out"), parallelism=1)
"""
_THREADS = "--runner threads "
_TALK = "job orders finished after"


@pytest.fixture
def shell(tmp_path: Path, program: Write) -> list[str]:
    """The start of a command line that runs a job in threads."""
    program(_LINES)
    return [
        sys.executable,
        "-c",
        "import headrace.engine.cli.main as m; raise SystemExit(m.main())",
    ]


def _run(shell: list[str], folder: Path, after: str) -> subprocess.CompletedProcess[str]:
    words = [*shell, "run", "program.py"]
    return subprocess.run(
        ["bash", "-c", f'"$@" {after}', "bash", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


_NO_LOOPBACK = ["unshare", "--map-root-user", "--net"]


@pytest.mark.skipif(
    subprocess.run([*_NO_LOOPBACK, "true"], capture_output=True, check=False).returncode != 0,
    reason="no network namespaces here",
)
@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_a_machine_that_does_not_reach_itself_is_one_sentence_and_code_4(
    shell: list[str], tmp_path: Path, runner: str
) -> None:
    done = _run([*_NO_LOOPBACK, *shell], tmp_path, f"--runner {runner}")
    assert done.returncode == 4, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "headrace: this machine cannot reach its own address 127.0.0.1: Network is unreachable;"
        " is its network interface up?"
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("after", ["2>&-", "2>/dev/full", "2>&- </dev/null <&-"])
def test_talk_that_no_stream_takes_is_lost_and_the_job_runs(
    shell: list[str], tmp_path: Path, after: str
) -> None:
    done = _run(shell, tmp_path, _THREADS + after)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 2


def test_results_nobody_wants_are_dropped(shell: list[str], tmp_path: Path) -> None:
    done = _run(shell, tmp_path, _THREADS + ">&-")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert _TALK in done.stderr


@pytest.mark.parametrize("form", ["", "--json"])
def test_a_full_standard_output_is_one_sentence_and_code_4(
    shell: list[str], tmp_path: Path, form: str
) -> None:
    done = _run(shell, tmp_path, f"{_THREADS} {form} >/dev/full")
    assert done.returncode == 4, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "headrace: standard output cannot be written: No space left on device"
    )
    assert "Traceback" not in done.stderr


def test_both_full_is_code_4_alone(shell: list[str], tmp_path: Path) -> None:
    assert _run(shell, tmp_path, _THREADS + ">/dev/full 2>/dev/full").returncode == 4


def test_a_reader_that_has_gone_ends_the_command_without_a_word(
    shell: list[str], tmp_path: Path
) -> None:
    # The reader is gone before the first result.
    done = _run(shell, tmp_path, _THREADS + "--json | true; exit ${PIPESTATUS[0]}")
    assert done.returncode == 141, done.stderr
    assert "Traceback" not in done.stderr
