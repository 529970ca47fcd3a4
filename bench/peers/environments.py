"""Environments of the peers, made on first use below the user's cache folder: a virtual environment
for Python ones, a folder of jars for Java ones.

pip and Maven fetch from whatever registries they are configured with. A folder is named after what
is in it and becomes visible when it is complete, so an interrupted installation is begun anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

import xxhash

HERE = Path(__file__).parent
INSTALL_S_MAX = 1200


class Unavailable(Exception):
    """A peer cannot run here; the text says what to do."""


def cache_folder() -> Path:
    """Where environments live."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "headrace" / "peers"


def python_of(*requirements: str) -> list[str]:
    """Return the Python of an environment that holds pinned packages, such as `name==1.0`."""

    def install(folder: Path) -> None:
        venv.create(folder, with_pip=True)
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements]
        install_with(command, f"pip could not install {' and '.join(requirements)}")

    name = "-".join(requirements).replace("==", "-")
    return [str(made_once(name, install) / "bin" / "python")]


def java_of(project: str) -> list[str]:
    """Return the Java command of a Maven project of this folder, built."""
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is not on PATH: install a JDK of 17 or later, and Maven")

    def install(folder: Path) -> None:
        shutil.copytree(HERE / project, folder, dirs_exist_ok=True)
        goals = ["package", "dependency:copy-dependencies"]
        command = ["mvn", "--quiet", "--batch-mode", "--file", str(folder / "pom.xml"), *goals]
        install_with(command, f"Maven could not build {project}")

    sources = [source.read_bytes() for source in sorted((HERE / project).iterdir())]
    content = xxhash.xxh3_64_hexdigest(b"".join(sources))
    target = made_once(f"{project}-{content}", install) / "target"
    return ["java", "-cp", f"{target}/peer.jar{os.pathsep}{target}/dependency/*"]


def made_once(name: str, install: Callable[[Path], None]) -> Path:
    """Return the folder of a name, which `install` fills the first time."""
    folder = cache_folder() / name
    complete = folder / "complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        print(f"{name}: installing into {folder}", file=sys.stderr, flush=True)
        install(folder)
        complete.touch()
    return folder


def install_with(command: Sequence[str], failure: str) -> None:
    """Run an installer; raises Unavailable with the last line that it said."""
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=INSTALL_S_MAX
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{failure} within {INSTALL_S_MAX} s: try again") from None
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        raise Unavailable(f"{failure}: {said[0] if said else f'exit code {done.returncode}'}")
