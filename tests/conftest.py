"""For all tests: Hypothesis without deadlines, `--long`, `--services`, `--browser`, and which
process runs what, and when.

Tests run in several processes (`make test`). A process takes whole files, whose fixtures its tests
share. Tests of an embedded Spark share a process, which can have only one session at a time. Long
tests are taken one by one, and first: a long one at the end would leave the other cores idle.

Temporary files lie in memory where there is room, unless TMPDIR says otherwise: databases and
checkpoints flush thousands of small files, and a test that waits for the disk shows nothing more.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from headrace.engine.spark.standalone import QUICK_JAVA

from .services import fixtures

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")

#: {folder: the mark of all its tests}
_MARKS = {
    Path(__file__).with_name("faults"): "kills",
    Path(__file__).with_name("simulation"): "simulated",
}
_MEMORY = Path("/dev/shm")
#: Room that the tests need at most, with those of other processes.
_MEMORY_BYTES_MIN = 4 << 30

#: Tests with these marks are taken one by one, and begun after those of Spark, before all others.
_LONG = ("slow", "mutant", "kills")


#: Tests with these marks need what a machine may lack, and run only where the switch of that name
#: asks for them.
_ELSEWHERE = ("services", "browser")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switches of `make faults LONG=1`, `make test-services` and others."""
    parser.addoption("--long", action="store_true", help="long campaigns instead of short ones")
    parser.addoption("--services", action="store_true", help="tests against real services, only")
    parser.addoption("--browser", action="store_true", help="tests in a real browser, only")


def pytest_configure(config: pytest.Config) -> None:
    """Put temporary files into memory, and keep Spark quick; for child processes too. Give the
    fixtures of services.
    """
    config.pluginmanager.register(fixtures)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_JAVA)
    if "TMPDIR" not in os.environ and _has_room(_MEMORY):
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None


def _has_room(folder: Path) -> bool:
    return folder.is_dir() and shutil.disk_usage(folder).free >= _MEMORY_BYTES_MIN


@pytest.fixture
def long(request: pytest.FixtureRequest) -> bool:
    """Whether long campaigns are wanted."""
    return bool(request.config.getoption("--long"))


@pytest.fixture
def only_long() -> None:
    """For tests that take long, or vary another test that is enough every day."""


# First, because pytest-xdist reads the groups in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of some folders; leave out tests that need services or a browser, or all
    others; skip long campaigns; in each of several processes, group the tests, the long ones first.
    """
    for item in items:
        for folder, mark in _MARKS.items():
            if folder in item.path.parents:
                item.add_marker(mark)
    _select(config, items)
    if not config.getoption("--long"):
        for item in items:
            # Not in the fixture, before which a module's Spark session would be started.
            if "only_long" in _fixtures(item):
                item.add_marker(pytest.mark.skip(reason="long: run `make faults LONG=1`"))
    if not hasattr(config, "workerinput"):
        return
    for item in items:
        group = _group_of(item)
        if group and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_turn)


def _select(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = {mark for mark in _ELSEWHERE if config.getoption(f"--{mark}")}
    others = [
        item for item in items if {m for m in _ELSEWHERE if item.get_closest_marker(m)} != wanted
    ]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to go on without the groups, which pytest-xdist can lose without a word; let the
    garbage collector skip thousands of tests from now on.
    """
    if getattr(session.config.option, "loadgroup", False):
        lost = [item.nodeid for item in session.items if not _is_in_its_group(item)]
        assert not lost, f"pytest-xdist ignores groups, that of {lost[0]} too: see pyproject.toml"
    gc.collect()
    gc.freeze()


def _is_in_its_group(item: pytest.Item) -> bool:
    mark = item.get_closest_marker("xdist_group")
    return mark is None or item.nodeid.endswith(f"@{mark.args[0]}")


def _group_of(item: pytest.Item) -> str:
    """What shares a process; empty: the test is taken alone."""
    if "spark" in _fixtures(item):
        return "spark"
    return "" if _is_long(item) else item.nodeid.partition("::")[0]


def _turn(item: pytest.Item) -> int:
    return 0 if item.get_closest_marker("spark") else 1 if _is_long(item) else 2


def _is_long(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(mark) for mark in _LONG)


def _fixtures(item: pytest.Item) -> Sequence[str]:
    return getattr(item, "fixturenames", ())
