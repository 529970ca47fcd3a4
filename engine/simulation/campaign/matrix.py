"""The rescale matrix: every pair of parallelisms, over every kind of edge, with full queues.

    python -m headrace.engine.simulation.campaign.matrix --seeds 200
    python -m headrace.engine.simulation.campaign.matrix --seeds 60 --operators
    python -m headrace.engine.simulation.campaign.matrix --seeds 30 --chains
    python -m headrace.engine.simulation.campaign.matrix --pair 3:5 --seed 17 --trace

A run is a small job with backpressure and unaligned checkpoints that goes from one parallelism to
another. Every third run goes back amid the replay, so that filters are stacked; every fourth run
has faults. The seed names the edge, or, with --operators, the operator that reads the edge, or,
with --chains, the keyed task and the forward edges behind it.

Exit code 0: no violation, and every pair had records in flight at its rescale; 3: otherwise.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace

from headrace.channels.events import CheckpointMode
from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.custom import Custom
from headrace.channels.partitioners.forward import Forward
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.partitioner import Partitioner
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.channels.partitioners.shuffle import Shuffle

from ...worker.subtask_spec import Limits
from ..jobs.graphs import MAX_PARALLELISM, RANGES, Graph, Kind, TaskSpec, by_key
from ..jobs.reference import reference_of
from ..jobs.versions import Ending, Rescale
from ..scheduler import MILLISECOND_NS, SECOND_NS
from .campaign import chunks_of, prepare_process, quiet, uncollected
from .environment import Settings
from .faults import draw_profile, no_faults
from .scenario import Scenario
from .world import Report, World

PARALLELISM_MAX = 8
#: Seeds of one pair, when nothing else is said.
SEEDS = 200
EXIT_FOUND = 3
_HASH = Hash(("key",), MAX_PARALLELISM)
_CUSTOM = Custom(by_key)

#: {name: (reader of the edges, the edges: (source, partitioner))}
EDGES: dict[str, tuple[Kind, tuple[tuple[int, Partitioner], ...]]] = {
    "forward": (Kind.MAP, ((0, Forward()),)),
    "rebalance": (Kind.MAP, ((0, Rebalance()),)),
    "shuffle": (Kind.MAP, ((0, Shuffle()),)),
    "hash": (Kind.HISTORY, ((0, _HASH),)),
    "custom": (Kind.MAP, ((0, _CUSTOM),)),
    "broadcast": (Kind.GATHER, ((0, Broadcast()),)),
    "union of two sources": (Kind.HISTORY, ((0, _HASH), (1, _HASH))),
    "the same source twice": (Kind.MAP, ((0, _CUSTOM), (0, _HASH))),
    "mixed exchanges": (Kind.MAP, ((0, _CUSTOM), (1, Rebalance()), (0, Forward()))),
}

#: Tasks between the source and the sink, each with its edge from the task before: an edge without
#: a choice of its own behind a keyed task, and one or two further on.
CHAINS: dict[str, tuple[tuple[Kind, Partitioner], ...]] = {
    "forward between keyed": ((Kind.HISTORY, _HASH), (Kind.MAP, Forward()), (Kind.HISTORY, _HASH)),
    "forward to the sink": ((Kind.HISTORY, _HASH), (Kind.MAP, Forward())),
    "two forwards": (
        (Kind.HISTORY, _HASH),
        (Kind.MAP, Forward()),
        (Kind.DROP, Forward()),
        (Kind.HISTORY, _HASH),
    ),
}

#: Likewise for operators that look at time or at a second stream, with state in databases in every
#: second run.
OPERATORS: dict[str, tuple[Kind, tuple[tuple[int, Partitioner], ...]]] = {
    "windows": (Kind.SLIDING, ((0, _HASH),)),
    "sessions": (Kind.SESSIONS, ((0, _HASH),)),
    "join": (Kind.JOIN, ((0, _HASH), (1, _HASH))),
    "join of windows": (Kind.WINDOW_JOIN, ((0, _HASH), (1, _HASH))),
    "join of sessions": (Kind.SESSION_JOIN, ((0, _HASH), (1, _HASH))),
    "co-processor": (Kind.CO_PROCESS, ((0, _HASH), (1, _HASH))),
    "declared state with a ttl": (Kind.LIVES, ((0, _HASH),)),
    "aggregate with a ttl": (Kind.EXPIRING, ((0, _HASH),)),
    "connect": (Kind.CONNECT, ((0, _HASH), (1, Broadcast()))),
    "alarms": (Kind.ALARMS, ((0, _HASH),)),
}


def pair_scenario(
    seed: int, old: int, new: int, *, operators: bool = False, chains: bool = False
) -> Scenario:
    """Return the run of a seed: its job at parallelism `old`, then `new`."""
    edges = OPERATORS if operators else EDGES
    rng = random.Random(f"pair {old} {new} {seed}")
    graph = _graph(edges[list(edges)[seed % len(edges)]], old, rng)
    if chains:
        graph = _chain(CHAINS[list(CHAINS)[seed % len(CHAINS)]], old, rng)
    if seed // len(edges) % 2:
        graph = _by_ranges(graph)
    chain = [new, old] if seed % 3 == 0 else [new]
    rescales = tuple(
        Rescale(
            ending=rng.choice((Ending.STOP, Ending.STOP, Ending.KILL)),
            checkpoints=1,
            delay_ns=rng.choice((0, 0, 4)) * MILLISECOND_NS,
            parallelism=_per_task(graph, parallelism, rng),
            workers=rng.randint(1, parallelism),
        )
        for parallelism in chain
    )
    profile = draw_profile(rng) if seed % 4 == 3 else no_faults()
    settings = _settings(rng, graph)
    if operators and seed // len(edges) % 2:
        settings = replace(settings, databases=frozenset(range(len(graph.tasks))))
    return Scenario(graph, reference_of(graph), settings, profile, rescales)


def _graph(
    read: tuple[Kind, tuple[tuple[int, Partitioner], ...]], parallelism: int, rng: random.Random
) -> Graph:
    kind, inputs = read
    sources = 1 + max(source for source, _ in inputs)
    tasks = [TaskSpec(Kind.SOURCE, parallelism) for _ in range(sources)]
    tasks.append(TaskSpec(kind, parallelism, inputs))
    tasks.append(
        TaskSpec(Kind.SINK, parallelism, ((len(tasks) - 1, rng.choice((_HASH, _CUSTOM))),))
    )
    return Graph(tuple(tasks), rows=5 * PARALLELISM_MAX, keys=rng.choice((3, 8, 16)), splits=8)


def _chain(
    middle: tuple[tuple[Kind, Partitioner], ...], parallelism: int, rng: random.Random
) -> Graph:
    steps = [*middle, (Kind.SINK, Forward())]
    tasks = [TaskSpec(kind, parallelism, ((at, edge),)) for at, (kind, edge) in enumerate(steps)]
    source = TaskSpec(Kind.SOURCE, parallelism)
    return Graph((source, *tasks), rows=10 * PARALLELISM_MAX, keys=rng.choice((3, 8)), splits=2)


def _by_ranges(graph: Graph) -> Graph:
    """Return the job with ranges of the key in place of the custom function."""
    tasks = [
        replace(
            task,
            inputs=tuple((p, RANGES if edge is _CUSTOM else edge) for p, edge in task.inputs),
        )
        for task in graph.tasks
    ]
    return replace(graph, tasks=tuple(tasks))


def _per_task(graph: Graph, parallelism: int, rng: random.Random) -> tuple[int, ...]:
    """All tasks at this parallelism; in some runs the sources keep theirs."""
    kept = rng.random() < 0.25
    return tuple(
        task.parallelism if kept and task.kind is Kind.SOURCE else parallelism
        for task in graph.tasks
    )


def _settings(rng: random.Random, graph: Graph) -> Settings:
    """Small windows, slow consumers, checkpoints from the start."""
    return Settings(
        mode=CheckpointMode.UNALIGNED,
        limits=Limits(
            buffer_bytes=100,
            window_bytes=rng.choice((64, 400)),
            queue_bytes_max=rng.choice((64, 400)),
            work_rows_max=rng.choice((2, 4)),
            work_target_ns=20 * MILLISECOND_NS,
        ),
        workers=rng.randint(1, graph.slots),
        heartbeat_ns=50 * MILLISECOND_NS,
        heartbeat_timeout_ns=200 * MILLISECOND_NS,
        checkpoint_interval_ns=20 * MILLISECOND_NS,
        checkpoint_timeout_ns=5 * SECOND_NS,
        tolerable_failures=1_000_000,
        retain=1,
        concurrent=1,
        work_ns=(MILLISECOND_NS // 10, MILLISECOND_NS),
        slow_tasks=frozenset(range(1, len(graph.tasks))),
    )


# --- running --------------------------------------------------------------------------------------


@dataclass(slots=True)
class PairResult:
    """The results of all runs of a pair."""

    old: int
    new: int
    operators: bool = False
    chains: bool = False
    runs: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    violations: dict[int, str] = field(default_factory=dict)

    @property
    def in_flight(self) -> int:
        """Number of in-flight records in checkpoints."""
        sides = ("input", "output", "replay")
        return sum(self.counts[f"records persisted in flight, {side}"] for side in sides)

    @property
    def failed(self) -> bool:
        """A promise was broken, or no run was a proof."""
        return bool(self.violations) or not self.in_flight

    def add(self, report: Report) -> None:
        """Count one run."""
        self.runs += 1
        self.counts.update(report.coverage)
        if report.violation:
            self.violations[report.seed] = report.violation


def run_pair(
    old: int, new: int, seeds: Sequence[int], *, operators: bool = False, chains: bool = False
) -> PairResult:
    """Run the seeds of a pair, in this process."""
    result = PairResult(old, new, operators, chains)
    for chunk in chunks_of(seeds):
        with uncollected():
            for seed in chunk:
                scenario = pair_scenario(seed, old, new, operators=operators, chains=chains)
                result.add(World(seed, scenario).run())
    return result


def run_matrix(
    pairs: Iterable[tuple[int, int]],
    seeds: range,
    jobs: int,
    *,
    operators: bool = False,
    chains: bool = False,
) -> Iterator[PairResult]:
    """Run the seeds of all pairs in `jobs` processes; results come in the order of the pairs."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=prepare_process) as pool:
        futures = [
            pool.submit(run_pair, old, new, seeds, operators=operators, chains=chains)
            for old, new in pairs
        ]
        for future in futures:
            yield future.result()


