"""Shuffle: each record to a consumer at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from .partitioner import Affinity, Partitioner, Redistribution, Splitter
from .slices import Slices, narrow, split_by_targets


@dataclass(frozen=True, slots=True)
class Shuffle(Partitioner):
    """A draw for each record. `rebalance` deals out runs of records instead, without a copy."""

    name: ClassVar[str] = "shuffle"
    affinity: ClassVar = Affinity.NONE
    redistribution: ClassVar = Redistribution.SHARES

    def open(self, producer: int, producers: int, consumers: int, seed: int) -> Splitter:
        return _Shuffler(np.random.default_rng((seed, producer)), consumers)


class _Shuffler:
    """Draws the consumer of each record, evenly and independently."""

    def __init__(self, rng: np.random.Generator, consumers: int) -> None:
        self._rng = rng
        self._consumers = consumers

    def split(self, batch: pa.RecordBatch) -> Slices:
        drawn = self._rng.integers(0, self._consumers, batch.num_rows, dtype=np.uint16)
        return split_by_targets(batch, narrow(drawn, self._consumers), self._consumers)
