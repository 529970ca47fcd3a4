"""What a job pays for its page: records per second with a page and clients, and without, in turns.

    python -m headrace.bench.page [--turns 24] [--seconds 4] [--clients 2]

One job runs from the first turn to the last, so both arms have the same processes, caches and
neighbours. A turn with the page opens it, and has clients of another process listen to all of its
messages; a turn without it closes it. Turns come in the order without, with, with, without, so that
drift hits both arms alike. A turn's rate is taken from the totals of the source's subtasks, whose
own times (busy, backpressured, idle) are the clock: heartbeats add no error.

It prints an object, and ends with 3 if the page costs more than `--most` (1) percent, by the median
over all blocks of four turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

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


def measure(turns: int, seconds: float, clients: int) -> dict[bool, list[float]]:
    """Run the turns; return records per second by whether there was a page."""
    counting = job()
    handle = counting.start("processes")
    facts = facts_of(counting.plan(), {}, counting.deliveries, None)
    listener = subprocess.Popen([sys.executable, "-c", _LISTENER], stdin=subprocess.PIPE, text=True)
    rates: dict[bool, list[float]] = {False: [], True: []}
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
            rates[shown].append(_rate(handle, seconds))
            if page is not None:
                page.close()
    finally:
        listener.kill()
        listener.wait()
        handle.cancel()
        handle.wait()
    return rates


def _await_workers(handle: hr.JobHandle) -> None:
    """Wait until every subtask of the source tells totals."""
    deadline_s = time.monotonic() + 120
    while len(_totals(handle)) < _PARALLELISM:
        assert time.monotonic() < deadline_s, "the job does not run"
        time.sleep(0.1)


def _rate(handle: hr.JobHandle, seconds: float) -> float:
    before = _totals(handle)
    time.sleep(seconds)
    after = _totals(handle)
    return sum(
        (rows - before[subtask][0]) * 1e9 / (clock_ns - before[subtask][1])
        for subtask, (rows, clock_ns) in after.items()
    )


def _totals(handle: hr.JobHandle) -> dict[int, tuple[int, int]]:
    """{subtask of the source: (rows, its clock in nanoseconds)}."""
    return {
        subtask: (n.rows_out, n.busy_ns + n.backpressured_ns + n.idle_ns)
        for (task, subtask), n in handle.status().numbers.items()
        if task == 0
    }


def costs(rates: dict[bool, list[float]]) -> list[float]:
    """Return what the page costs in percent, a figure for each pair of turns with and without."""
    pairs = len(rates[True]) // 2
    found = []
    for block in range(pairs):
        at = slice(2 * block, 2 * block + 2)
        found.append(100 * (1 - sum(rates[True][at]) / sum(rates[False][at])))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=48, help="a multiple of 4")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--most", type=float, default=1.0, help="percent that the page may cost")
    stated = parser.parse_args(arguments)
    rates = measure(stated.turns, stated.seconds, stated.clients)
    by_block = costs(rates)
    median = statistics.median(by_block)
    lower, _, upper = statistics.quantiles(by_block, n=4)
    print(
        json.dumps(
            {
                "records_per_s_without": round(statistics.median(rates[False])),
                "records_per_s_with": round(statistics.median(rates[True])),
                "cost_percent": round(median, 2),
                "cost_percent_mean": round(statistics.fmean(by_block), 2),
                "cost_percent_quartiles": [round(lower, 2), round(upper, 2)],
                "blocks": len(by_block),
                "clients": stated.clients,
            }
        )
    )
    return 3 if median > stated.most else 0


if __name__ == "__main__":
    sys.exit(main())
