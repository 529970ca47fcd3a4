"""How a planted bug is looked for, and how bugs of other systems are put back."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain

import pytest

from headrace.channels.events import CheckpointMode
from headrace.engine.coordinator.checkpoints import Checkpoints
from headrace.engine.simulation.campaign.faults import FaultProfile
from headrace.engine.simulation.campaign.matrix import (
    PARALLELISM_MAX,
    pair_scenario,
    run_pair,
)
from headrace.engine.simulation.campaign.scenario import draw_scenario
from headrace.engine.simulation.campaign.world import World, simulate
from headrace.engine.simulation.scheduler import MILLISECOND_NS, SECOND_NS

from .mutants import SLIPS, Mutant

#: Says what is wrong in run number `seed`; empty: nothing.
Search = Callable[[int], str]
#: Runs of which one at least must have persisted in-flight data.
_PAIR_SEEDS = 6
#: Runs of the short search, when the known one finds the bug no more.
_SHORT_SEEDS = 30
#: Runs of the long search before the known one.
_UNAIDED_SEEDS = 150


@dataclass(frozen=True, slots=True)
class Historical:
    """A bug of another system.

    Attributes:
        bug: its report.
        seed: the first that found it.
        plant: puts it into the engine.
        search: looks for it; called with `seed`, then with 0, 1, 2 and so on.
    """

    bug: str
    seed: int
    plant: Mutant
    search: Search


@dataclass(slots=True)
class Catalogue:
    """Bugs by the names of the functions that plant them."""

    bugs: dict[str, Historical]

    def __call__(
        self, bug: str, seed: int, search: Search | None = None
    ) -> Callable[[Mutant], Mutant]:
        """Enter a bug; `search`: when it is not the campaign."""

        def enter(plant: Mutant) -> Mutant:
            self.bugs[plant.__name__] = Historical(bug, seed, plant, search or by_campaign())
            return plant

        return enter


def assert_found(
    plant: Mutant,
    search: Search,
    known: int,
    patch: pytest.MonkeyPatch,
    *,
    seeds_max: int,
    long: bool,
) -> None:
    """Plant a bug and look for it, without finding anything before.

    Args:
        known: a run that found it. The short search begins with it, and tries few others. The long
            search begins without help, and tries up to `seeds_max`.
    """
    assert not search(known), "the engine is at fault, not the mutant"
    plant(patch)
    seeds = chain((known,), range(min(_SHORT_SEEDS, seeds_max)))
    if long:
        seeds = chain(range(min(_UNAIDED_SEEDS, seeds_max)), (known,), range(seeds_max))
    found = ((seed, violation) for seed in seeds if (violation := search(seed)))
    seed, violation = next(found, (known, ""))
    assert violation, "not found any more; `make mutants LONG=1` tries more runs"
    assert not violation.startswith(SLIPS), violation
    print(f"found by run {seed}: {violation}")


# --- searches -------------------------------------------------------------------------------------


def by_campaign(*, faults: bool = True, mode: CheckpointMode | None = None) -> Search:
    """Runs of the simulation."""

    def search(seed: int) -> str:
        return simulate(seed, faults=faults, mode=mode).violation

    return search


def by_matrix(seed: int) -> str:
    """A run with full queues that goes from one parallelism to another; the seed names the kind
    of edge.
    """
    rng = random.Random(f"matrix {seed}")
    old, new = rng.sample(range(1, PARALLELISM_MAX + 1), 2)
    return World(seed, pair_scenario(seed, old, new)).run().violation


def by_chains(seed: int) -> str:
    """The same over forward edges behind keyed tasks; every third run goes back amid the replay."""
    rng = random.Random(f"chains {seed}")
    old, new = rng.sample(range(1, 5), 2)
    return World(seed, pair_scenario(seed, old, new, chains=True)).run().violation


def impatient(mode: CheckpointMode) -> Search:
    """Runs whose checkpoints are mostly given up, because messages take longer than they are
    waited for.
    """

    def search(seed: int) -> str:
        scenario = draw_scenario(random.Random(f"scenario {seed}"), faults=False, mode=mode)
        settings = replace(
            scenario.settings,
            checkpoint_interval_ns=5 * MILLISECOND_NS,
            checkpoint_timeout_ns=30 * MILLISECOND_NS,
            heartbeat_timeout_ns=SECOND_NS,
            tolerable_failures=1_000_000,
        )
        late = FaultProfile(until_ns=400 * MILLISECOND_NS, network_delay_ns=40 * MILLISECOND_NS)
        return World(seed, replace(scenario, settings=settings, profile=late)).run().violation

    return search


def haunted(seed: int) -> str:
    """A run in which workers that were given up keep on knocking."""
    scenario = draw_scenario(random.Random(f"scenario {seed}"))
    profile = replace(scenario.profile, zombies=6.0, worker_crashes=2.0)
    return World(seed, replace(scenario, profile=profile)).run().violation


def flaky(seed: int) -> str:
    """A run of unaligned checkpoints, ad hoc, whose uploads often fail."""
    mode = CheckpointMode.UNALIGNED
    scenario = draw_scenario(random.Random(f"scenario {seed}"), mode=mode)
    limits = replace(scenario.settings.limits, logs=False)
    settings = replace(scenario.settings, limits=limits, tolerable_failures=1_000_000)
    profile = replace(scenario.profile, storage_rejects=0.15)
    scenario = replace(scenario, settings=settings, profile=profile)
    return World(seed, scenario).run().violation


def nothing_was_in_flight(seed: int) -> str:
    """Runs of one pair of `by_matrix`: their queues are full, so they must have persisted
    something.
    """
    result = run_pair(2, 3, range(_PAIR_SEEDS * seed, _PAIR_SEEDS * (seed + 1)))
    lacking = "" if result.in_flight else "no records were persisted in flight"
    return ", ".join(filter(None, (*result.violations.values(), lacking)))


def without_tile_check(patch: pytest.MonkeyPatch) -> None:
    """The coordinator's own check would find it first; the simulation must not need that."""
    patch.setattr(Checkpoints, "_untiled", lambda self, pending: [])
