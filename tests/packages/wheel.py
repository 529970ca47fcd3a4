"""A wheel of what the clone tracks, in a virtual environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SMOKE = Path(__file__).with_name("smoke.py")
#: One smoke test of a loaded machine.
PATIENCE_S = 600


class Failed(Exception):
    """A command failed; its last words."""


def run(*words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """Run a command to its end; return what it printed. Raises: Failed."""
    done = subprocess.run(
        words,
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    if done.returncode:
        raise Failed("\n".join(done.stdout.strip().splitlines()[-15:]))
    return done.stdout


def build(folder: Path) -> Path:
    """Build the wheel of all tracked files, from a copy: a `build/` of the clone may hold modules
    that are gone. Returns: the wheel. Raises: Failed.
    """
    copy = folder / "source"
    shutil.rmtree(folder, ignore_errors=True)
    for name in run("git", "ls-files", "-z", cwd=ROOT).split("\0"):
        if name and (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, copy)
    (wheel,) = folder.glob("headrace-*.whl")
    return wheel


class Environment:
    """A virtual environment of some Python.

    Attributes:
        python: its interpreter.
    """

    def __init__(self, interpreter: str | Path, folder: Path) -> None:
        """Make it anew. Raises: Failed."""
        shutil.rmtree(folder, ignore_errors=True)
        run(interpreter, "-m", "venv", folder)
        self._folder = folder
        self.python = folder / "bin" / "python"

    def install(self, *requirements: str) -> None:
        """Raises: Failed."""
        run(self.python, "-m", "pip", "install", "--quiet", *requirements)

    @property
    def megabytes(self) -> int:
        """Size of everything that is installed, pip and setuptools left out."""
        (packages,) = self._folder.glob("lib/python*/site-packages")
        tools = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
        files = (
            path
            for path in packages.rglob("*")
            if path.is_file() and not path.relative_to(packages).parts[0].startswith(tools)
        )
        return sum(path.stat().st_size for path in files) // 10**6

    def smoke(self, suite: str, folder: Path) -> str:
        """Run a suite of smoke.py in an empty folder; return what it printed. Raises: Failed."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(SMOKE, folder / "smoke.py")
        kept = {name: text for name, text in os.environ.items() if "PYTHON" not in name}
        return run(self.python, "smoke.py", suite, cwd=folder, env=kept)
