"""Somebody looks at the job, whether anybody asks or not."""

from __future__ import annotations

from headrace.engine.contract.errors import JobFailed
from headrace.engine.contract.outcomes import JobResult
from headrace.engine.observation.observed import Observation
from headrace.engine.session.watching import watch
from tests.engine.cli.looks import observed

WAIT_S = 60.0


class Watched:
    """Ends after some looks, one of which fails."""

    name = "orders"

    def __init__(self, *, fails: bool) -> None:
        self.looks = 0
        self._fails = fails

    def observe(self) -> Observation:
        self.looks += 1
        if self.looks == 1:
            raise RuntimeError("a broken look")
        return observed()

    def wait(self, timeout_s: float | None = None) -> JobResult:
        if self.looks < 3:
            raise TimeoutError
        if self._fails:
            raise JobFailed("it failed")
        return JobResult("orders")


def test_a_job_is_looked_at_until_it_ends_however_it_ends() -> None:
    for fails in (False, True):
        job = Watched(fails=fails)
        thread = watch(job, look_every_s=0.0)
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert job.looks == 3
