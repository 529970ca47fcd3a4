"""The same keyed count in other engines, interleaved with ours on one machine.

Question: records per second of `sequence -> key by -> count and sum`, two workers, without
checkpoints and with one each second; unit: records per second of wall time between the moment when
all workers run and the end of the job. A record is an int64 key of 100,000, an int64 timestamp, an
int64 sequence and 76 bytes of payload. Every answer is compared key by key.

Each run is a process of its own, a file of this folder, that gets its task as arguments and prints
one JSON object. A round runs all peers one after the other, without checkpoints and then with; the
results are medians of the rounds. Engines whose records are Python objects count a twentieth of the
records, so that all arms take seconds. What differs in the work is told with each result.

Noise: machines are shared; compare figures of one run only, as ratios.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from pyarrow import csv

from ..count import KEYS
from .environments import HERE, Unavailable, java_of, python_of

WORKERS = 2
MULTIPLIER = 1_640_531_527
INTERVALS_S = (0.0, 1.0)
RUN_S_MAX = 900

#: The line of an exception in Python and in Java.
ERROR = re.compile(r"[\w.]+(?:Error|Exception): ")


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine that does the work.

    Attributes:
        command: makes its environment where there is none, and returns how to run it.
        share: it counts one of so many records.
        differs: how its work differs from ours.
    """

    name: str
    command: Callable[[], list[str]]
    differs: str
    share: int = 1


PEERS = (
    Peer(
        "headrace",
        lambda: [sys.executable, "-m", "headrace.bench.peers.headrace_count"],
        "nothing: two processes",
    ),
    Peer(
        "flink",
        lambda: [*java_of("flink"), "KeyedCount"],
        "Java; two task managers in one process, TCP between them; aligned checkpoints",
    ),
    Peer(
        "spark",
        lambda: [sys.executable, str(HERE / "spark_count.py")],
        "two executors; micro-batches, each a checkpoint; 'none' is one micro-batch of all"
        " records, '1s' batches of what 'none' counts in a second; planning and JIT are counted",
    ),
    Peer(
        "bytewax",
        lambda: [*python_of("bytewax==0.21.1"), str(HERE / "bytewax_count.py")],
        "two processes; records are Python tuples, keys strings; a twentieth of the records",
        share=20,
    ),
    Peer(
        "pathway",
        lambda: [*python_of("pathway==0.33.0"), str(HERE / "pathway_count.py")],
        "two processes, one of which reads, row by row; changes go out each second; '1s' stores the"
        " input, not the state; a twentieth of the records",
        share=20,
    ),
)
NAMES = tuple(peer.name for peer in PEERS)


class Failed(Exception):
    """A run ended without an answer."""


def run(
    *,
    only: Sequence[str] = (),
    records: int = 30_000_000,
    rounds: int = 3,
    report: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Run all rounds, then yield one flat object for each peer and interval.

    A peer that cannot be installed, or whose run fails, is reported in one sentence and has no
    object.

    Args:
        only: names of peers; none: all.
        report: takes sentences about the way.
    """
    commands = prepare([peer for peer in PEERS if peer.name in (only or NAMES)], report)
    found: dict[tuple[Peer, float], list[dict[str, Any]]] = {}
    for number in range(rounds):
        for peer in list(commands):
            try:
                for arm, result in round_of(peer, commands[peer], records):
                    found.setdefault(arm, []).append(result)
                    per_s = result["records"] / result["running_s"]
                    report(f"round {number + 1}, {peer.name}, {label(arm[1])}: {per_s:,.0f}/s")
            except Failed as failure:
                report(f"{peer.name} is left out: {failure}")
                del commands[peer]
    for (peer, interval_s), results in found.items():
        if peer in commands:
            yield summary(peer, interval_s, results)


def prepare(peers: Sequence[Peer], report: Callable[[str], None]) -> dict[Peer, list[str]]:
    """Return the command of each peer that can run here."""
    commands = {}
    for peer in peers:
        try:
            commands[peer] = peer.command()
        except Unavailable as missing:
            report(f"{peer.name} is skipped: {missing}")
    return commands


def round_of(
    peer: Peer, command: Sequence[str], records: int
) -> Iterator[tuple[tuple[Peer, float], dict[str, Any]]]:
    """Run every arm of one peer; an arm is told the rate of the one before."""
    rate: float | None = None
    for interval_s in INTERVALS_S:
        result = run_once(command, max(1, records // peer.share), interval_s, rate)
        rate = result["records"] / result["running_s"]
        yield (peer, interval_s), result


def run_once(
    command: Sequence[str], records: int, interval_s: float, rate: float | None
) -> dict[str, Any]:
    """Run one process to its end and check its answer. Raises Failed."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-peers-"))
    try:
        (folder / "answer").mkdir()
        words = {
            "records": records,
            "keys": KEYS,
            "multiplier": MULTIPLIER,
            "workers": WORKERS,
            "interval-s": interval_s,
            "folder": folder,
        } | ({"rate": rate} if rate else {})
        arguments = [str(word) for name, value in words.items() for word in (f"--{name}", value)]
        result: dict[str, Any] = json.loads(output_of([*command, *arguments]))
        if "correct" not in result:
            result["correct"] = correct(folder / "answer", result["records"])
        return result
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def output_of(command: Sequence[str]) -> str:
    """Return the last line that a process prints. Raises Failed with the first error that it told,
    or else its last word.

    The process leads a session, so that its children end with it when it takes too long.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
    )
    try:
        out, errors = process.communicate(timeout=RUN_S_MAX)
    except subprocess.TimeoutExpired:
        raise Failed(f"it took more than {RUN_S_MAX} s: ask for fewer --records") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode or not out.strip():
        said = errors.strip().splitlines() or ["no word of error"]
        told = next((line for line in said if ERROR.match(line)), said[-1])
        raise Failed(f"it ended with exit code {process.returncode}: {told}")
    return out.strip().splitlines()[-1]


def correct(folder: Path, records: int) -> bool:
    """Whether the lines `key,count,sum` of all files of a folder are the answer."""
    names = csv.ReadOptions(column_names=["key", "n", "total"])
    files = [path for path in sorted(folder.glob("*.csv")) if path.stat().st_size]
    rows = [csv.read_csv(path, read_options=names) for path in files]
    found = {
        name: np.concatenate([table[name].to_numpy() for table in rows]) if rows else np.array([])
        for name in ("key", "n", "total")
    }
    numbers = np.arange(records, dtype=np.int64)
    keys = numbers * MULTIPLIER % KEYS
    counts = np.bincount(keys, minlength=KEYS)
    totals = np.zeros(KEYS, dtype=np.int64)
    np.add.at(totals, keys, numbers)
    order, present = np.argsort(found["key"]), np.flatnonzero(counts)
    return (
        np.array_equal(found["key"][order], present)
        and np.array_equal(found["n"][order], counts[present])
        and np.array_equal(found["total"][order], totals[present])
    )


def summary(peer: Peer, interval_s: float, results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return medians over the rounds, and the range."""
    rates = sorted(round(each["records"] / each["running_s"]) for each in results)
    return {
        "bench": "peers",
        "peer": peer.name,
        "checkpoint_interval": label(interval_s),
        "records": results[-1]["records"],
        "records_per_s": round(median(rates)),
        "records_per_s_min": rates[0],
        "records_per_s_max": rates[-1],
        "checkpoints": results[-1].get("checkpoints"),
        "correct": all(each["correct"] for each in results),
        "rounds": len(results),
        "differs": peer.differs,
    }


def label(interval_s: float) -> str:
    """The word for an interval."""
    return f"{interval_s:g}s" if interval_s else "none"
