"""Where the regions of a job start: checkpoints that fit one another, and the logs cut to them."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.recovery.edge_log import CorruptEntry
from headrace.recovery.frontiers.fixed_point import NoConsistentChoice
from headrace.recovery.store import StoreError

from ..connectors.edge_log import EdgeLogCommitter
from ..contract.errors import HeadraceError, StorageUnreachable, UserError
from ..contract.options import RunOptions
from ..coordinator import supervisor as s
from ..coordinator.region_choice import RegionSeen, going_back
from ..drivers.restore import resolve
from .region_places import RegionPlaces
from .region_plan import RegionPlan, RegionsPlan
from .region_savepoints import read


def starts_of(
    plan: RegionsPlan, options: RunOptions, *, volatile: bool
) -> dict[str, str | int | None]:
    """Where each region starts; None: anew. Raises: UserError, StorageUnreachable."""
    restore = None if options.fresh else options.restore
    if restore is None or (restore == "auto" and volatile):
        return dict.fromkeys((region.name for region in plan.regions), None)
    if restore == "auto":
        return dict.fromkeys((region.name for region in plan.regions), "auto")
    if restore == "latest":
        return _latest(plan)
    return dict(read(plan, restore))


def _latest(plan: RegionsPlan) -> dict[str, str | int | None]:
    found = {region.name: _number(plan, region, "auto") for region in plan.regions}
    if not any(found.values()):
        raise UserError(
            f"restore='latest': no region of job {plan.job!r} has a complete checkpoint in"
            f" {plan.directory}; leave restore out to begin anew"
        )
    return {name: "auto" if number else None for name, number in found.items()}


def _number(plan: RegionsPlan, region: RegionPlan, restore: str | int | None) -> int:
    """Number of the checkpoint from which a region starts; 0: anew."""
    found = resolve(plan.store, region.plan.job, restore, plan.directory)
    return 0 if found.metadata is None else found.metadata.checkpoint


def fitting(
    plan: RegionsPlan, starts: dict[str, str | int | None]
) -> tuple[dict[str, str | int | None], list[str]]:
    """Let regions go back whose newest checkpoint has read more than its writer starts with.

    Returns the starts, and a sentence about each of these regions.

    Raises: UserError, StorageUnreachable.
    """
    if set(starts.values()) != {"auto"}:
        return starts, []
    try:
        seen = {
            region.name: RegionSeen(
                RegionPlaces(plan.store, region.plan.job, region.reads).kept(
                    _number(plan, region, starts[region.name])
                ),
                runs=False,
            )
            for region in reversed(plan.regions)
        }
        back = going_back(plan.specs, seen, plan.logs())
    except NoConsistentChoice as none:
        raise UserError(s.cannot_go_back(none)) from none
    except StoreError as error:
        raise StorageUnreachable(f"the checkpoint directory cannot be read: {error}") from error
    except CorruptEntry as error:
        raise UserError(f"{error}; fresh=True begins the job anew") from error
    numbers = {each.region: each.checkpoint for each in back}
    return starts | numbers, [s.went_back(each, plan.specs[each.region]) for each in back]


def cut_logs(plan: RegionsPlan, starts: Mapping[str, str | int | None]) -> None:
    """Cut each log to where its writing region starts, before a reader looks at it.

    Raises: UserError, StorageUnreachable.
    """
    for region in (each for each in plan.regions if each.name in starts):
        number = _number(plan, region, starts[region.name])
        for log in region.writes:
            files = plan.files(log)
            try:
                last = files.last()
                if last is not None:
                    EdgeLogCommitter(files).cut(number, last.epoch)
            except StoreError as error:
                raise StorageUnreachable(f"log {log!r} cannot be read: {error}") from error
            except (CorruptEntry, HeadraceError) as error:
                raise UserError(f"log {log!r}: {error}") from error
