"""The queries of Nexmark in bytewax: two processes of one worker each; records are Python tuples,
keys strings.

The suite runs this file with the Python of bytewax's environment, so it imports nothing of ours but
the events, by their path. Source partition i makes the numbers i, i + 2, i + 4... bytewax has no
watermark between workers, so what needs the end of event time (queries 4, 5, 7 and 8) is answered
when the input ends, by `fold_final`; windows are part of the key.
"""

from __future__ import annotations

import argparse
import json
import math
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op
import numpy as np
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import cluster_main

sys.path.insert(0, str(Path(__file__).parent.parent / "nexmark"))
import events  # type: ignore[import-not-found, unused-ignore]

BATCH_NUMBERS = 2000
WINDOW_MS, SLIDE_MS = 10_000, 2000
UINT64 = 1 << 64

Row = tuple[Any, ...]
Make = Callable[[Any, int], dict[str, Any]]


class Numbers(FixedPartitionedSource):  # type: ignore[misc]
    """Events of some kinds, dealt out to as many partitions as there are workers; each is (kind,
    row).
    """

    def __init__(self, given: argparse.Namespace, kinds: Sequence[Make]) -> None:
        self._given, self._kinds = given, kinds

    def list_parts(self) -> list[str]:
        """Names of the partitions."""
        return [str(part) for part in range(self._given.workers)]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Part:
        """Open one partition, at its start or where its snapshot left it."""
        first = int(for_part) if resume_state is None else resume_state
        return Part(first, self._given, self._kinds)


class Part(StatefulSourcePartition):  # type: ignore[misc]
    """Every n-th number; the state is the next one."""

    def __init__(self, first: int, given: argparse.Namespace, kinds: Sequence[Make]) -> None:
        self._next, self._given, self._kinds = first, given, kinds

    def next_batch(self) -> list[tuple[int, Row]]:
        """Make the next events."""
        given, first = self._given, self._next
        if first >= given.events:
            raise StopIteration
        self._next = first + BATCH_NUMBERS * given.workers
        numbers = np.arange(first, min(self._next, given.events), given.workers)
        return [
            (kind, row)
            for kind, make in enumerate(self._kinds)
            for row in rows_of(make(numbers, given.seed))
        ]

    def snapshot(self) -> int:
        """Return the next number."""
        return self._next


def rows_of(columns: dict[str, Any]) -> Iterator[Row]:
    """Events as tuples."""
    return zip(
        *(
            [column.values[code] for code in column.codes.tolist()]
            if isinstance(column, events.Coded)
            else column.tolist()
            for column in columns.values()
        ),
        strict=True,
    )


class Lines(StatelessSinkPartition):  # type: ignore[misc]
    """Writes the answers of one worker as lines, or a digest of them."""

    def __init__(self, path: Path, digested: bool) -> None:
        self._file, self._digested = path.open("w"), digested
        self._rows = self._products = self._extra_bytes = 0

    def write_batch(self, items: Sequence[Row]) -> None:
        """Write some rows."""
        if not self._digested:
            self._file.writelines(",".join(map(str, row)) + "\n" for row in items)
            return
        for auction, bidder, price, at_ms, extra in items:
            whole = price if isinstance(price, int) else math.floor(price * 1000 + 0.5)
            self._products += (auction + 31 * whole) * (bidder + at_ms)
            self._extra_bytes += len(extra)
        self._rows += len(items)

    def close(self) -> None:
        """Write the digest; flush."""
        if self._digested:
            self._file.write(f"{self._rows},{self._products % UINT64},{self._extra_bytes}\n")
        self._file.close()


class Answers(DynamicSink):  # type: ignore[misc]
    """A file a worker."""

    def __init__(self, folder: Path, digested: bool) -> None:
        self._folder, self._digested = folder, digested

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Lines:
        """Open the file of one worker."""
        return Lines(self._folder / f"{worker_index}.csv", self._digested)


# Columns of events by place.
AUCTION, BIDDER, PRICE, BID_AT, BID_EXTRA = 0, 1, 2, 5, 6
ID, OPENED, EXPIRES, SELLER, CATEGORY = 0, 5, 6, 7, 8
PERSON, NAME, CITY, STATE, CAME = 0, 1, 4, 5, 6


