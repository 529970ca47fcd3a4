"""Running the command in this process, with programs written for the test."""

import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.engine.cli.main import main

#: What programs of these tests begin with: two orders, and a job over a stream of them.
PRELUDE = """\
import headrace as hr, pyarrow as pa, pyarrow.compute as pc

rows = pa.record_batch({"customer": ["ann", "bob"], "amount": [50, 150]})
orders = hr.read.batches([rows], name="orders")

def job_of(stream, **options):
    return hr.Job("orders", stream.write.collect(name="out"), **{"parallelism": 2} | options)
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """Standard output as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def sentence(self) -> str:
        """The one sentence of an error, without the command's name; nothing of a traceback stands
        before or after it.
        """
        said = [line for line in self.err.splitlines() if line.startswith("headrace: ")]
        assert len(said) == 1, self.err
        assert "Traceback" not in self.err, self.err
        return said[0].removeprefix("headrace: ")


Command = Callable[..., Ended]
Write = Callable[..., Path]


@pytest.fixture
def headrace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Run `headrace WORDS...` in a folder of its own; what programs do to the interpreter is
    undone.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    modules = set(sys.modules)

    def run(*words: str) -> Ended:
        code = main(words)
        out, err = capfd.readouterr()
        return Ended(code, out, err)

    yield run
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def program(tmp_path: Path) -> Write:
    """Write a program: the prelude and the lines given."""

    def write(lines: str, name: str = "program.py") -> Path:
        path = tmp_path / name
        path.write_text(PRELUDE + textwrap.dedent(lines))
        return path

    return write
