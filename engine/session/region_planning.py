"""From a job's sinks to the plans of its regions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.recovery.edge_log_files import EdgeLogFiles

from ..connectors.edge_log import EdgeLogSink, EdgeLogSource
from ..contract.connectors import Sink, Source
from ..contract.errors import UserError
from ..contract.options import RunOptions
from ..contract.region import Region
from ..contract.suggestion import did_you_mean
from ..plan.builder import build_plan, joined_plan
from ..plan.graph import Node
from ..plan.regions import RegionGraph, split
from ..storage.checkpoint_storage import open_store
from .region_plan import RegionPlan, RegionsPlan, region_job
from .region_policies import check_policy, reaching_back

#: Stands for the checkpoint directory of a job that is only planned.
_NOWHERE = "memory://headrace-plan"


def plan_regions(
    job: str,
    sinks: Sequence[Node],
    settings: Sequence[Region],
    options: RunOptions,
    max_parallelism: int,
) -> RegionsPlan:
    """Lay out the regions of a job. Raises: UserError."""
    directory = _NOWHERE if options.checkpoints is None else options.checkpoints.directory
    store = open_store(directory)

    def ends(log: str, node: Node, region: str) -> tuple[Sink, Source]:
        files, early = EdgeLogFiles(store, job, log), node.reads_early
        bounded = region in by_name and by_name[region].is_batch
        source = EdgeLogSource(files, node.schema, early=early, bounded=bounded)
        return EdgeLogSink(files, early=early), source

    stated = {region.name: region for region in settings}
    # A region that is addressed from outside keeps the name by which its checkpoints are found.
    by_name = _laid_over(stated, options.regions)
    graphs = split(sinks, ends, tuple(stated))
    _check_names(job, options.regions, [graph.name for graph in graphs])
    regions = [
        _region_plan(job, graph, by_name.get(graph.name), options, max_parallelism)
        for graph in graphs
    ]
    for region in regions:
        check_policy(region)
    _check_waits(regions)
    regions = reaching_back(regions)
    whole = joined_plan(job, {region.name: region.plan for region in regions})
    return RegionsPlan(job, regions, whole, directory)


def _laid_over(
    stated: Mapping[str, Region], outside: Mapping[str, Mapping[str, Any]]
) -> dict[str, Region]:
    return dict(stated) | {
        name: replace(stated.get(name, Region(name)), **changes)
        for name, changes in outside.items()
    }


def _check_names(job: str, outside: Iterable[str], regions: Sequence[str]) -> None:
    for name in outside:
        if name not in regions:
            raise UserError(
                f"settings speak of region {name!r}, which job {job!r} does not have;"
                f" {did_you_mean(name, regions)}"
            )


def _region_plan(
    job: str,
    graph: RegionGraph,
    settings: Region | None,
    options: RunOptions,
    max_parallelism: int,
) -> RegionPlan:
    own = options if settings is None else settings.options(options)
    plan = build_plan(
        region_job(job, graph.name),
        graph.sinks,
        parallelism=own.parallelism,
        max_parallelism=max_parallelism,
    )
    settings = settings or Region(graph.name)
    return RegionPlan(graph.name, plan, own, graph.writes, graph.reads, graph.reads_early, settings)


def _check_waits(regions: Sequence[RegionPlan]) -> None:
    """Refuse checkpoints that wait for those of another region longer than they may take.

    Raises: UserError.
    """
    for reader in regions:
        for writer in regions:
            waits = reader.options.checkpoints, writer.options.checkpoints
            logs = set(reader.reads_early).intersection(writer.writes)
            if not logs or waits[0] is None or waits[1] is None:
                continue
            timeout, interval = waits[0], waits[1]
            if interval.interval_ns is None or interval.interval_ns >= timeout.timeout_ns:
                raise UserError(
                    f"log {min(logs)!r} is read at once, so checkpoints of region {reader.name!r}"
                    f" wait for those of region {writer.name!r}, whose interval is"
                    f" {interval.interval!r}: give it one below the timeout of {timeout.timeout!r},"
                    f" as in hr.Region({writer.name!r}, interval='1s')"
                )
