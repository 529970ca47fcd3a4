"""Jars that Maven fetches into `.services`, once, and Java to run them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from headrace.engine.contract.errors import UserError
from headrace.engine.spark.java import find_java

from .process import Unavailable, run


def fetch(pom: Path, folder: Path, what: str) -> None:
    """Let Maven fetch what a project depends on, unless the folder is complete.

    Raises: Unavailable.
    """
    find()
    if (folder / "complete").exists():
        return
    goal = ("dependency:copy-dependencies", f"-DoutputDirectory={folder}")
    command = ["mvn", "-q", "-B", "-f", str(pom), *goal, "-DincludeScope=runtime"]
    try:
        run(command, why=f"Maven cannot fetch {what}")
    except FileNotFoundError:
        raise Unavailable(f"{what} is fetched by Maven, and there is no `mvn` here") from None
    (folder / "complete").touch()


def find() -> str:
    """Return the path of Java. Raises: Unavailable."""
    try:
        return str(find_java().home / "bin" / "java")
    except UserError as error:
        raise Unavailable(f"the service needs Java: {error}") from None


def java(folder: Path) -> list[str]:
    """Return the command of Java over the jars of a folder."""
    # Without the second compiler: it takes the cores from the tests for longer than they run.
    quick = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return [find(), *quick, "-cp", f"{folder}/*"]


def run_tool(folder: Path, *words: str) -> str:
    """Run a program over the jars of a folder; return its standard output."""
    done = subprocess.run(
        [*java(folder), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.stdout[-1000:]}{done.stderr[-1000:]}"
    return done.stdout
