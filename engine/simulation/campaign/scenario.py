"""Scenarios: the meaning of a seed, drawn before the run begins: the job, its settings, its faults.

Later additions are drawn apart (`rng.getstate()`, draw, `rng.setstate()`), so that a seed keeps its
other draws.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from headrace.channels.connection_room import RoomLimits
from headrace.channels.credit import Debloat
from headrace.channels.events import CheckpointMode
from headrace.inflight.log import USUAL, LogLimits
from headrace.inflight.spill import SpillLimits

from ...worker.subtask_spec import Limits
from ..jobs.asks import with_asks
from ..jobs.batches import with_batches
from ..jobs.failing import with_failures
from ..jobs.graphs import Graph, draw_graph, with_ranges
from ..jobs.loops import with_loops
from ..jobs.reference import Reference, reference_of
from ..jobs.timed_graphs import with_later_kinds, with_time
from ..jobs.versions import Rescale, draw_rescales, rescalable, with_changes
from ..scheduler import MILLISECOND_NS, SECOND_NS
from .environment import Settings
from .faults import FaultProfile, draw_profile, no_faults

_MODES = (
    *[CheckpointMode.ALIGNED] * 5,
    *[CheckpointMode.UNALIGNED] * 5,
    CheckpointMode.AT_LEAST_ONCE,
)
#: Share of the runs in which the job goes on at another parallelism.
_RESCALED = 0.35
#: Share of the runs with databases in which some checkpoints are full.
_FULL = 0.2
#: Share of the runs that somebody drains.
_DRAINED = 0.12
#: Share of the runs in which connections have little room.
_NARROW = 0.3
#: Share of the runs in which blocked channels and back-edges spill.
_SPILLED = 0.4
#: Most records that a run's tasks may handle in all, so that a run stays short.
_ROWS_MAX = 1200


@dataclass(frozen=True, slots=True)
class Scenario:
    """The meaning of a seed.

    Attributes:
        rescales: the versions of the job after the first, in order.
        drain_ns: when a user asks for the end of input; None: never.
    """

    graph: Graph
    reference: Reference
    settings: Settings
    profile: FaultProfile
    rescales: tuple[Rescale, ...] = ()
    drain_ns: int | None = None


def draw_scenario(
    rng: random.Random,
    *,
    faults: bool = True,
    mode: CheckpointMode | None = None,
) -> Scenario:
    """Draw job, settings and faults."""
    words = ("later", "batches", "asks", "failing", "full", "narrow", "spill", "loops")
    beside = [_beside(rng, word) for word in words]
    later, batches, asks, failing, full, narrow, spill, loops = beside
    drawn = rng.choice(_MODES)
    mode = mode or drawn
    exact = mode is not CheckpointMode.AT_LEAST_ONCE
    graph = draw_graph(rng, keyed_totals=exact)
    graph, _ = _bounded(graph)
    settings = _with_full(_draw_settings(rng, graph, mode), full)
    settings = _with_spilling(_with_narrow_connections(settings, narrow), spill)
    profile = draw_profile(rng) if faults else no_faults()
    state = rng.getstate()
    drain_ns = rng.randint(1, 80) * MILLISECOND_NS if rng.random() < _DRAINED else None
    rng.setstate(state)
    rescales: tuple[Rescale, ...] = ()
    if rng.random() < _RESCALED:
        rows = rng.choice((24, 60, 120))
        graph = replace(graph, rows=rows, splits=rng.randint(1, 8))
        graph, _ = _bounded(rescalable(graph, rng, gather=exact))
        rescales = draw_rescales(rng, graph)
    # Last, and so apart.
    graph, _ = _bounded(with_ranges(with_time(graph, rng, exact=exact), rng))
    graph = with_later_kinds(graph, later) if exact else graph
    graph, rescales = with_changes(graph, rescales, later)
    graph = with_asks(with_batches(graph, batches), asks)
    graph, rescales = with_failures(graph, rescales, failing)
    graph, rescales = with_loops(graph, rescales, loops)
    graph, reference = _bounded(graph)
    return Scenario(graph, reference, settings, profile, rescales, drain_ns)


def _beside(rng: random.Random, word: str) -> random.Random:
    """Return a separate stream that follows from `rng` and leaves `rng` unchanged."""
    state = rng.getstate()
    beside = random.Random(f"{rng.random()}/{word}")
    rng.setstate(state)
    return beside


def _with_full(settings: Settings, rng: random.Random) -> Settings:
    """Have some checkpoints share no file with older ones, as others do of databases."""
    if not settings.databases or rng.random() >= _FULL:
        return settings
    return replace(settings, full_every=rng.choice((1, 1, 1, 2)))


def _bounded(graph: Graph) -> tuple[Graph, Reference]:
    """Return the graph with few enough records for a short run, and the mandatory output."""
    reference = reference_of(graph)
    while reference.total_rows > _ROWS_MAX and graph.rows > 2:
        graph = replace(graph, rows=graph.rows // 2)
        reference = reference_of(graph)
    return graph, reference


def _with_narrow_connections(settings: Settings, rng: random.Random) -> Settings:
    if rng.random() >= _NARROW:
        return settings
    floor_bytes = rng.choice((16, 64, 400))
    limits = RoomLimits(20 * MILLISECOND_NS, floor_bytes, floor_bytes * rng.choice((1, 4)))
    return replace(settings, limits=replace(settings.limits, connection=limits))


def _with_spilling(settings: Settings, rng: random.Random) -> Settings:
    if rng.random() >= _SPILLED:
        return settings
    spill = SpillLimits(rng.choice((1, 64, 400)), 1 << 30)
    return replace(settings, limits=replace(settings.limits, spill=spill))


def _draw_settings(rng: random.Random, graph: Graph, mode: CheckpointMode) -> Settings:
    slots = max(task.parallelism for task in graph.tasks)
    tasks = len(graph.tasks)
    # Later settings are drawn apart, so that a seed keeps its other draws.
    state = rng.getstate()
    alignment_timeout_ns = rng.choice((None, None, 0, 2, 20))
    debloat = rng.choice((None, Debloat(20 * MILLISECOND_NS, floor_bytes=16)))
    concurrent = rng.choice((1, 1, 2, 3))
    log = rng.choice((None, None, LogLimits(64, 200, 1000), LogLimits(400, 400, 4000)))
    savepoints = rng.choice((0, 0, 0, 1, 3))
    databases = rng.sample(range(tasks), rng.randint(1, tasks)) if rng.random() < 0.3 else ()
    claim_after = rng.choice((None, None, None, None, 1, 2, 4))
    budget_bytes = rng.choice((1 << 62, 1 << 62, 4000, 600))
    rng.setstate(state)
    slow = rng.sample(range(tasks), 1) if rng.random() < 0.3 else []
    timeout_ns = rng.choice((40, 300, 5000)) * MILLISECOND_NS
    # Where a checkpoint may well expire, expiring must not fail the attempt, or some jobs would
    # never get anywhere.
    patient = timeout_ns > SECOND_NS
    return Settings(
        mode=mode,
        limits=Limits(
            buffer_bytes=rng.choice((100, 400, 2000)),
            window_bytes=rng.choice((64, 400, 2000)),
            queue_bytes_max=rng.choice((64, 400, 2000)),
            work_rows_max=rng.choice((1, 4, 16, 64)),
            work_target_ns=20 * MILLISECOND_NS,
            debloat=debloat,
            budget_bytes=budget_bytes,
            alignment_timeout_ns=None
            if alignment_timeout_ns is None
            else alignment_timeout_ns * MILLISECOND_NS,
            compresses=log is not None and log.piece_bytes < 100,
            logs=log is not None and mode is not CheckpointMode.AT_LEAST_ONCE,
        ),
        workers=rng.randint(1, slots),
        heartbeat_ns=50 * MILLISECOND_NS,
        heartbeat_timeout_ns=200 * MILLISECOND_NS,
        checkpoint_interval_ns=rng.choice((10, 30, 80)) * MILLISECOND_NS,
        checkpoint_timeout_ns=timeout_ns,
        tolerable_failures=rng.choice((0, 2)) if patient else 1_000_000,
        retain=rng.choice((1, 1, 2, 3)),
        concurrent=concurrent,
        work_ns=(MILLISECOND_NS // 10, rng.choice((1, 5)) * MILLISECOND_NS),
        slow_tasks=frozenset(slow),
        log=log or USUAL,
        savepoints=savepoints,
        databases=frozenset(databases),
        claim_after=claim_after,
    )
