"""Three regions, a loop in the middle one, and a kill in each: how much is executed again.

Question: which share of the records that a rollback of everybody would execute again is executed
again, when a worker dies and only its region goes back; and for how long the others give nothing.

    numbers -> numbers-log -> key_by -> loop (each number goes round twice) -> rounds-log -> sums

The numbers and the sums take checkpoints often, the loop seldom. A rollback of everybody goes to
what all regions hold: to the oldest of their newest checkpoints. Records are those that a region's
sources give. Both counts are taken at the same moment, before each kill, in the same run.

Unit: records, and milliseconds of wall time. The gap of a region is the longest time after the
kill, until the killed region runs again, in which its sources give nothing; without kills it is
about the interval of the region before.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr
from headrace.engine.api.logged import Read
from headrace.engine.coordinator.rules import Phase
from headrace.engine.drivers.status import Status
from headrace.engine.session.regions import RegionsSession

_LOOK_S = 0.01
#: Between kills, for regions to complete checkpoints of each.
_PAUSE_S = 2.5
_PATIENCE_S = 60.0
_RECORD = pa.schema([("sequence", pa.int64()), ("key", pa.int64()), ("round", pa.int64())])


@dataclass(frozen=True, slots=True)
class Look:
    """What the regions have read at a moment: {region: records of its sources in its attempt}."""

    wall_s: float
    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Killed:
    """One kill: records executed again, those of a rollback of everybody, and gaps in ms."""

    region: str
    again: int
    of_all: int
    gaps_ms: Mapping[str, float]


def run(
    *,
    kills: int = 6,
    rate: float = 20_000.0,
    parallelism: int = 2,
    read: Read = "committed",
) -> dict[str, Any]:
    """Run once. Returns one flat object; `correct`: each number was summed once."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        handle = _job(folder, rate, parallelism, read).start("processes")
        session = handle._session
        assert isinstance(session, RegionsSession), "a job of regions"
        watched = _Watched(session)
        try:
            watched.await_checkpoints()
            names = list(session.regions())
            found = [watched.kill(names[n % len(names)]) for n in range(kills)]
            handle.drain()
            result = handle.wait(600)
        finally:
            if handle.status().phase is not Phase.ENDED:
                handle.cancel()
    answer = result.collected["out"]
    records = pc.sum(answer["n"]).as_py()
    again, of_all = sum(k.again for k in found), sum(k.of_all for k in found)
    return {
        "bench": "region-kills",
        "read": read,
        "kills": kills,
        "again": again,
        "of_all": of_all,
        "ratio": round(again / max(1, of_all), 3),
        "longest_gap_ms": {name: max(k.gaps_ms.get(name, 0.0) for k in found) for name in names},
        "records": records,
        "correct": pc.sum(answer["total"]).as_py() == records * (records - 1) // 2,
        "parallelism": parallelism,
    }


def _job(folder: str, rate: float, parallelism: int, read: Read) -> hr.Job:
    # One subtask, so that the numbers of a drained job are those from 0 on.
    numbers = hr.read.sequence(None, keys=100, rate=rate, name="numbers", parallelism=1)
    numbers = numbers.map_batches(_begun, schema=_RECORD, name="begun")
    looped = numbers.logged(name="numbers-log", read=read).iterate(_around, name="rounds")
    sums = (
        looped.logged(name="rounds-log", read=read)
        .key_by("key")
        .aggregate(n=hr.count(), total=hr.sum("sequence"), emit="final", name="sums")
    )
    return hr.Job(
        "region-kills",
        sums.write.collect(name="out"),
        checkpoints=hr.Checkpoints(f"{folder}/checkpoints", interval="200ms"),
        regions=[hr.Region("rounds", interval="1s"), hr.Region("sums")],
        restart=hr.Restart(attempts=100),
        parallelism=parallelism,
    )


def _begun(batch: pa.RecordBatch) -> pa.RecordBatch:
    rounds = pa.array([0] * batch.num_rows, pa.int64())
    return pa.record_batch([batch["sequence"], batch["key"], rounds], schema=_RECORD)


def _another_round(batch: pa.RecordBatch) -> pa.RecordBatch:
    rounds = pc.add(batch["round"], 1)
    return pa.record_batch([batch["sequence"], batch["key"], rounds], schema=_RECORD)


def _around(loop: hr.Stream) -> tuple[hr.Stream, hr.Stream]:
    once = loop.rebalance().map_batches(_another_round, schema=_RECORD, name="round")
    return once.filter(pc.field("round") < 2), once.filter(pc.field("round") >= 2)


class _Watched:
    """Looks at the regions of a running job, and kills."""

    def __init__(self, session: RegionsSession) -> None:
        self._session = session
        self._looks: list[Look] = []

    def for_s(self, seconds: float) -> None:
        """Look for so long."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._look()

    def await_checkpoints(self) -> None:
        """Wait until every region has completed some, and each has workers."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while any(s.completed < 2 or not s.workers for s in self._look().values()):
            assert time.monotonic() < deadline_s, "the regions do not come to run"

    def kill(self, region: str) -> Killed:
        """Kill a worker of a region, wait until the region runs again, and let it go on a while."""
        self.await_checkpoints()
        before = self._look()
        restarts = {name: status.restarts for name, status in before.items()}
        at = len(self._looks) - 1
        for pid in list(before[region].workers.values())[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline_s:
            status = self._look()[region]
            if status.restarts > restarts[region] and self._looks[-1].rows[region]:
                break
        back = [name for name, s in self._session.regions().items() if s.restarts > restarts[name]]
        gaps = {name: self._gap_ms(name, at) for name in before if name not in back}
        cuts = {name: _newest_s(status) for name, status in before.items()}
        oldest_s = min(cuts.values())
        killed = Killed(
            region,
            again=sum(self._since(name, cuts[name], at) for name in back),
            of_all=sum(self._since(name, oldest_s, at) for name in before),
            gaps_ms=gaps,
        )
        self.for_s(_PAUSE_S)
        return killed

    def _look(self) -> Mapping[str, Status]:
        time.sleep(_LOOK_S)
        statuses = self._session.regions()
        rows = {name: self._rows(name, status) for name, status in statuses.items()}
        self._looks.append(Look(time.time(), rows))
        return statuses

    def _rows(self, region: str, status: Status) -> int:
        plan = next(each.plan for each in self._session.plan.regions if each.name == region)
        sources = {task.index for task in plan.tasks if task.is_source}
        return sum(n.rows_out for (task, _), n in status.numbers.items() if task in sources)

    def _since(self, region: str, wall_s: float, at: int) -> int:
        """Records that a region has read from a moment to look `at`, in its attempt."""
        now, then = self._looks[at].rows[region], self._looks[at].rows[region]
        for look in reversed(self._looks[: at + 1]):
            if look.rows[region] > then:
                break  # an attempt before
            then = look.rows[region]
            if look.wall_s <= wall_s:
                break
        return now - then

    def _gap_ms(self, region: str, at: int) -> float:
        """The longest time from look `at` on in which a region has read nothing."""
        longest_s, since, rows = 0.0, self._looks[at].wall_s, self._looks[at].rows[region]
        for look in self._looks[at:]:
            if look.rows[region] != rows:
                since, rows = look.wall_s, look.rows[region]
            longest_s = max(longest_s, look.wall_s - since)
        return round(longest_s * 1000, 1)


def _newest_s(status: Status) -> float:
    """When the newest checkpoint was triggered; without any, the beginning of time."""
    return status.checkpoints[-1].created_ms / 1000 if status.checkpoints else 0.0