# --- the command ----------------------------------------------------------------------------------


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="headrace-rescale-matrix", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="runs of each pair")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--pair", help="OLD:NEW, this pair alone")
    parser.add_argument("--seed", type=int, help="this seed of --pair alone")
    parser.add_argument("--operators", action="store_true", help="windows, joins, connect, alarms")
    parser.add_argument("--chains", action="store_true", help="forward edges behind keyed tasks")
    parser.add_argument("--trace", action="store_true", help="show what happens in --seed")
    return parser.parse_args()


def main() -> int:
    """Run the command; returns the exit code."""
    arguments = _arguments()
    every = range(1, PARALLELISM_MAX + 1)
    pairs = list(itertools.product(every, every))
    if arguments.pair:
        old, _, new = arguments.pair.partition(":")
        pairs = [(int(old), int(new))]
        if arguments.seed is not None:
            scenario = pair_scenario(
                arguments.seed,
                *pairs[0],
                operators=arguments.operators,
                chains=arguments.chains,
            )
            return _run_one(scenario, arguments.seed, print if arguments.trace else None)
    began_s, runs, failed = time.monotonic(), 0, 0
    for result in run_matrix(
        pairs,
        range(arguments.seeds),
        arguments.jobs,
        operators=arguments.operators,
        chains=arguments.chains,
    ):
        runs += result.runs
        failed += result.failed
        print(line_of(result), flush=True)
    print(f"{runs} runs, {time.monotonic() - began_s:.0f} s, {failed} of {len(pairs)} pairs failed")
    return EXIT_FOUND if failed else 0


def line_of(result: PairResult) -> str:
    """Format a pair in one line, and its first violations in a line each."""
    counts = result.counts
    line = (
        f"{result.old} -> {result.new}: {result.runs} runs, {counts['rescaled restores']} rescaled,"
        f" {result.in_flight} records in flight, {counts['records re-filtered']} filtered,"
        f" {counts['filters stacked twice']} filters stacked, {len(result.violations)} violations"
    )
    for seed, text in sorted(result.violations.items())[:3]:
        pair = f"--pair {result.old}:{result.new} --seed {seed}"
        command = f"python -m headrace.engine.simulation.campaign.matrix {pair} --trace"
        command += " --operators" * result.operators + " --chains" * result.chains
        line += f"\n  {command}\n    {text}"
    return line


def _run_one(scenario: Scenario, seed: int, show: Callable[[str], None] | None) -> int:
    quiet()
    if show is not None:
        show(f"{scenario.graph.describe()}\n{scenario.settings}\n{scenario.rescales}")
    report = World(seed, scenario, show=show).run()
    print(f"seed {seed}: {report.violation or 'no violation'}")
    return EXIT_FOUND if report.violation else 0


if __name__ == "__main__":
    sys.exit(main())
