"""The keyed count in bytewax: two processes of one worker each, the default way to key (a string)
and its own final fold.

The suite runs this file with the Python of bytewax's environment, so it imports nothing of ours.
Source partition i makes the numbers i, i + 2, i + 4...; bytewax sends a record to the other process
as a pickled tuple, payload included. With an interval, an epoch of that length ends in a snapshot
of each changed key in SQLite files, without fsync of ours.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import cluster_main

BATCH_ROWS = 1000
PAYLOAD = bytes(range(76))

#: key, timestamp, sequence, payload
Record = tuple[int, int, int, bytes]
#: count, sum of sequence
Totals = tuple[int, int]


class Numbers(FixedPartitionedSource):  # type: ignore[misc]
    """The records, dealt out to as many partitions as there are workers."""

    def __init__(self, records: int, keys: int, multiplier: int, workers: int) -> None:
        self._records, self._keys, self._multiplier = records, keys, multiplier
        self._workers = workers

    def list_parts(self) -> list[str]:
        """Names of the partitions."""
        return [str(part) for part in range(self._workers)]

    def build_part(self, step_id: str, for_part: str, resume_state: int | None) -> Part:
        """Open one partition, at its start or where its snapshot left it."""
        first = int(for_part) if resume_state is None else resume_state
        return Part(first, self._records, self._keys, self._multiplier, self._workers)


class Part(StatefulSourcePartition):  # type: ignore[misc]
    """Every n-th number; the state is the next one."""

    def __init__(self, first: int, end: int, keys: int, multiplier: int, step: int) -> None:
        self._next, self._end, self._step = first, end, step
        self._keys, self._multiplier = keys, multiplier

    def next_batch(self) -> list[Record]:
        """Make the next records."""
        if self._next >= self._end:
            raise StopIteration
        keys, multiplier, payload = self._keys, self._multiplier, PAYLOAD
        first = self._next
        self._next = first + BATCH_ROWS * self._step
        return [
            (number * multiplier % keys, number * 1000, number, payload)
            for number in range(first, min(self._next, self._end), self._step)
        ]

    def snapshot(self) -> int:
        """Return the next number."""
        return self._next


class Lines(StatelessSinkPartition):  # type: ignore[misc]
    """Writes `key,count,sum` lines of one worker."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def write_batch(self, items: Sequence[tuple[str, Totals]]) -> None:
        """Write the totals of some keys."""
        self._file.writelines(f"{key},{count},{total}\n" for key, (count, total) in items)

    def close(self) -> None:
        """Flush."""
        self._file.close()


class Answers(DynamicSink):  # type: ignore[misc]
    """A file a worker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Lines:
        """Open the file of one worker."""
        return Lines(self._folder / f"{worker_index}.csv")


def add(totals: Totals, record: Record) -> Totals:
    """Count one record and add its sequence."""
    return totals[0] + 1, totals[1] + record[2]


def flow(given: argparse.Namespace) -> Dataflow:
    """Build the job."""
    dataflow = Dataflow("keyed_count")
    source = Numbers(given.records, given.keys, given.multiplier, given.workers)
    records = op.input("sequence", dataflow, source)
    keyed = op.key_on("key", records, lambda record: str(record[0]))
    totals = op.fold_final("count", keyed, lambda: (0, 0), add)
    op.output("answer", totals, Answers(given.folder / "answer"))
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
    print(json.dumps({"records": given.records, "running_s": running_s}))


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
    for name in ("records", "keys", "multiplier", "workers"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--interval-s", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--addresses", default="")
    parser.add_argument("--index", type=int)
    given = parser.parse_args()
    if given.index is None:
        lead(given)
    else:
        work(given)


if __name__ == "__main__":
    main()
