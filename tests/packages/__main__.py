"""`make matrix`: which Pythons and which PySparks an installed headrace runs on.

    python -m tests.packages [PYTHON ...]

For each Python that is here, from 3.11 to 3.14: the wheel in a fresh virtual environment, smoke
tests in an empty folder, then each PySpark from 4.0 to the newest in the same environment. A table
says what was found; 1: something failed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .wheel import ROOT, Environment, Failed, build

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PYSPARKS = ("4.0", "4.1", "4.2", "4.3")
FOLDER = ROOT / "target" / "matrix"


def interpreter_of(version: str) -> str | None:
    """An interpreter of a version: on the PATH, or one that pyenv has installed."""
    installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *reversed(installed)):
        if candidate is not None and _answers(candidate, version):
            return str(candidate)
    return None


def _answers(candidate: str | Path, version: str) -> bool:
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([candidate, "-c", ask], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


def rows_of(version: str, wheel: Path) -> Iterator[tuple[str, str, str, str]]:
    """Rows of one Python: (Python, PySpark, size installed, what was found)."""
    interpreter = interpreter_of(version)
    if interpreter is None:
        yield version, "-", "-", "not here"
        return
    environment = Environment(interpreter, FOLDER / f"python{version}")
    yield version, "-", *_tried(environment, str(wheel), "core")
    for spark in PYSPARKS:
        yield version, spark, *_tried(environment, f"pyspark=={spark}.*", "spark")


def _tried(environment: Environment, requirement: str, suite: str) -> tuple[str, str]:
    began = time.monotonic()
    # PySpark 4.0 and 4.1 want pandas for DataFrames, as README says.
    more = ["pandas>=2.2,<3"] if suite == "spark" else []
    try:
        environment.install(requirement, *more)
        environment.smoke(suite, FOLDER / "run")
    except Failed as failed:
        print(f"{requirement}:\n{failed}", file=sys.stderr)
        return "-", f"FAILED: {str(failed).splitlines()[-1][:80]}"
    return f"{environment.megabytes} MB", f"ok, {time.monotonic() - began:.0f} s"


def main(versions: Sequence[str]) -> int:
    """Try all; print a row when it is known."""
    wheel = build(FOLDER / "wheel")
    print(f"{wheel.name}: {wheel.stat().st_size // 1000} kB")
    failures = 0
    print(f"{'Python':8} {'PySpark':8} {'installed':10} found", flush=True)
    for version in versions or PYTHONS:
        for row in rows_of(version, wheel):
            print(f"{row[0]:8} {row[1]:8} {row[2]:>10} {row[3]}", flush=True)
            failures += "FAILED" in row[3]
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
