"""Shuffle: records to consumers at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from .partitioner import Affinity, Partitioner, Redistribution, Splitter
from .slices import RUN_ROWS_MIN, Slices, cut, runs_of, whole


@dataclass(frozen=True, slots=True)
class Shuffle(Partitioner):
    """Random runs of records to random consumers, the least served first. No copy."""

    name: ClassVar[str] = "shuffle"
    affinity: ClassVar = Affinity.NONE
    redistribution: ClassVar = Redistribution.SHARES

    def open(self, producer: int, producers: int, consumers: int, seed: int) -> Splitter:
        return _Shuffler(np.random.default_rng((seed, producer)), consumers)


class _Shuffler:
    """Cuts at random places and gives the runs to random targets that got a run less than others.

    Independent draws would leave one slow consumer without work while another's queue, and so the
    producer, is full.
    """

    def __init__(self, rng: np.random.Generator, consumers: int) -> None:
        self._rng = rng
        #: {target: rows it got}.
        self._dealt = np.zeros(consumers, np.int64)

    def split(self, batch: pa.RecordBatch) -> Slices:
        rows, consumers = batch.num_rows, len(self._dealt)
        runs = runs_of(rows, consumers)
        if rows == 0 or consumers == 1:
            return whole(0, batch)
        order = self._rng.permutation(consumers)
        fewest = np.argsort(self._dealt[order] // RUN_ROWS_MIN, kind="stable")
        targets = order[fewest[:runs]]
        if runs == 1:
            self._dealt[targets] += rows
            return whole(int(targets[0]), batch)
        # A cut moves by at most a quarter of a run, so no run is shorter than half of one.
        cuts = (np.arange(1, runs) + self._rng.uniform(-0.25, 0.25, runs - 1)) * (rows / runs)
        bounds = [0, *cuts.astype(np.int64).tolist(), rows]
        self._dealt[targets] += np.diff(bounds)
        return cut(batch, bounds, targets.tolist())
