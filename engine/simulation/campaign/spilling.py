"""Runs in which blocked channels spill: a fast and a slow branch into one task, aligned.

The slow branch delivers its barriers late, so that the fast branch's channels are blocked for long
and take in more than their windows. Where the alignment has a timeout, cuts name spilled records.

`check_memory`: what channels hold in memory is bounded, whatever they take in.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from headrace.channels.events import CheckpointMode
from headrace.channels.partitioners.hash import Hash
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.inflight.spill import SpillLimits

from ...worker.subtask import Subtask
from ...worker.subtask_spec import Limits
from ..coverage import Coverage
from ..jobs.graphs import MAX_PARALLELISM, Graph, Kind, TaskSpec
from ..jobs.reference import reference_of
from ..scheduler import MILLISECOND_NS, SECOND_NS
from ..watch import Violation
from .environment import Settings
from .faults import draw_profile, no_faults
from .scenario import Scenario

_HASH = Hash(("key",), MAX_PARALLELISM)
#: A record of these jobs is no larger.
_RECORD_BYTES = 200


def spill_scenario(seed: int) -> Scenario:
    """Return the run of a seed; every second one has faults."""
    rng = random.Random(f"spill {seed}")
    graph = _graph(rng)
    profile = draw_profile(rng) if seed % 2 else no_faults()
    return Scenario(graph, reference_of(graph), _settings(rng, graph), profile)


def _graph(rng: random.Random) -> Graph:
    parallelism = rng.randint(1, 3)
    tasks = (
        TaskSpec(Kind.SOURCE, parallelism),
        TaskSpec(Kind.SOURCE, parallelism),
        TaskSpec(Kind.MAP, parallelism, ((1, Rebalance()),)),
        TaskSpec(Kind.HISTORY, parallelism, ((0, _HASH), (2, _HASH))),
        TaskSpec(Kind.SINK, parallelism, ((3, _HASH),)),
    )
    return Graph(tasks, rows=rng.choice((60, 120)), keys=rng.choice((3, 8)), splits=4)


def _settings(rng: random.Random, graph: Graph) -> Settings:
    """Small windows, a slow branch, checkpoints from the start."""
    return Settings(
        mode=CheckpointMode.ALIGNED,
        limits=Limits(
            buffer_bytes=100,
            window_bytes=rng.choice((64, 200)),
            queue_bytes_max=rng.choice((64, 200)),
            work_rows_max=rng.choice((2, 4)),
            work_target_ns=20 * MILLISECOND_NS,
            alignment_timeout_ns=rng.choice((None, *(ms * MILLISECOND_NS for ms in (5, 15, 40)))),
            spill=SpillLimits(rng.choice((1, 100, 400)), rng.choice((4_000, 1 << 30, 1 << 30))),
        ),
        workers=rng.randint(1, graph.slots),
        heartbeat_ns=50 * MILLISECOND_NS,
        heartbeat_timeout_ns=200 * MILLISECOND_NS,
        checkpoint_interval_ns=rng.choice((10, 30)) * MILLISECOND_NS,
        checkpoint_timeout_ns=5 * SECOND_NS,
        tolerable_failures=1_000_000,
        retain=1,
        concurrent=rng.choice((1, 1, 2)),
        work_ns=(MILLISECOND_NS // 10, MILLISECOND_NS),
        slow_tasks=frozenset(rng.choice(((2,), (2, 3), (2, 4)))),
    )


def check_memory(subtasks: Iterable[Subtask], limits: Limits, cover: Coverage) -> None:
    """Check what the gates of subtasks hold in memory, beside what waits for a full batch."""
    if limits.spill is None:
        return
    run_bytes = limits.spill.run_bytes + _RECORD_BYTES
    for subtask in subtasks:
        if subtask._batches is not None:
            continue
        channels = subtask._gate.channels.values()
        held_bytes = sum(c.queued_bytes - c.spilled_bytes for c in channels)
        of_channels = len(channels) * (limits.window_bytes + _RECORD_BYTES)
        most_bytes = limits.spill.memory_bytes_max + 2 * run_bytes + of_channels
        if held_bytes > most_bytes:
            raise Violation(f"{subtask.id} holds {held_bytes} bytes in memory of {most_bytes}")
        cover.count("looks at the memory of gates that spill")
