"""Zombies: abandoned processes that come back and repeat their old messages.

On a new connection, a zombie with an old incarnation's number, or without number, repeats a
worker's old messages to the coordinator: late acknowledgements, late failures, repeated
registrations. None may have an effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...contract import messages as m

if TYPE_CHECKING:
    from .world import World

_MESSAGES_MAX = 12


class Zombies:
    """The zombies of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.alive = True

    def knock(self) -> None:
        """Connect to the coordinator and repeat old messages, a registration or none first."""
        world = self._world
        rng, coordinator = world.scheduler.rng, world.coordinator
        if coordinator is None or not coordinator.alive or not coordinator.heard:
            return
        world.coverage.count("zombie messages")
        connection = world.env.network.connect(coordinator.address, self, None, None)
        heard = list(coordinator.heard)
        registrations = [x for x in heard if isinstance(m.decode_for_coordinator(x), m.Register)]
        if registrations and rng.random() < 0.7:
            world.env.network.send(connection, self, rng.choice(registrations))
        for message in rng.sample(heard, min(len(heard), rng.randint(1, _MESSAGES_MAX))):
            world.env.network.send(connection, self, message)

    def connected(self, connection: int, greeting: Any) -> None:
        """See `Endpoint`."""

    def received(self, connection: int, message: Any) -> None:
        """See `Endpoint`: a zombie is told to go, and does not listen."""

    def disconnected(self, connection: int, reason: str) -> None:
        """See `Endpoint`."""
