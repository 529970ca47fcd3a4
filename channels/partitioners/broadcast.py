"""Broadcast: every record to every consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .partitioner import Affinity, CopyToAll, Partitioner, Redistribution, Splitter


@dataclass(frozen=True, slots=True)
class Broadcast(Partitioner):
    """Every record to every consumer: the same batch, not copied."""

    name: ClassVar[str] = "broadcast"
    affinity: ClassVar = Affinity.COPY
    redistribution: ClassVar = Redistribution.REPLICA

    def open(self, producer: int, producers: int, consumers: int, seed: int) -> Splitter:
        return CopyToAll(consumers)
