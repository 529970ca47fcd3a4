"""When a region of policy "batch" runs: a batch reads its logs to their ends, and then ends itself.

Each batch is a run of the region, from the final checkpoint of the batch before, as of a finished
job whose sources have grown. So a batch that fails is repeated as a whole, and between batches the
region has no workers.
"""

from __future__ import annotations

from enum import Enum

from headrace.recovery.edge_log import EntryKind, Place

from .region_places import RegionPlaces
from .region_plan import RegionPlan, RegionsPlan


class Next(Enum):
    """What becomes of a region whose batch has ended."""

    WAIT = "wait"
    BEGIN = "begin"
    OVER = "over"


class Batches:
    """The batches of one region.

    Args:
        every_ns: from the start of a batch to the start of the next.
        now_ns: the first batch starts now.
    """

    def __init__(self, plan: RegionsPlan, region: RegionPlan, every_ns: int, now_ns: int) -> None:
        self._plan = plan
        self._region = region
        self._places = RegionPlaces(plan.store, region.plan.job, region.reads)
        self._every_ns = every_ns
        self._began_ns = now_ns

    def next(self, now_ns: int) -> Next:
        """Decide; the last batch does not wait. Raises: StoreError, CorruptEntry."""
        kept = self._places.kept()
        read = kept[-1][1] if kept else {}
        ended, grown = [], False
        for log in self._region.reads:
            last, place = self._plan.files(log).last(), read.get(log, Place())
            ended.append(last is not None and last.kind is EntryKind.END)
            if last is not None:
                through = all(
                    end <= place.positions.get(lane, 0) for lane, end in last.ends.items()
                )
                grown = grown or not through
        if all(ended) and not grown:
            return Next.OVER
        if grown and (all(ended) or now_ns >= self._began_ns + self._every_ns):
            self._began_ns = now_ns
            return Next.BEGIN
        return Next.WAIT
