"""Forward: subtask i to subtask i."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from .partitioner import Affinity, CopyToAll, Partitioner, Redistribution, Splitter


@dataclass(frozen=True, slots=True)
class Forward(Partitioner):
    """Subtask i to subtask i. No copy."""

    name: ClassVar[str] = "forward"
    affinity: ClassVar = Affinity.NONE
    redistribution: ClassVar = Redistribution.CHANNELS

    def consumers(self, producer: int, producers: int, consumers: int) -> Sequence[int]:
        if producers != consumers:
            raise ValueError(
                "a forward edge needs equal parallelism on both sides, "
                f"not {producers} and {consumers}"
            )
        return [producer]

    def open(self, producer: int, producers: int, consumers: int, seed: int) -> Splitter:
        self.consumers(producer, producers, consumers)
        return CopyToAll(1)
