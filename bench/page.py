"""What a job pays for its page: with a page and clients, and without, in turns within one run.

One job runs from the first turn to the last, so both arms have the same processes, caches and
neighbours. A turn with the page opens it, and has clients of another process listen to all of its
messages; a turn without it closes it. Turns come in the order without, with, with, without, so that
drift hits both arms alike.

By the clock, a turn's rate is taken from the totals of the source's subtasks, whose own times
(busy, backpressured, idle) are their clock: heartbeats add no error. Neighbours on the machine do,
often by more than a percent. So the verdict goes by processor time: workers do nothing for a page,
so its price is what the job's own process uses beyond what it uses without a page, as a share of
what the whole job uses. Where a job has all processors busy, it loses that share of its records.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import headrace as hr
from headrace.engine.contract.page_address import PageAddress
from headrace.engine.ui.facts import facts_of
from headrace.engine.ui.page import Page, Place

#: Reads addresses from its input, and listens to each by so many connections.
_LISTENER = """
import sys, threading, urllib.request
def listen(url):
    with urllib.request.urlopen(url + "api/events") as answer:
        for line in answer:
            pass
for line in sys.stdin:
    url, clients = line.split()
    for _ in range(int(clients)):
        threading.Thread(target=listen, args=(url,), daemon=True).start()
"""
#: After a change of arms, before the turn.
_SETTLE_S = 1.0
_WARM_UP_S = 5.0
_PARALLELISM = 2
_BLOCK = (False, True, True, False)


def job() -> hr.Job:
    """A keyed count without an end."""
    numbers = hr.read.sequence(10**12, keys=10_000, name="numbers")
    counted = numbers.key_by("key").aggregate(n=hr.count(), emit="final", name="count")
    sink = counted.write.blackhole(name="out")
    return hr.Job("page", sink, parallelism=_PARALLELISM, network=hr.Network(heartbeat="200ms"))


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn's rates, by the clock.

    Attributes:
        records_per_s: of the job's source.
        driver_cpu: processor seconds a second of the job's own process; `job_cpu`: of that and all
            workers.
    """

    records_per_s: float
    driver_cpu: float
    job_cpu: float


#: {whether there was a page: its turns}.
Arms = dict[bool, list[Turn]]


def measure(turns: int, seconds: float, clients: int) -> Arms:
    """Run the turns."""
    counting = job()
    handle = counting.start("processes")
    facts = facts_of(counting.plan(), {}, counting.deliveries, None)
    listener = subprocess.Popen([sys.executable, "-c", _LISTENER], stdin=subprocess.PIPE, text=True)
    arms: Arms = {False: [], True: []}
    try:
        _await_workers(handle)
        time.sleep(_WARM_UP_S)
        for turn in range(turns):
            shown = _BLOCK[turn % len(_BLOCK)]
            page = Page(Place(PageAddress(port=0)), handle, facts, None) if shown else None
            if page is not None and listener.stdin is not None:
                listener.stdin.write(f"{page.link.partition('#')[0]} {clients}\n")
                listener.stdin.flush()
            time.sleep(_SETTLE_S)
            arms[shown].append(_turn(handle, seconds))
            if page is not None:
                page.close()
    finally:
        listener.kill()
        # Closes its input and waits for it.
        listener.communicate()
        handle.cancel()
        handle.wait()
    return arms


def _await_workers(handle: hr.JobHandle) -> None:
    """Wait until every subtask of the source tells totals."""
    deadline_s = time.monotonic() + 120
    while len(_totals(handle)) < _PARALLELISM:
        assert time.monotonic() < deadline_s, "the job does not run"
        time.sleep(0.1)


def _turn(handle: hr.JobHandle, seconds: float) -> Turn:
    before, workers_s = _totals(handle), _workers_cpu_s(handle)
    driver_s, began_s = time.process_time(), time.monotonic()
    time.sleep(seconds)
    wall_s, driver_s = time.monotonic() - began_s, time.process_time() - driver_s
    after, workers_s = _totals(handle), _workers_cpu_s(handle) - workers_s
    return Turn(
        sum(
            (rows - before[subtask][0]) * 1e9 / max(1, clock_ns - before[subtask][1])
            for subtask, (rows, clock_ns) in after.items()
        ),
        driver_s / wall_s,
        (driver_s + workers_s) / wall_s,
    )


def _workers_cpu_s(handle: hr.JobHandle) -> float:
    """Processor time of all workers so far."""
    ticks = 0
    for pid in handle.status().workers.values():
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _totals(handle: hr.JobHandle) -> dict[int, tuple[int, int]]:
    """{subtask of the source: (rows, its clock in nanoseconds)}."""
    return {
        subtask: (n.rows_out, n.busy_ns + n.backpressured_ns + n.idle_ns)
        for (task, subtask), n in handle.status().numbers.items()
        if task == 0
    }


def cost_by_clock(arms: Arms) -> list[float]:
    """Return what the page costs in percent of records a second, a figure a block of turns."""
    found = []
    for first in range(0, len(arms[True]) - 1, 2):
        shown, plain = (
            sum(turn.records_per_s for turn in arms[arm][first : first + 2])
            for arm in (True, False)
        )
        found.append(100 * (1 - shown / plain))
    return found


def cost_by_processor(arms: Arms) -> float:
    """Return what the page costs in percent of the processor time of the whole job."""
    shown, plain = (statistics.fmean(t.driver_cpu for t in arms[arm]) for arm in (True, False))
    whole = statistics.fmean(turn.job_cpu for turns in arms.values() for turn in turns)
    return 100 * (shown - plain) / whole


def run(turns: int, seconds: float, clients: int) -> dict[str, Any]:
    """Measure; `turns` is a multiple of 4, `seconds` are those of a turn."""
    arms = measure(turns, seconds, clients)
    by_block = cost_by_clock(arms)
    lower, _, upper = statistics.quantiles(by_block, n=4) if len(by_block) > 1 else [*by_block] * 3
    cpu_ms = {
        arm: 1e3 * statistics.fmean(t.driver_cpu for t in turns) for arm, turns in arms.items()
    }
    return {
        "benchmark": "page",
        "cost_percent": round(cost_by_processor(arms), 3),
        "driver_cpu_ms_per_s_without": round(cpu_ms[False], 2),
        "driver_cpu_ms_per_s_with": round(cpu_ms[True], 2),
        "job_cpus": round(statistics.fmean(t.job_cpu for turns in arms.values() for t in turns), 2),
        "records_per_s_without": round(statistics.median(t.records_per_s for t in arms[False])),
        "records_per_s_with": round(statistics.median(t.records_per_s for t in arms[True])),
        "clock_cost_percent": round(statistics.median(by_block), 2),
        "clock_cost_percent_quartiles": [round(lower, 2), round(upper, 2)],
        "blocks": len(by_block),
        "clients": clients,
    }
