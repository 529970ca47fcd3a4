"""The keyed count in Pathway: two processes of one thread each.

The suite runs this file with the Python of Pathway's environment, so it imports nothing of ours.
Only one of the processes reads a Python source, row by row. Pathway writes the changes of each
minibatch, here one a second; the answer is the row of each key that no later change took back. With
an interval it stores the input and not the state, which needs a licence key.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from pathlib import Path

import pathway as pw

PAYLOAD = bytes(range(76))


class Record(pw.Schema):  # type: ignore[misc]
    """Columns of the source."""

    key: int
    timestamp: int
    sequence: int
    payload: bytes


class Numbers(pw.io.python.ConnectorSubject):  # type: ignore[misc]
    """The records; nothing is ever taken back."""

    deletions_enabled = False

    def __init__(self, records: int, keys: int, multiplier: int) -> None:
        super().__init__()
        self._records, self._keys, self._multiplier = records, keys, multiplier

    def run(self) -> None:
        """Make all records."""
        for number in range(self._records):
            self.next(
                key=number * self._multiplier % self._keys,
                timestamp=number * 1000,
                sequence=number,
                payload=PAYLOAD,
            )


def work(given: argparse.Namespace) -> None:
    """Be one process of the cluster; print when it began and ended."""
    numbers = Numbers(given.records, given.keys, given.multiplier)
    records = pw.io.python.read(
        numbers, schema=Record, name="sequence", autocommit_duration_ms=1000
    )
    totals = records.groupby(pw.this.key).reduce(
        pw.this.key, n=pw.reducers.count(), total=pw.reducers.sum(pw.this.sequence)
    )
    pw.io.csv.write(totals, str(given.folder / "changes.csv"))
    persistence = None
    if given.interval_s:
        persistence = pw.persistence.Config(
            pw.persistence.Backend.filesystem(str(given.folder / "state")),
            snapshot_interval_ms=round(given.interval_s * 1000),
        )
    began = time.monotonic()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=persistence)
    print(json.dumps({"began": began, "ended": time.monotonic()}), flush=True)


def lead(given: argparse.Namespace) -> None:
    """Start the processes, await them, write the answer and print the result."""
    environment = os.environ | {
        "PATHWAY_THREADS": "1",
        "PATHWAY_PROCESSES": str(given.workers),
        "PATHWAY_RUN_ID": str(uuid.uuid4()),
        "PATHWAY_FIRST_PORT": str(first_port(given.workers)),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, *sys.argv, "--index", str(index)],
            stdout=subprocess.PIPE,
            env=environment | {"PATHWAY_PROCESS_ID": str(index)},
        )
        for index in range(given.workers)
    ]
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a process of Pathway failed")
    times = [json.loads(text.splitlines()[-1]) for text in said]
    write_answer(given.folder)
    running_s = max(t["ended"] for t in times) - max(t["began"] for t in times)
    print(json.dumps({"records": given.records, "running_s": running_s}))


def write_answer(folder: Path) -> None:
    """Add up the changes and write what is left."""
    left: Counter[tuple[str, str, str]] = Counter()
    with (folder / "changes.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            left[row["key"], row["n"], row["total"]] += int(row["diff"])
    with (folder / "answer" / "all.csv").open("w") as out:
        out.writelines(f"{','.join(row)}\n" * count for row, count in left.items())


def first_port(count: int) -> int:
    """Find so many free ports of the loopback interface that follow each other."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as chosen:
            first: int = chosen.getsockname()[1]
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except (OSError, OverflowError):
            continue
        return first


def main() -> None:
    """Lead, or be the process of an index."""
    parser = argparse.ArgumentParser()
    for name in ("records", "keys", "multiplier", "workers"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--interval-s", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--index", type=int)
    given = parser.parse_args()
    if given.index is None:
        lead(given)
    else:
        work(given)


if __name__ == "__main__":
    main()
