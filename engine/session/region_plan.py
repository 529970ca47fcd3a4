"""A job of several regions, ready to run, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from headrace.recovery.edge_log_files import EdgeLogFiles
from headrace.recovery.store import Store

from ..contract.execution import ExecutionPlan
from ..contract.options import RunOptions
from ..contract.region import Region
from ..coordinator.region_choice import LogSeen, RegionSpec
from ..storage.checkpoint_storage import open_store


@dataclass(frozen=True)
class RegionPlan:
    """One region, ready to run.

    Attributes:
        plan: whose job is JOB.REGION.
        options: the region's.
        writes, reads: names of logs.
        reads_early: the logs among `reads` whose records are read at once.
        settings: as stated, or the default.
    """

    name: str
    plan: ExecutionPlan
    options: RunOptions
    writes: Sequence[str]
    reads: Sequence[str]
    reads_early: Sequence[str] = ()
    settings: Region = field(default_factory=lambda: Region(""))


@dataclass(frozen=True)
class RegionsPlan:
    """A job of several regions.

    Attributes:
        regions: those that write a log before those that read it.
        whole: all regions as one plan, to be shown.
    """

    job: str
    regions: Sequence[RegionPlan]
    whole: ExecutionPlan
    directory: str

    @cached_property
    def store(self) -> Store:
        """The checkpoint directory."""
        return open_store(self.directory)

    def files(self, log: str) -> EdgeLogFiles:
        """The files of a log."""
        return EdgeLogFiles(self.store, self.job, log)

    @cached_property
    def specs(self) -> Mapping[str, RegionSpec]:
        """The logs and sinks of each region."""
        return {
            r.name: RegionSpec(
                tuple(r.writes),
                tuple(r.reads),
                tuple(
                    o.name
                    for task in r.plan.tasks
                    for o in task.operators
                    if o.sink is not None and o.name not in r.writes
                ),
            )
            for r in self.regions
        }

    def read_early_by(self, region: str) -> list[str]:
        """Regions whose complete checkpoints those of a region wait for, writers first."""
        early = {log for each in self.regions if each.name == region for log in each.reads_early}
        direct = [each.name for each in self.regions if early.intersection(each.writes)]
        return list(dict.fromkeys(n for name in direct for n in (*self.read_early_by(name), name)))

    def logs(self) -> dict[str, LogSeen]:
        """Read the entries of all logs. Raises: StoreError, CorruptEntry."""
        return {
            log: LogSeen(list(self.files(log).newest_first())[::-1])
            for region in self.regions
            for log in region.writes
        }


def region_job(job: str, region: str) -> str:
    """Name the job that a region is in the checkpoint directory. Format, never change."""
    return f"{job}.{region}"
