"""What the policy of a region asks of the region, and how far back its checkpoints reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..contract.errors import UserError
from ..contract.operators import HearsCheckpoints
from .region_plan import RegionPlan

#: Checkpoints that a region keeps which reads no log: the newest, and one to fall back to.
_RETAIN = 2
#: A region keeps no more than this many for the sake of its writers.
_RETAIN_MAX = 64


def check_policy(region: RegionPlan) -> None:
    """Refuse a region that cannot be run by its policy. Raises: UserError."""
    match region.settings.policy:
        case "batch":
            _check_batch(region)
        case "ephemeral":
            _check_ephemeral(region)


def _check_batch(region: RegionPlan) -> None:
    sources = [task.operators[0].name for task in region.plan.tasks if task.is_source]
    others = sorted(set(sources) - set(region.reads))
    if others:
        raise UserError(
            f"region {region.name!r} is to run in batches, which are ranges of logs, and reads"
            f" source {others[0]!r}: put logged(name=...) behind the source"
        )
    if region.reads_early:
        raise UserError(
            f"region {region.name!r} is to run in batches, and reads log"
            f" {region.reads_early[0]!r} at once, of which no batch has an end: read it with"
            ' read="committed"'
        )


def _check_ephemeral(region: RegionPlan) -> None:
    for operator in (o for task in region.plan.tasks for o in task.operators):
        where = f"{operator.name!r} ({operator.built_at})"
        if operator.operator is not None and operator.stateful:
            raise UserError(
                f"region {region.name!r} is ephemeral and keeps nothing, but {where} keeps state:"
                " choose another policy, or put logged(name=...) before it"
            )
        if operator.source is None or operator.name in region.reads:
            continue
        if not isinstance(operator.source(), HearsCheckpoints):
            raise UserError(
                f"region {region.name!r} is ephemeral, so its sources must give again whatever is"
                f" not acknowledged, and source {where} acknowledges nothing (its reader has no"
                " completed()): choose another policy"
            )


def reaching_back(regions: Sequence[RegionPlan]) -> list[RegionPlan]:
    """Let regions keep so many checkpoints that readers can follow a writer to any of its own,
    unless the user states how many.

    Args:
        regions: writers first.
    """
    found: list[RegionPlan] = []
    for region in regions:
        writers = [other for other in found if set(other.writes).intersection(region.reads)]
        found.append(_keeping(region, writers))
    return found


def _keeping(region: RegionPlan, writers: Sequence[RegionPlan]) -> RegionPlan:
    checkpoints = region.options.checkpoints
    if checkpoints is None or checkpoints.retain > 1 or region.settings.retain is not None:
        return region
    own_ns = checkpoints.interval_ns
    spans = [_span_ns(writer) for writer in writers]
    behind = [-(-span // own_ns) for span in spans if own_ns]
    retain = min(_RETAIN_MAX, max([_RETAIN, *(1 + count for count in behind)]))
    options = replace(region.options, checkpoints=replace(checkpoints, retain=retain))
    return replace(region, options=options)


def _span_ns(region: RegionPlan) -> int:
    """How far the kept checkpoints of a region reach back."""
    checkpoints = region.options.checkpoints
    assert checkpoints is not None, "a region has checkpoints"
    return checkpoints.retain * (checkpoints.interval_ns or 0)
