"""The thread of one subtask: owns the operators and runs their work, one piece at a time.

The thread answers through `post`, which only enqueues. An abandoned thread finishes the running
piece (user code cannot be interrupted), closes its operators and ends; later answers carry an old
epoch, and the worker drops them.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

from ..contract.errors import UserCodeError
from ..contract.execution import SubtaskId
from ..contract.operators import Restored
from ..operators.chain import Chain
from ..operators.work import (
    Work,
)
from ..worker.worker_events import WorkEnded, WorkFailed
from .call_times import CallTimes
from .failed_batches import Keep
from .failed_calls import work_failed
from .user_output import speaking

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SubtaskOpened:
    """The chain is open and restored."""

    epoch: int
    subtask: SubtaskId


@dataclass(frozen=True, slots=True)
class SubtaskOpenFailed:
    """The chain could not be opened. `error`: the exception raised."""

    epoch: int
    subtask: SubtaskId
    error: BaseException


ThreadEvent = SubtaskOpened | SubtaskOpenFailed | WorkEnded | WorkFailed


class SubtaskThread:
    """Runs one chain.

    Args:
        make: makes the chain; called in the thread.
        load: reads the state to restore, or returns None; called in the thread.
        keep: keeps the batch at which an operator failed.
        calls: told by the chain of its calls.
    """

    def __init__(
        self,
        epoch: int,
        subtask: SubtaskId,
        make: Callable[[], Chain],
        load: Callable[[], Mapping[str, Sequence[Restored]] | None],
        post: Callable[[ThreadEvent], None],
        keep: Keep = lambda operator, subtask, batch: "",
        calls: CallTimes | None = None,
    ) -> None:
        self._epoch = epoch
        self._subtask = subtask
        self._make = make
        self._load = load
        self._post = post
        self._keep = keep
        self.calls = CallTimes() if calls is None else calls
        self._works: queue.SimpleQueue[tuple[int, Work] | None] = queue.SimpleQueue()
        self._made: Chain | None = None
        self._chain: Chain | None = None
        self._thread = threading.Thread(target=self._run, name=f"subtask-{subtask}", daemon=True)

    @property
    def chain(self) -> Chain:
        """The open chain; its `commit` and `snapshot` belong to the owner thread."""
        assert self._chain is not None, f"{self._subtask} is not open"
        return self._chain

    def start(self) -> None:
        """Open the chain in the thread; ends in SubtaskOpened or SubtaskOpenFailed."""
        self._thread.start()

    def submit(self, number: int, work: Work) -> None:
        """Run a piece of work; ends in WorkEnded or WorkFailed."""
        self._works.put((number, work))

    def abandon(self) -> None:
        """End after the running piece."""
        self._works.put(None)

    @property
    def is_alive(self) -> bool:
        """The thread was started and has not ended."""
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        """Wait for the end."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        with speaking(self._speaker):
            self._work()

    def _speaker(self, frame: FrameType) -> str:
        operator = "" if self._made is None else self._made.operator_at(frame)
        return f"{operator or self._subtask}/{self._subtask.subtask}"

    def _work(self) -> None:
        chain: Chain | None = None
        try:
            chain = self._made = self._make()
            states = self._load()
            chain.open()
            self.calls.isolated = chain.isolated
            self.calls.take()
            if states is not None:
                chain.restore(states)
        except BaseException as error:  # whatever it is, somebody waits for an answer
            self._post(SubtaskOpenFailed(self._epoch, self._subtask, error))
            if chain is not None:
                self._close(chain)
            return
        self._chain = chain
        self._post(SubtaskOpened(self._epoch, self._subtask))
        while (item := self._works.get()) is not None:
            self._post(self._attempt(chain, *item))
        self._close(chain)

    def _close(self, chain: Chain) -> None:
        """Close the chain. Nobody waits for it any more, so a failure is only told."""
        try:
            chain.close()
        except BaseException as error:
            _log.warning("subtask %s was not closed in order: %s", self._subtask, error)

    def _attempt(self, chain: Chain, number: int, work: Work) -> ThreadEvent:
        began_ns = time.perf_counter_ns()
        try:
            done = chain.run(number, work)
        except BaseException as error:  # SystemExit, CancelledError and the like included
            return work_failed(self._epoch, self._subtask, self._kept(chain, error))
        elapsed_ns = time.perf_counter_ns() - began_ns
        done = done._replace(elapsed_ns=elapsed_ns, spent=self.calls.take())
        return WorkEnded(self._epoch, self._subtask, done)

    def _kept(self, chain: Chain, error: BaseException) -> BaseException:
        """Keep the failed batch, and say so in the error."""
        if not isinstance(error, UserCodeError):
            return error
        batch = chain.failed_batch(error.operator)
        if batch is None:
            return error
        place = self._keep(error.operator, self._subtask.subtask, batch)
        return error.adding(f"; the batch at hand goes to {place}") if place else error


class Leaving:
    """Threads of earlier attempts, until they have ended."""

    def __init__(self) -> None:
        self._threads: list[SubtaskThread] = []

    def add(self, threads: Iterable[SubtaskThread]) -> None:
        """Let the threads end after their running pieces."""
        self._threads = [thread for thread in self._threads if thread.is_alive]
        for thread in threads:
            thread.abandon()
            self._threads.append(thread)

    def join(self, timeout_s: float) -> None:
        """Wait for all ends, but no longer: running user code cannot be interrupted."""
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.is_alive:  # one that was never started cannot be waited for
                thread.join(max(0.0, deadline_s - time.monotonic()))
