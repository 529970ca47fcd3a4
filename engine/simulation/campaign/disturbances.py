"""Disturbances of a world at random times: deaths, broken connections, wrong clocks, full storage,
zombies.

The fault profile holds their likelihoods; processes crash at named points of the protocol by
themselves (`environment.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..scheduler import MILLISECOND_NS, SECOND_NS
from .zombies import Zombies

if TYPE_CHECKING:
    from .coordinator_process import CoordinatorProcess
    from .world import World


class Disturbances:
    """The faults of a world at random times."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.zombies = Zombies(world)

    def schedule(self) -> None:
        """Draw the disturbances and their times."""
        profile = self._world.faults.profile
        for rate, happen in (
            (profile.worker_crashes, self._crash_worker),
            (profile.coordinator_crashes, self._crash_coordinator),
            (profile.severed, self._sever),
            (profile.half_open, self._half_open),
            (profile.partitions, self._partition),
            (profile.clock_jumps, self._jump_clock),
            (profile.zombies, self.zombies.knock),
            (profile.storage_full, self._fill_storage),
            (profile.pauses, self._pause_coordinator),
        ):
            self._at_random(rate, happen)
        self._world.scheduler.at(profile.until_ns, self._mend)

    def _at_random(self, rate: float, happen: Callable[[], None]) -> None:
        rng, until_ns = self._world.scheduler.rng, self._world.faults.profile.until_ns
        whole = int(rate)
        for _ in range(whole + (rng.random() < rate - whole)):
            # Most runs end long before the faults do: early times hit more runs.
            self._world.scheduler.at(int(until_ns * rng.random() ** 2), happen)

    def _crash_worker(self) -> None:
        living = [worker for worker in self._world.workers if worker.alive]
        if not living:
            return
        host = self._world.scheduler.rng.random() < 0.4
        self._world.coverage.count("worker crashed with its host" if host else "worker crashed")
        self._world.scheduler.rng.choice(living).die(host=host, why="crashed")

    def _crash_coordinator(self) -> None:
        if self._world.coordinator is not None and self._world.coordinator.alive:
            self._world.coverage.count("coordinator crashed")
            self._world.coordinator.die(
                host=self._world.scheduler.rng.random() < 0.4, why="crashed"
            )

    def _pause_coordinator(self) -> None:
        """Freeze the coordinator; a supervisor believes it dead and starts another; later it wakes
        and goes on.
        """
        world = self._world
        coordinator, rng = world.coordinator, world.scheduler.rng
        if coordinator is None or not coordinator.alive or coordinator.paused:
            return
        world.coverage.count("coordinator paused")
        coordinator.pause(rng.randint(20, 1000) * MILLISECOND_NS)
        world.replace_coordinator(rng.randint(5, 200) * MILLISECOND_NS)

    def freeze(self, coordinator: CoordinatorProcess) -> None:
        """Freeze this coordinator at its point; another is started, and half of the time a third
        beside or after that one, before the first wakes.
        """
        world = self._world
        if coordinator is not world.coordinator or coordinator.paused:
            return
        rng = world.scheduler.rng
        others_ns = rng.randint(5, 60) * MILLISECOND_NS
        world.replace_coordinator(others_ns)
        if rng.random() < 0.5:
            others_ns += rng.randint(10, 200) * MILLISECOND_NS
            world.scheduler.at(world.scheduler.now_ns + others_ns, self._crash_coordinator)
        coordinator.pause(others_ns + rng.randint(20, 300) * MILLISECOND_NS)

    def _sever(self) -> None:
        number = self._some_connection()
        if number is not None:
            self._world.coverage.count("connection severed")
            self._world.env.network.sever(number)

    def _half_open(self) -> None:
        number = self._some_connection()
        if number is not None:
            self._world.coverage.count("link half open")
            self._world.env.network.half_open(number, self._world.scheduler.rng.randrange(2))

    def _partition(self) -> None:
        """Hold up some connections for a while."""
        duration_ns = self._world.scheduler.rng.randint(5, 400) * MILLISECOND_NS
        for number in self._world.env.network.open_connections:
            if self._world.scheduler.rng.random() < 0.4:
                self._world.coverage.count("links partitioned")
                self._world.env.network.partition(
                    number, self._world.scheduler.now_ns + duration_ns
                )

    def _some_connection(self) -> int | None:
        numbers = self._world.env.network.open_connections
        return self._world.scheduler.rng.choice(numbers) if numbers else None

    def _jump_clock(self) -> None:
        processes = [
            p for p in (self._world.coordinator, *self._world.workers) if p is not None and p.alive
        ]
        if processes:
            self._world.coverage.count("clock jumped")
            by_ns = self._world.scheduler.rng.choice((-3600, -2, 1, 3600)) * SECOND_NS
            self._world.scheduler.rng.choice(processes).jump_clock(by_ns)

    def _fill_storage(self) -> None:
        self._world.faults.fill_storage(self._world.scheduler.rng.randint(10, 200) * MILLISECOND_NS)

    def _mend(self) -> None:
        self._world.scheduler.trace("faults stop")
        for process in (self._world.coordinator, *self._world.workers):
            if process is not None and process.alive:
                process.mend_clock()
