"""Ctrl-C, or a notebook's stop button, in a program that waits for its job.

The first interrupt stops the job with a last checkpoint, the second one at once; then the wait
raises KeyboardInterrupt, so a loop or a notebook around the job ends too. `headrace run` counts
signals by itself (`cli/follow.py`).
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from ..contract.errors import JobFailed
from ..contract.outcomes import JobResult


class Interrupted(Protocol):
    """The job to end: a `JobHandle`."""

    @property
    def name(self) -> str: ...
    def stop(self) -> None: ...
    def cancel(self) -> None: ...


@contextlib.contextmanager
def plain_interrupts() -> Iterator[None]:
    """Have Ctrl-C raise KeyboardInterrupt and no more.

    PySpark's handler cancels all jobs of Spark first, and with them the workers that a last
    checkpoint needs.
    """
    before = signal.getsignal(signal.SIGINT)
    is_sparks = getattr(before, "__module__", None) == "pyspark.core.context"
    if not is_sparks or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_interrupted(
    job: Interrupted, await_end: Callable[[], JobResult], *, durable: bool, ends: bool
) -> None:
    """End a job whose wait was interrupted, and say on standard error how.

    Args:
        await_end: waits for the end without a limit; raises JobFailed.
        durable: the job keeps checkpoints.
        ends: the job had been asked to end before, so it now ends at once.
    """
    name = f"job {job.name!r}"
    try:
        result = _ended(job, await_end, name, durable=durable, ends=ends)
    except JobFailed as failure:
        _say(str(failure))
        return
    if not durable:
        return
    if result.outcome == "finished":
        _say(f"{name} had finished")
    elif result.last_checkpoint is None:
        _say(f"{name} has stopped, and no checkpoint of this run is complete")
    else:
        _say(f"{name} has stopped; the next run goes on from chk-{result.last_checkpoint}")


def _ended(
    job: Interrupted, await_end: Callable[[], JobResult], name: str, *, durable: bool, ends: bool
) -> JobResult:
    if durable and not ends:
        _say(f"interrupted: {name} takes a last checkpoint, then stops; again to stop at once")
        job.stop()
        with contextlib.suppress(KeyboardInterrupt):
            return await_end()
    why = "" if durable else " keeps no checkpoints, so it"
    _say(f"interrupted: {name}{why} stops at once")
    job.cancel()
    return await_end()


def _say(sentence: str) -> None:
    # Standard error may be closed; the job ends all the same.
    with contextlib.suppress(OSError, ValueError):
        print(f"headrace: {sentence}", file=sys.stderr, flush=True)
