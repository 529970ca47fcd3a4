"""A handle in a notebook: IPython is played by a module of its name."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headrace.engine.contract.errors import JobFailed
from headrace.engine.contract.outcomes import JobResult
from headrace.engine.observation.observed import Observation
from headrace.engine.session.notebook import show
from tests.engine.cli.looks import observed

WAIT_S = 60.0


class Shown:
    """A job that ends after two looks, as its notebook shows it."""

    name = "orders"

    def __init__(self, *, fails: bool = False) -> None:
        self.displays = 0
        self.updates = 0
        self._fails = fails

    def observe(self) -> Observation:
        return observed()

    def wait(self, timeout_s: float | None = None) -> JobResult:
        if self.updates < 2:
            raise TimeoutError
        if self._fails:
            raise JobFailed("it failed")
        return JobResult("orders")

    def __str__(self) -> str:
        return "as text"

    def display(self, shown: object, *, display_id: bool) -> Shown:
        assert shown is self
        assert display_id
        self.displays += 1
        return self

    def update(self, shown: object) -> None:
        assert shown is self
        self.updates += 1


def serve(monkeypatch: pytest.MonkeyPatch, shell: Any, display: Any) -> None:
    ipython, module = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.__dict__["get_ipython"] = lambda: shell
    module.__dict__["display"] = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", module)


@pytest.mark.parametrize("fails", [False, True])
def test_a_notebook_is_refreshed_until_the_job_has_ended_and_once_more(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Shown(fails=fails)
    serve(monkeypatch, SimpleNamespace(kernel=None), job.display)
    thread = show(job, look_every_s=0.0)
    assert thread is not None
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert (job.displays, job.updates) == (1, 3)


@pytest.mark.parametrize("shell", [None, SimpleNamespace()])
def test_elsewhere_the_standing_is_printed_once(
    shell: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Shown()
    serve(monkeypatch, shell, job.display)
    assert show(job) is None
    assert (capsys.readouterr().out, job.displays) == ("as text\n", 0)
