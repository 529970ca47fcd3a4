"""Mode equivalence: the same seed, job and input in every checkpoint mode show the same output.

Without faults, since at-least-once may repeat records only after a failure. Each run is compared
with the reference as always; besides, the sinks' output is compared between modes: all records as a
multiset, and the records of each key in order, along paths that keep the order. So a mistake of the
reference cannot hide a difference.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace

from headrace.channels.events import CheckpointMode

from ..jobs.source import ID_SPAN
from ..scheduler import MILLISECOND_NS
from .scenario import Scenario, draw_scenario
from .world import Report, World

#: Output to compare: (multiset of records by sink, {sink, its subtask, key, source, split, path:
#: records in order}).
Output = tuple[Counter[tuple[str, int, int, int]], dict[tuple[str | int, ...], list[int]]]


def variants(seed: int) -> dict[str, Scenario]:
    """Return a seed's scenario in every mode, with either way to write in-flight data.

    At one parallelism and without faults.
    """
    rng = random.Random(f"scenario {seed}")
    drawn = draw_scenario(rng, faults=False, mode=CheckpointMode.ALIGNED)

    def variant(
        mode: CheckpointMode, *, timeout_ns: int | None = None, logs: bool = False
    ) -> Scenario:
        limits = replace(drawn.settings.limits, alignment_timeout_ns=timeout_ns, logs=logs)
        settings = replace(drawn.settings, mode=mode, limits=limits)
        if mode is CheckpointMode.AT_LEAST_ONCE:
            # A job restored from a savepoint of this mode may count some records twice.
            settings = replace(settings, savepoints=0)
        return replace(drawn, settings=settings, rescales=())

    return {
        "aligned": variant(CheckpointMode.ALIGNED),
        "unaligned": variant(CheckpointMode.UNALIGNED),
        "unaligned with a log": variant(CheckpointMode.UNALIGNED, logs=True),
        "aligned with a timeout": variant(CheckpointMode.ALIGNED, timeout_ns=2 * MILLISECOND_NS),
        "at least once": variant(CheckpointMode.AT_LEAST_ONCE),
    }


def compare_modes(seed: int) -> Report:
    """Run a seed in every mode; the report is of all runs together."""
    total = Report(seed, "", "", 0, 0, {})
    outputs: dict[str, Output] = {}
    for name, scenario in variants(seed).items():
        world = World(seed, scenario)
        report = world.run()
        outputs[name] = _output(world)
        difference = report.violation or _difference(*next(iter(outputs.items())), outputs[name])
        total = Report(
            seed,
            total.violation or (f"{name}: {difference}" if difference else ""),
            total.trace_hash or report.trace_hash,
            total.steps + report.steps,
            total.virtual_ns + report.virtual_ns,
            dict(Counter(total.coverage) + Counter(report.coverage)),
        )
    return total


def _output(world: World) -> Output:
    records: Counter[tuple[str, int, int, int]] = Counter()
    orders: defaultdict[tuple[str | int, ...], list[int]] = defaultdict(list)
    reference, splits = world.scenario.reference, world.scenario.graph.splits
    for sink in reference.sinks:
        for subtask, (id, key, path, *_) in world.env.sinks.rows(sink):
            if path not in reference.pooled:
                records[sink, id, key, path] += 1
            if path in reference.ordered:
                split = id % ID_SPAN % splits if splits else 0
                orders[sink, subtask, key, id // ID_SPAN, split, path].append(id)
    return records, dict(orders)


def _difference(first: str, expected: Output, found: Output) -> str:
    """Return how `found` differs from the output of the mode `first`; empty: not at all."""
    missing, extra = expected[0] - found[0], found[0] - expected[0]
    if missing or extra:
        return f"{first} shows {dict(missing)} more, {dict(extra)} less"
    for where, ids in expected[1].items():
        if ids != found[1].get(where):
            return f"{first} shows {ids} at {where}, not {found[1].get(where)}"
    return ""
