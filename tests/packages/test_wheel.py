"""The wheel holds the packages, and runs outside the clone."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from tests.packages.__main__ import interpreter_of
from tests.packages.first_minute import program
from tests.packages.wheel import ROOT, Environment, Failed, build, run

#: Of the core, without extras. It was 296 MB on Python 3.11: pyarrow 178, NumPy 76, RocksDB 11.
CORE_MB_MAX = 350


@pytest.mark.usefixtures("only_long")
@pytest.mark.slow
def test_the_wheel_runs_outside_the_clone(tmp_path: Path) -> None:
    wheel = build(tmp_path / "wheel")
    tracked = run(
        "git", "ls-files", "bench", "channels", "engine", "inflight", "recovery", cwd=ROOT
    )
    modules = {f"headrace/{name}" for name in tracked.splitlines() if name.endswith(".py")}
    held = set(zipfile.ZipFile(wheel).namelist())
    assert modules - held == set(), "list the folder in `packages` of pyproject.toml"
    assert "headrace/py.typed" in held
    assert not [name for name in held if name.startswith(("tests", "docs"))]
    environment = Environment(sys.executable, tmp_path / "venv")
    environment.install(str(wheel))
    assert environment.megabytes < CORE_MB_MAX
    for missing in ("pyspark", "pandas"):
        with pytest.raises(Failed, match=missing):
            run(environment.python, "-c", f"import {missing}")
    said = environment.smoke("core", tmp_path / "run")
    assert said.splitlines() == [
        "state in threads",
        "a rescale of processes",
        "state on disk",
        "the command",
    ]


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(Failed, match="no such thing"):
        run(sys.executable, "-c", "raise SystemExit('no such thing')")


def test_interpreters_are_asked_for_their_version() -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert interpreter_of(version) is not None
    assert interpreter_of("2.0") is None


def test_the_newcomers_program_is_the_word_count_of_the_readme() -> None:
    assert 'hr.Job(\n    "words"' in program()
