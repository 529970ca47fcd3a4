"""Fixtures for pytest: `headrace_harness`, `headrace_simulated` and `headrace_simulate`.

pytest finds this module by itself where headrace is installed. It imports nothing of headrace until
a test asks for a fixture, so that other tests need not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .engine.session.job import Job
    from .engine.testing.harness import Harness
    from .engine.testing.simulate import SimulationReport
    from .engine.testing.simulated import Simulated

#: Of `headrace_simulate`, in each test; a thorough run takes `--headrace-seeds=1000`.
_SEEDS = "100"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--headrace-seeds`."""
    group = parser.getgroup("headrace")
    group.addoption(
        "--headrace-seeds",
        default=_SEEDS,
        metavar="N",
        help=(
            "runs of each job that a test gives to headrace_simulate; FIRST:LAST runs these seeds"
            f" (LAST not run). Default: {_SEEDS}"
        ),
    )


@pytest.fixture
def headrace_harness() -> type[Harness]:
    """Make a harness of one processor: `headrace_harness(Rules)`, as `hr.testing.Harness`."""
    from .testing import Harness

    return Harness


@pytest.fixture
def headrace_simulated() -> Iterator[Callable[..., Simulated]]:
    """Start a job in virtual time: `run = headrace_simulated(job, seed=7)`.

    Takes what `hr.testing.Simulated` takes; the run ends with the test.
    """
    from .testing import Simulated

    with ExitStack() as runs:

        def start(job: Job, **options: Any) -> Simulated:
            return runs.enter_context(Simulated(job, **options))

        yield start


@pytest.fixture
def headrace_simulate(request: pytest.FixtureRequest) -> Callable[..., SimulationReport]:
    """Run a job under faults: `headrace_simulate(job)`, with the seeds of `--headrace-seeds`.

    Takes what `hr.testing.simulate` takes.
    """
    from .testing import simulate

    seeds = _seeds(request.config.getoption("--headrace-seeds"))

    def run(job: Job | Callable[[], Job], **options: Any) -> SimulationReport:
        return simulate(job, **{"seeds": seeds, **options})

    return run


def _seeds(given: str) -> range:
    first, colon, last = given.partition(":")
    try:
        return range(int(first), int(last)) if colon else range(int(given))
    except ValueError:
        raise pytest.UsageError(
            f"--headrace-seeds takes a number, or FIRST:LAST, not {given!r}"
        ) from None
