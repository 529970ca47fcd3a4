"""What is told of several regions: how far each has come, and the notices of all of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..coordinator import supervisor as s
from ..coordinator.coordinator_events import Notice, NoticeKind
from ..drivers.status import Status
from .region_plan import RegionPlan

_NOTICES_MAX = 1000


class Progress:
    """How far a region has come since its newest checkpoint, by the looks at it."""

    def __init__(self, region: RegionPlan) -> None:
        self._region = region
        self._sources = {task.index for task in region.plan.tasks if task.is_source}
        self._restarts = self._completed = 0
        #: Records of the sources in this attempt: at the newest checkpoint, and now.
        self._covered = self._rows = 0

    def looked(self, status: Status) -> s.RegionRestarted | None:
        """Compare with the look before; a restart in between is returned."""
        restarted = None
        if status.restarts > self._restarts:
            self._restarts = status.restarts
            newest = status.checkpoints[-1].checkpoint if status.checkpoints else 0
            repeated = max(0, self._rows - self._covered)
            restarted = s.RegionRestarted(self._region.name, newest, repeated, _reason(status))
            self._covered = self._rows = 0
        rows = sum(n.rows_out for (task, _), n in status.numbers.items() if task in self._sources)
        if status.completed > self._completed:
            self._completed, self._covered = status.completed, rows
        self._rows = rows
        return restarted


def _reason(status: Status) -> str:
    """Why the last attempt failed."""
    failures = (NoticeKind.WORKER_LOST, NoticeKind.ATTEMPT_FAILED)
    texts = [notice.text for _, notice in status.notices if notice.kind in failures]
    return texts[-1].partition("\n")[0] if texts else "an attempt failed"


class Notices:
    """The notices of all regions under one numbering, each with its region's name."""

    def __init__(self, regions: Sequence[str]) -> None:
        self._seen = dict.fromkeys(regions, 0)
        self._notices: list[tuple[int, Notice]] = []
        self._lock = threading.Lock()

    def of(self, statuses: Mapping[str, Status]) -> tuple[tuple[int, Notice], ...]:
        """All notices so far."""
        with self._lock:
            for region, status in statuses.items():
                for number, notice in status.notices:
                    if number > self._seen[region]:
                        self._seen[region] = number
                        self._append(replace(notice, text=f"{region}: {notice.text}"))
            return tuple(self._notices)

    def add(self, notice: Notice) -> None:
        """Add a notice about the job."""
        with self._lock:
            self._append(notice)

    def begin(self, region: str) -> None:
        """The region has a new session, whose notices are numbered from 1."""
        with self._lock:
            self._seen[region] = 0

    def _append(self, notice: Notice) -> None:
        number = self._notices[-1][0] + 1 if self._notices else 1
        self._notices = [*self._notices[1 - _NOTICES_MAX :], (number, notice)]
