"""The code blocks of a page, run in order in an empty folder.

The block's language says what becomes of it:

| Block | |
|---|---|
| `python`, `toml`, ... with `title="NAME"` | is saved as NAME |
| `python` | runs; neighbours share their names |
| `sh` | runs in the page's shell, which ends at the first command that fails |
| `text title="Output"` | is what the block before it printed |
| `text`, `console` and others | is only read |

A comment of HTML that begins with a line `<!-- python` is a block that readers do not see.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Pages may import the examples.
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

_BLOCK = re.compile(
    r"^```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<code>.*?)^```$"
    r"|^<!-- python\n(?P<hidden>.*?)^-->$",
    re.DOTALL | re.MULTILINE,
)
#: What stands between the outputs of two blocks.
_MARK = "@@ end of block @@"


@dataclass(frozen=True, slots=True)
class Block:
    """A code block: language, title ("": none) and code."""

    language: str
    title: str
    code: str

    @property
    def is_saved(self) -> bool:
        return bool(self.title) and self.title != "Output"

    @property
    def runs(self) -> bool:
        return self.language in ("python", "sh") and not self.is_saved


def blocks_of(text: str) -> list[Block]:
    """All blocks of a page, hidden ones too."""
    return [
        Block(found["language"] or "python", found["title"] or "", found["code"] or found["hidden"])
        for found in _BLOCK.finditer(text)
    ]


def outputs_of(blocks: list[Block]) -> Iterator[tuple[Block, str]]:
    """Yield (block that runs, the output that the page states), where it states one."""
    for block, following in itertools.pairwise(blocks):
        if block.runs and following.title == "Output":
            yield block, following.code


def run_page(text: str, folder: Path, environment: dict[str, str]) -> list[tuple[str, str]]:
    """Run a page in `folder`.

    Returns: [(stated output, output)]. Raises: AssertionError with what a failing block said.
    """
    blocks = blocks_of(text)
    for block in blocks:
        if block.is_saved:
            (folder / block.title).write_text(block.code, encoding="utf-8")
    running = [block for block in blocks if block.runs]
    stated = dict(outputs_of(blocks))
    script = "\n".join(_steps(running, folder))
    path = str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
    kept = {name: value for name, value in os.environ.items() if "HEADRACE" not in name}
    # Where running jobs tell of themselves: others of this machine may have the page's names.
    modules = os.pathsep.join([str(folder), str(EXAMPLES)])
    kept |= {"PATH": path, "PYTHONPATH": modules, "XDG_RUNTIME_DIR": str(folder.parent)}
    done = subprocess.run(
        ["bash", "-e", "-u", "-o", "pipefail", "-c", script],
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    printed = done.stdout.split(f"{_MARK}\n")
    return [
        (stated[block], output)
        for block, output in zip(running, printed, strict=False)
        if block in stated
    ]


def _steps(running: list[Block], folder: Path) -> Iterator[str]:
    """The blocks as lines of one shell, so that `$!` is known to later ones."""
    python: list[str] = []
    for at, block in enumerate([*running, None]):
        if block is not None and block.language == "python":
            python.append(block.code)
            continue
        if python:
            program = folder.parent / f"{folder.name}-{at}.py"
            program.write_text(f"print({_MARK!r}, flush=True)\n".join(python), encoding="utf-8")
            yield f"{shlex.quote(sys.executable)} {shlex.quote(str(program))}"
            yield f"echo '{_MARK}'"
            python.clear()
        if block is not None:
            yield block.code
            yield f"echo '{_MARK}'"