def pass_through(bids: Any) -> Any:
    """Query 0."""
    return op.map("row", bids, lambda b: (b[1][0], b[1][1], b[1][2], b[1][5], b[1][6]))


def currency_conversion(bids: Any) -> Any:
    """Query 1."""
    return op.map("euros", bids, lambda b: (b[1][0], b[1][1], b[1][2] * 0.908, b[1][5], b[1][6]))


def selection(bids: Any) -> Any:
    """Query 2."""
    return op.filter_map("some", bids, lambda b: (b[1][0], b[1][2]) if b[1][0] % 123 == 0 else None)


def local_items(both: Any) -> Any:
    """Query 3: kind 0 are persons, kind 1 auctions."""

    def keyed(event: tuple[int, Row]) -> tuple[str, Row] | None:
        kind, row = event
        if kind == 0:
            place = row[NAME], row[CITY], row[STATE]
            return (str(row[PERSON]), place) if row[STATE] in ("OR", "ID", "CA") else None
        return (str(row[SELLER]), (row[ID],)) if row[CATEGORY] == 10 else None

    def joined(state: tuple[Row | None, list[int]] | None, row: Row) -> tuple[Any, list[Row]]:
        person, waiting = state or (None, [])
        if len(row) == 3:
            return (row, []), [(*row, auction) for auction in waiting]
        if person is not None:
            return (person, []), [(*person, row[0])]
        return (None, [*waiting, row[0]]), []

    by_seller = op.filter_map("seller", both, keyed)
    found = op.stateful_flat_map("join", by_seller, joined)
    return op.map("unkeyed", found, lambda item: item[1])


def average_prices(both: Any) -> Any:
    """Query 4: kind 0 are auctions, kind 1 bids."""

    def keyed(event: tuple[int, Row]) -> tuple[str, Row]:
        kind, row = event
        if kind == 0:
            return str(row[ID]), (row[CATEGORY], row[OPENED], row[EXPIRES])
        return str(row[AUCTION]), (row[PRICE], row[BID_AT])

    def gathered(state: tuple[Row | None, list[Row]], row: Row) -> tuple[Row | None, list[Row]]:
        bids = state[1]
        if len(row) == 3:
            return row, bids
        bids.append(row)
        return state

    def won(item: tuple[str, tuple[Row | None, list[Row]]]) -> tuple[str, int] | None:
        auction, bids = item[1]
        if auction is None:
            return None
        category, opened, expires = auction
        best = max((price for price, at in bids if opened <= at <= expires), default=0)
        return (str(category), best) if best else None

    def added(totals: tuple[int, int], price: int) -> tuple[int, int]:
        return totals[0] + 1, totals[1] + price

    by_auction = op.map("auction", both, keyed)
    gathered_ = op.fold_final("gather", by_auction, lambda: (None, []), gathered)
    winning = op.filter_map("won", gathered_, won)
    totals = op.fold_final("averages", winning, lambda: (0, 0), added)
    return op.map("row", totals, lambda item: (item[0], item[1][0], item[1][1] / item[1][0]))


def hot_items(bids: Any) -> Any:
    """Query 5: a bid is in five windows."""

    def keyed(event: tuple[int, Row]) -> Iterable[tuple[str, int]]:
        row = event[1]
        last = row[BID_AT] // SLIDE_MS * SLIDE_MS
        starts = range(last - WINDOW_MS + SLIDE_MS, last + SLIDE_MS, SLIDE_MS)
        return [(f"{start}:{row[AUCTION]}", 1) for start in starts]

    def by_window(item: tuple[str, int]) -> tuple[str, tuple[int, str]]:
        start, _, auction = item[0].partition(":")
        return start, (item[1], auction)

    windows = op.flat_map("windows", bids, keyed)
    counts = op.fold_final("counts", windows, lambda: 0, lambda n, one: n + one)
    hottest = op.fold_final("hottest", op.map("start", counts, by_window), list, highest)
    return op.flat_map("rows", hottest, lambda item: [(item[0], row[1], row[0]) for row in item[1]])


