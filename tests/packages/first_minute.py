"""`make first-minute`: a newcomer's first minute, timed.

    python -m tests.packages.first_minute

A fresh virtual environment, `pip install` of the wheel, the word count of README.md by threads, and
its output: no clone, no PySpark, no Java. Building the wheel does not count, since a newcomer finds
it built; what pip downloads depends on the network, and on pip's cache.
"""

from __future__ import annotations

import os
import re
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .wheel import ROOT, Environment, build, run

#: What a newcomer should wait for at most, in seconds.
BAR_S = 60.0
FOLDER = ROOT / "target" / "first-minute"


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long a step took, and the processor time of its processes."""
    began, before = time.monotonic(), _processor_s()
    yield
    print(
        f"{what:32} {time.monotonic() - began:5.1f} s, processor {_processor_s() - before:5.1f} s"
    )


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def program() -> str:
    """The word count, as README.md has it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    programs: list[str] = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return next(code for code in programs if '"words"' in code)


def main() -> int:
    """Go through the minute. Returns: 1 if it was longer."""
    wheel = build(FOLDER / "wheel")
    began = time.monotonic()
    with timed("virtual environment"):
        environment = Environment(sys.executable, FOLDER / "venv")
    with timed("pip install"):
        environment.install(str(wheel))
    folder = FOLDER / "words"
    folder.mkdir(exist_ok=True)
    (folder / "words.py").write_text(program(), encoding="utf-8")
    path = {"PATH": os.fspath(environment.python.parent)}
    with timed("headrace run words.py"):
        command = environment.python.with_name("headrace")
        run(
            command,
            "run",
            "words.py",
            "--runner",
            "threads",
            "--fresh=replace",
            cwd=folder,
            env=path,
        )
    read = "import pyarrow.dataset as ds; print(ds.dataset('counts').to_table().num_rows, 'words')"
    with timed("reading its output"):
        print(run(environment.python, "-c", read, cwd=folder, env=path).strip())
    whole = time.monotonic() - began
    print(f"{'all':32} {whole:5.1f} s; installed: {environment.megabytes} MB")
    return 0 if whole < BAR_S else 1


if __name__ == "__main__":
    sys.exit(main())
