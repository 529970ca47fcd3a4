"""Savepoints in a simulated world: requested at random, and each able to restart the ended job.

Two promises are checked. When a savepoint is complete, all transactions prepared before its cut are
committed, so that no failure can take their records back. And a job with only the savepoint goes on
from there: its output together with the output committed before the cut is the reference's.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.channels.events import CheckpointMode
from headrace.recovery import catalog

from ...coordinator import coordinator_events as d
from ...coordinator.coordinator_events import SavepointOrder
from ..scheduler import MILLISECOND_NS
from ..sink import TransactionStatus
from ..watch import Violation
from .faults import no_faults

if TYPE_CHECKING:
    from .world import World

_MODES = (None, CheckpointMode.ALIGNED, CheckpointMode.UNALIGNED)
#: Most runs end long before; a later request meets no driver.
_UNTIL_NS = 600 * MILLISECOND_NS


class Savepoints:
    """The savepoints of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked = 0
        #: {complete savepoint: transactions that were prepared before its cut}
        self._complete: dict[int, frozenset[str]] = {}
        #: Requests of those with which the job was to end.
        self._last: set[int] = set()

    def schedule(self) -> None:
        """Draw when some will be asked for."""
        scheduler = self._world.scheduler
        for _ in range(self._world.scenario.settings.savepoints):
            scheduler.at(int(_UNTIL_NS * scheduler.rng.random() ** 2), self._ask)

    def _ask(self) -> None:
        world, coordinator = self._world, self._world.coordinator
        if coordinator is None or not coordinator.alive:
            return
        self._asked += 1
        order = SavepointOrder(mode=world.scheduler.rng.choice(_MODES))
        coordinator.post(d.CheckpointRequested(self._asked, order))

    def last(self, kind: d.StopKind) -> d.StopRequested:
        """A user wants the job to end with a savepoint."""
        self._asked += 1
        self._last.add(self._asked)
        order = SavepointOrder(mode=self._world.scheduler.rng.choice(_MODES))
        return d.StopRequested(kind, savepoint=order, request=self._asked)

    def completed(self, request: int, number: int) -> None:
        """A savepoint is complete.

        Raises Violation when a transaction before its cut is not committed.

        The job's last savepoint commits its transactions itself, and may be started from in any
        case.
        """
        env = self._world.env
        epoch = catalog.load(env.storage, env.plan.job, number).epoch
        before = frozenset(env.sinks.cuts[epoch, number])
        transactions = env.sinks.transactions
        if request in self._last:
            self._complete[number] = before
            env.coverage.count("jobs ended with a savepoint")
            return
        open_ = [i for i in before if transactions[i].status is not TransactionStatus.COMMITTED]
        if open_:
            raise Violation(f"savepoint {number} is complete before {sorted(open_)[:5]}")
        self._complete[number] = before
        env.coverage.count("savepoints completed")

    def check(self) -> None:
        """Start the ended job from a savepoint, without any other data. Raises Violation."""
        if not self._complete:
            return
        number = self._world.scheduler.rng.choice(sorted(self._complete))
        violation = self._restarted(number)
        if violation:
            raise Violation(f"started from savepoint {number}: {violation}")
        self._world.coverage.count("savepoints started from")

    def _restarted(self, number: int) -> str:
        old = self._world
        scenario = replace(
            old.scenario,
            graph=old.newest_graph,
            profile=no_faults(),
            settings=replace(old.scenario.settings, savepoints=0),
            rescales=(),
            drain_ns=None,
        )
        new = type(old)(old.seed, scenario)
        new.rescaled, new.widths = old.rescaled, old.widths
        job = new.env.plan.job
        kept = (f"{job}/sav-{number}/", f"{job}/epochs/")
        for path, data in old.env.storage.objects.items():
            if path.startswith(kept):
                new.env.storage.objects[path] = data
        before = self._complete[number]
        for id, transaction in old.env.sinks.transactions.items():
            if id in before:
                new.env.sinks.transactions[id] = deepcopy(transaction)
        new.env = replace(new.env, run="from a savepoint")
        new.env.sinks.visible += [id for id in old.env.sinks.visible if id in before]
        return new.run().violation