def highest(best: list[Row], row: Row) -> list[Row]:
    """Keep the rows whose first column is the highest."""
    if best and row[0] < best[0][0]:
        return best
    return [*best, row] if best and row[0] == best[0][0] else [row]


def highest_bids(bids: Any) -> Any:
    """Query 7."""

    def keyed(event: tuple[int, Row]) -> tuple[str, Row]:
        row = event[1]
        start = row[BID_AT] // WINDOW_MS * WINDOW_MS
        return str(start), (row[PRICE], row[AUCTION], row[BIDDER], row[BID_AT])

    best = op.fold_final("highest", op.map("start", bids, keyed), list, highest)
    return op.flat_map(
        "rows", best, lambda item: [(item[0], b[1], b[2], b[0], b[3]) for b in item[1]]
    )


def new_users(both: Any) -> Any:
    """Query 8: kind 0 are persons, kind 1 auctions."""

    def keyed(event: tuple[int, Row]) -> tuple[str, str]:
        kind, row = event
        at, who = (row[CAME], row[PERSON]) if kind == 0 else (row[OPENED], row[SELLER])
        return f"{who}:{at // WINDOW_MS * WINDOW_MS}", row[NAME] if kind == 0 else ""

    def met(state: tuple[str, bool], name: str) -> tuple[str, bool]:
        return (name, state[1]) if name else (state[0], True)

    def row(item: tuple[str, tuple[str, bool]]) -> Row | None:
        who, _, start = item[0].partition(":")
        name, sold = item[1]
        return (who, name, start) if name and sold else None

    by_window = op.map("window", both, keyed)
    met_ = op.fold_final("meet", by_window, lambda: ("", False), met)
    return op.filter_map("rows", met_, row)


#: {query: its kinds of events, and the query}
QUERIES: dict[int, tuple[Sequence[Make], Callable[[Any], Any]]] = {
    0: ([events.bids], pass_through),
    1: ([events.bids], currency_conversion),
    2: ([events.bids], selection),
    3: ([events.persons, events.auctions], local_items),
    4: ([events.auctions, events.bids], average_prices),
    5: ([events.bids], hot_items),
    7: ([events.bids], highest_bids),
    8: ([events.persons, events.auctions], new_users),
}


def flow(given: argparse.Namespace) -> Dataflow:
    """Build the job."""
    kinds, query = QUERIES[given.query]
    dataflow = Dataflow("nexmark")
    made = op.input("events", dataflow, Numbers(given, kinds))
    op.output("answer", query(made), Answers(given.folder / "answer", given.query <= 1))
    return dataflow


def work(given: argparse.Namespace) -> None:
    """Be one process of the cluster; print when it began and ended."""
    interval = timedelta(seconds=given.interval_s) if given.interval_s else None
    recovery = RecoveryConfig(str(given.folder / "recovery")) if interval else None
    began = time.monotonic()
    cluster_main(
        flow(given),
        given.addresses.split(","),
        given.index,
        epoch_interval=interval,
        recovery_config=recovery,
    )
    print(json.dumps({"began": began, "ended": time.monotonic()}), flush=True)


def lead(given: argparse.Namespace) -> None:
    """Start the processes, await them and print the result."""
    if given.interval_s:
        (given.folder / "recovery").mkdir()
        init_db_dir(given.folder / "recovery", given.workers)
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(given.workers))
    command = [sys.executable, *sys.argv, "--addresses", addresses, "--index"]
    processes = [
        subprocess.Popen([*command, str(index)], stdout=subprocess.PIPE)
        for index in range(given.workers)
    ]
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a process of bytewax failed")
    times = [json.loads(text.splitlines()[-1]) for text in said]
    running_s = max(t["ended"] for t in times) - max(t["began"] for t in times)
    print(json.dumps({"running_s": running_s}))


def free_ports(count: int) -> list[int]:
    """Find so many free ports of the loopback interface."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def main() -> None:
    """Lead, or be the process of an index."""
    parser = argparse.ArgumentParser()
    for name in ("query", "events", "seed", "workers"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--interval-s", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--addresses", default="")
    parser.add_argument("--index", type=int)
    given = parser.parse_args()
    if given.index is None:
        lead(given)
    else:
        work(given)


if __name__ == "__main__":
    main()
