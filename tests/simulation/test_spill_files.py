"""The simulated local disk: orders keep their order, and a torn run is found when it is read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.channels.buffer import Buffer, ChannelId
from headrace.engine.contract.execution import SubtaskId
from headrace.engine.simulation.campaign.faults import FaultProfile, Faults
from headrace.engine.simulation.campaign.local_disk import LocalDisk
from headrace.engine.simulation.campaign.spill_files import SimulatedSpillFiles
from headrace.engine.simulation.coverage import Coverage
from headrace.engine.simulation.scheduler import SECOND_NS, Scheduler
from headrace.engine.storage.spill_files import CorruptRun
from headrace.inflight.spill import WriteRun

HERE = SubtaskId(1, 0)
ORDER = WriteRun(0, ChannelId(0, 0, 0), (Buffer.of(0, pa.record_batch({"x": [1, 2, 3]})),))


class Disk:
    """The disk of a process in an empty world."""

    def __init__(self, **faults: float) -> None:
        self.scheduler = Scheduler(3)
        coverage = Coverage()
        profile = FaultProfile(until_ns=SECOND_NS, **faults)  # type: ignore[arg-type]  # odds
        self.local = LocalDisk(self.scheduler.rng, coverage)
        env: Any = SimpleNamespace(
            scheduler=self.scheduler,
            coverage=coverage,
            faults=Faults(profile, self.scheduler, coverage),
            disk=self.local,
        )
        process: Any = SimpleNamespace(alive=True)
        self.files = SimulatedSpillFiles(env, process)


def test_orders_are_carried_out_one_after_the_other() -> None:
    disk, done = Disk(), list[int]()
    for number in range(5):
        disk.files.use(ORDER, lambda number=number: done.append(number))  # type: ignore[misc]
    while disk.scheduler.step():
        pass
    assert done == [0, 1, 2, 3, 4]


def test_a_torn_run_is_found_when_it_is_read() -> None:
    disk = Disk(spill_torn=1.0)
    file = disk.files.write(HERE, ORDER)
    with pytest.raises(CorruptRun, match="bytes, found"):
        disk.files.read(HERE, file)
    disk.local.close()


def test_a_full_disk_takes_no_run() -> None:
    disk = Disk(spill_full=1.0)
    with pytest.raises(OSError, match="No space left"):
        disk.files.write(HERE, ORDER)
    disk.local.close()
