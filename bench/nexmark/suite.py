"""Nexmark: the queries that streams answer without SQL, in this engine and in others.

Question: events per second of a query over a fixed number of events, with checkpoints at an
interval; unit: events per second of wall time between the moment when all workers run and the end
of the job. All kinds of events count, also those that a query does not look at. Every answer is
compared, row by row, with an independent computation (`reference.py`).

A round runs each query in all engines, one after the other; the results are medians of the rounds.
All engines make the same events from their numbers, while they are measured. Engines whose records
are Python objects take a tenth of the events.

Noise: machines are shared; compare figures of one run only, as ratios.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import headrace as hr
from headrace.engine.contract.options import Runner
from headrace.engine.contract.units import duration_ns

from ..measure import run_and_measure
from ..peers.environments import HERE, java_of, python_of
from ..peers.suite import Failed, Peer, output_of, prepare
from . import events
from .answers import of_lines, of_table, sink_of
from .queries import QUERIES, Events
from .reference import Answer, expected

#: The other engines.
PEERS = (
    Peer(
        "flink",
        lambda: [*java_of("flink_nexmark"), "Nexmark"],
        "Flink SQL; task managers in one process, TCP between them; state on the heap; answers of"
        " query 4 change with each bid",
    ),
    Peer(
        "bytewax",
        lambda: [*python_of("bytewax==0.21.1", "numpy==2.4.6"), str(HERE / "bytewax_nexmark.py")],
        "records are Python tuples, keys strings; queries 4, 5, 7 and 8 answer when the input ends;"
        " a tenth of the events",
        share=10,
    ),
)
OURS = Peer("headrace", list, "nothing")


@dataclass(frozen=True, slots=True)
class Work:
    """What each engine does.

    Attributes:
        interval: of checkpoints, such as "1s"; None: none.
    """

    parallelism: int
    runner: Runner
    interval: str | None
    seed: int = 0

    @property
    def interval_s(self) -> float:
        """The interval in seconds; 0: no checkpoints."""
        if self.interval is None:
            return 0.0
        return duration_ns(self.interval, option="--checkpoint-interval") / 1e9


def run(
    *,
    queries: Sequence[int] = tuple(QUERIES),
    events: int = 2_000_000,
    parallelism: int = 2,
    runner: Runner = "processes",
    checkpoint_interval: str | None = "1s",
    rounds: int = 1,
    peers: Sequence[str] = (),
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[dict[str, Any]]:
    """Run all rounds, then yield one flat object for each query and engine.

    An engine that cannot be installed is reported in one sentence and has no object, and likewise a
    query that fails in another engine.

    Args:
        peers: names of other engines.
        report: takes sentences about the way.
    """
    work = Work(parallelism, runner, checkpoint_interval)
    commands = prepare([peer for peer in PEERS if peer.name in peers], report)
    found: dict[tuple[int, Peer], list[dict[str, Any]]] = {}
    answers: dict[tuple[int, int], Answer] = {}
    for number in range(rounds):
        for query in queries:
            for engine, command in [(OURS, []), *commands.items()]:
                count = rounded(events // engine.share, parallelism)
                if (query, count) not in answers:
                    answers[query, count] = expected(query, count)
                try:
                    result = run_once(work, query, count, command)
                except Failed as failure:
                    report(f"query {query} is left out in {engine.name}: {failure}")
                    continue
                result["correct"] = result.pop("answer") == answers[query, count]
                found.setdefault((query, engine), []).append(result)
                per_s = result["events"] / result["running_s"]
                report(f"round {number + 1}, query {query}, {engine.name}: {per_s:,.0f}/s")
    for (query, engine), results in found.items():
        yield summary(work, query, engine, results)


def rounded(count: int, parallelism: int) -> int:
    """The next whole number of subtasks' shares, each of whole runs of 50 events."""
    step = events.EVENTS * parallelism
    return max(1, -(-count // step)) * step


def run_once(work: Work, query: int, count: int, command: Sequence[str]) -> dict[str, Any]:
    """Run one query in one engine: by the `command` of another, or here. Raises Failed."""
    folder = Path(tempfile.mkdtemp(prefix="headrace-nexmark-"))
    try:
        if command:
            result = run_other(work, query, count, folder, command)
        else:
            result = run_ours(work, query, count, folder)
        return {"events": count, **result}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_ours(work: Work, query: int, count: int, folder: Path) -> dict[str, Any]:
    """Run a query here."""
    made = Events(hr.read.sequence(count, keys=None, name="numbers"), work.seed)
    job = hr.Job(
        f"nexmark-{query}",
        sink_of(query, QUERIES[query](made)),
        parallelism=work.parallelism,
        checkpoints=None
        if work.interval is None
        else hr.Checkpoints(str(folder / "checkpoints"), interval=work.interval),
    )
    measured = run_and_measure(job, work.runner)
    return {
        "running_s": measured.running_s,
        "checkpoints": measured.checkpoints(work.interval)["checkpoints"],
        "answer": of_table(query, measured.result.collected["out"]),
    }


def run_other(
    work: Work, query: int, count: int, folder: Path, command: Sequence[str]
) -> dict[str, Any]:
    """Run a query in another engine, a process. Raises Failed."""
    (folder / "answer").mkdir()
    words = {
        "query": query,
        "events": count,
        "seed": work.seed,
        "workers": work.parallelism,
        "interval-s": work.interval_s,
        "folder": folder,
    }
    arguments = [str(word) for name, value in words.items() for word in (f"--{name}", value)]
    result: dict[str, Any] = json.loads(output_of([*command, *arguments]))
    return {**result, "answer": of_lines(query, folder / "answer")}


def summary(
    work: Work, query: int, engine: Peer, results: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return medians over the rounds, and the range."""
    rates = sorted(round(each["events"] / each["running_s"]) for each in results)
    return {
        "bench": "nexmark",
        "query": query,
        "engine": engine.name,
        "events": results[-1]["events"],
        "events_per_s": round(median(rates)),
        "events_per_s_min": rates[0],
        "events_per_s_max": rates[-1],
        "correct": all(each["correct"] for each in results),
        "parallelism": work.parallelism,
        "runner": work.runner if engine is OURS else None,
        "checkpoint_interval": work.interval,
        "checkpoints": results[-1].get("checkpoints"),
        "rounds": len(results),
        "differs": engine.differs,
    }
