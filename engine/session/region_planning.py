"""From a job's sinks to the plans of its regions."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.recovery.edge_log_files import EdgeLogFiles

from ..connectors.edge_log import EdgeLogSink, EdgeLogSource
from ..contract.connectors import Sink, Source
from ..contract.options import RunOptions
from ..contract.region import Region
from ..plan.builder import build_plan, joined_plan
from ..plan.graph import Node
from ..plan.regions import RegionGraph, split
from ..storage.checkpoint_storage import open_store
from .region_plan import RegionPlan, RegionsPlan, region_job

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

    def ends(log: str, schema: pa.Schema) -> tuple[Sink, Source]:
        files = EdgeLogFiles(store, job, log)
        return EdgeLogSink(files), EdgeLogSource(files, schema)

    by_name = {region.name: region for region in settings}
    regions = [
        _region_plan(job, graph, by_name.get(graph.name), options, max_parallelism)
        for graph in split(sinks, ends, tuple(by_name))
    ]
    whole = joined_plan(job, {region.name: region.plan for region in regions})
    return RegionsPlan(job, regions, whole, directory)


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
    return RegionPlan(graph.name, plan, own, graph.writes, graph.reads)
