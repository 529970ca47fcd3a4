"""Does a split source keep its promises? Plans from any place, splits from any row."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from ..contract.connectors import Planned, Split, SplitPlanner, SplitSource
from ..contract.operators import OperatorContext, SourceStatus
from ..operators.splits import split_rows
from .elsewhere import copied, elsewhere
from .states import MAX_PARALLELISM
from .verdict import Broken, Findings, Row, Rows, expect, rows_of, step

#: After a plan without a split.
_PAUSE_S = 0.01
#: Splits of which every part is read again, at most.
_SPLITS_MAX = 5


def check_split_source(
    make_source: Callable[[], SplitSource],
    rows: Rows | None = None,
    *,
    idle_s: float = 5.0,
) -> list[str]:
    """Plan a source from every place, and read its splits from several rows on.

    Args:
        make_source: makes the source; it must give the same rows each time.
        rows: that the source gives; None: any.
        idle_s: a planner without an end is asked until it has planned nothing for so long.

    Returns the names of the cases. Raises: NotConforming, with a sentence for each broken promise.
    """
    findings = Findings()
    kit = _Kit(make_source(), idle_s)
    for case in _CASES:
        with findings.case(case.__name__.strip("_").replace("_", " ")):
            case(kit)
    if rows is not None:
        with findings.case("every row comes once"):
            found = [row for split in kit.splits() for row in kit.read(split)]
            expect(lambda: found, rows_of(rows), "all splits were read")
    return findings.conclude()


class _Kit:
    """The source as workers get it, and the plan from its beginning to its end."""

    def __init__(self, source: SplitSource, idle_s: float) -> None:
        self.source = source
        self._idle_s = idle_s
        self._plan: list[tuple[str, Planned]] = []

    def plan(self) -> list[tuple[str, Planned]]:
        """Return (place, what is planned there) of every step."""
        if self._plan:
            return self._plan
        planner = self._opened()
        place, silent_since_s = "", time.monotonic()
        while time.monotonic() - silent_since_s < self._idle_s:
            with step(f"plan at {place!r}"):
                planned = planner.plan(place)
                split_rows(planned.splits)
            self._plan.append((place, planned))
            if planned.splits:
                silent_since_s = time.monotonic()
                if planned.place == place and planned.status is not SourceStatus.END:
                    raise Broken(f"plan at {place!r} gave splits and stays there: they come again")
            place = planned.place
            if planned.status is SourceStatus.END:
                break
            if not planned.splits:
                time.sleep(_PAUSE_S)
        with step("close"):
            planner.close()
        return self._plan

    def splits(self) -> list[Split]:
        """Return all splits."""
        return [split for _, planned in self.plan() for split in planned.splits]

    def plan_at(self, place: str) -> Planned:
        """Plan at a place in a fresh planner."""
        planner = self._opened()
        with step(f"plan at {place!r}"):
            planned = planner.plan(place)
        with step("close"):
            planner.close()
        return planned

    def read(self, split: Split, skip: int = 0) -> list[Row]:
        """Read a split in a fresh reader."""
        return read_split(copied(self.source), split, skip)

    def _opened(self) -> SplitPlanner:
        shipped = copied(self.source)
        with step("planner()"):
            planner = shipped.planner()
        with step("open"):
            planner.open(_context(1))
        return planner


def read_split(source: SplitSource, split: Split, skip: int) -> list[Row]:
    """Open a reader and read a split behind the first `skip` rows."""
    with step("reader()"):
        reader = source.reader()
    with step("open"):
        reader.open(_context(2))
    rows: list[Row] = []
    with step(f"read of split {split.name!r}"):
        for batch in reader.read(split, skip):
            if not batch.schema.equals(source.schema):
                raise Broken(
                    f"split {split.name!r} gave {batch.schema.names}, and the source says"
                    f" {source.schema.names}; names and types must be equal"
                )
            rows += rows_of(batch.to_pylist())
    with step("close"):
        reader.close()
    return rows


def _context(parallelism: int) -> OperatorContext:
    return OperatorContext("kit", "in", 0, parallelism, MAX_PARALLELISM, 1)


# --- the cases ------------------------------------------------------------------------------------


def _a_plan_comes_to_its_end(kit: _Kit) -> None:
    counts = Counter(split.name for split in kit.splits())
    again = sorted(name for name, times in counts.items() if times > 1)
    if again:
        raise Broken(f"{len(again)} splits are planned twice ({', '.join(again[:3])})")


def _a_planner_goes_on_at_every_place(kit: _Kit) -> None:
    for place, planned in reversed(kit.plan()):
        names = [split.name for split in planned.splits]
        again = [split.name for split in kit.plan_at(place).splits]
        if again[: len(names)] != names:
            raise Broken(f"a fresh planner plans {again[:3]} at {place!r}, and not {names[:3]}")


def _splits_go_on_behind_any_row(kit: _Kit) -> None:
    if not kit.source.repeatable:
        return
    for split in kit.splits()[:_SPLITS_MAX]:
        rows = kit.read(split)
        for skip in sorted({0, 1, len(rows) // 2, len(rows)}):
            if kit.read(split, skip) != rows[skip:]:
                raise Broken(
                    f"split {split.name!r}, read again behind {skip} rows, gives other rows; a"
                    " source that is not repeatable must say so"
                )


def _another_process_reads_a_split(kit: _Kit) -> None:
    for split in kit.splits()[:1]:
        found = elsewhere(read_split, kit.source, split, 0)
        if kit.source.repeatable and found != kit.read(split):
            raise Broken(f"split {split.name!r} gives other rows in another process")


_CASES = (
    _a_plan_comes_to_its_end,
    _a_planner_goes_on_at_every_place,
    _splits_go_on_behind_any_row,
    _another_process_reads_a_split,
)
