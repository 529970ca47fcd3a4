"""The local disk of a simulated worker for spilled records: the product's files, in virtual time.

Orders are carried out one after the other. Writes fail for a while, and one write in so many is
torn: the run reads back as damaged, which must end the attempt. Any other run is there, and whole,
for as long as it is asked for.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from headrace.channels.spilled import RunFile
from headrace.inflight.spill import DeleteRun, ReadRun, SpillOrder, WriteRun

from ...contract.execution import SubtaskId
from ...storage.spill_files import CorruptRun, SpillFiles
from ..scheduler import MICROSECOND_NS, MILLISECOND_NS
from ..watch import Violation
from .environment import Environment, Process

_WORDS = {WriteRun: "runs written", ReadRun: "runs read", DeleteRun: "runs deleted"}


class SimulatedSpillFiles(SpillFiles):
    """The runs of one attempt of `process`."""

    def __init__(self, env: Environment, process: Process) -> None:
        super().__init__(env.disk.folder)
        self._env = env
        self._process = process
        self._waiting: deque[Callable[[], None]] = deque()
        self._full_until_ns = 0
        self._torn: set[tuple[SubtaskId, int]] = set()

    def use(self, order: SpillOrder, carry_out: Callable[[], None]) -> None:
        """Carry out an order behind the earlier ones, after a delay."""

        def now() -> None:
            if self._process.alive:
                self._env.coverage.count(f"spilled {_WORDS[type(order)]}")
                carry_out()
                self._waiting.popleft()
                self._go_on()

        self._waiting.append(now)
        if len(self._waiting) == 1:
            self._go_on()

    def write(self, subtask: SubtaskId, order: WriteRun) -> RunFile:
        """See `SpillFiles`."""
        faults, coverage = self._env.faults, self._env.coverage
        now_ns = self._env.scheduler.now_ns
        if now_ns >= self._full_until_ns and faults.happens(faults.profile.spill_full):
            self._full_until_ns = now_ns + self._env.scheduler.delay_ns(0, 100 * MILLISECOND_NS)
        if now_ns < self._full_until_ns:
            coverage.count("spilled runs not written")
            raise OSError(28, "No space left on device")
        file = super().write(subtask, order)
        if faults.happens(faults.profile.spill_torn):
            coverage.count("spilled runs torn")
            self._torn.add((subtask, file.number))
            path = self._path(subtask, file.number)
            os.truncate(path, os.path.getsize(path) // 2)
        return file

    def content(self, subtask: SubtaskId, file: RunFile) -> bytes | memoryview:
        """See `SpillFiles`. Raises Violation when a run has gone that is still needed."""
        try:
            return super().content(subtask, file)
        except CorruptRun as error:
            if (subtask, file.number) in self._torn:
                raise
            raise Violation(f"run {file.number} of {subtask} is not as written") from error

    def _go_on(self) -> None:
        if self._waiting:
            delay_ns = self._env.scheduler.delay_ns(20 * MICROSECOND_NS, 3 * MILLISECOND_NS)
            self._env.scheduler.after(delay_ns, self._waiting[0])
