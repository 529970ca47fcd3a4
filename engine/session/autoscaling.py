"""The driver of automatic rescaling: looks at the job, asks the policy, and rescales.

A failed rescale is a warning in the log; the job goes on as before (`JobHandle.rescale`), and the
policy pauses.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from ..contract.errors import HeadraceError, JobFailed
from ..contract.outcomes import JobResult, Rescaled
from ..coordinator.autoscale import Autoscaler, AutoscaleRules, Looked, RescaleEnded
from ..coordinator.rules import Phase
from ..drivers.status import Status

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0


class Scaled(Protocol):
    """The job to rescale: a `JobHandle`."""

    @property
    def name(self) -> str: ...
    @property
    def parallelism(self) -> int | None: ...
    def rescale(self, parallelism: int) -> Rescaled: ...
    def status(self) -> Status: ...
    def wait(self, timeout_s: float | None = None) -> JobResult: ...


def autoscale(
    handle: Scaled,
    rules: AutoscaleRules,
    started_at: int,
    *,
    look_every_s: float = _LOOK_EVERY_S,
    clock: Callable[[], int] = time.monotonic_ns,
) -> threading.Thread:
    """Watch the job in a thread until it ends. `started_at`: its parallelism at the start."""
    thread = threading.Thread(
        target=_watch,
        args=(handle, Autoscaler(rules), started_at, look_every_s, clock),
        name=f"autoscale-{handle.name}",
        daemon=True,
    )
    thread.start()
    return thread


def _watch(
    handle: Scaled,
    policy: Autoscaler,
    started_at: int,
    look_every_s: float,
    clock: Callable[[], int],
) -> None:
    while True:
        try:
            handle.wait(look_every_s)
            return
        except TimeoutError:
            pass
        except JobFailed:
            return
        status = handle.status()
        if status.phase is not Phase.RUNNING:
            continue
        parallelism = handle.parallelism or started_at
        look = Looked(status.epoch, parallelism, tuple(status.numbers.values()))
        wanted = policy.step(look, clock())
        if wanted is not None:
            try:
                handle.rescale(wanted)
            except HeadraceError as reason:
                _log.warning("job %r was not rescaled by itself: %s", handle.name, reason)
            policy.step(RescaleEnded(), clock())
