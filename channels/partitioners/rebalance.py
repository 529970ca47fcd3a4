"""Rebalance: even shares for all consumers, in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from .partitioner import Affinity, Partitioner, Redistribution, Splitter
from .slices import Slices, runs_of


@dataclass(frozen=True, slots=True)
class Rebalance(Partitioner):
    """Even shares for all: runs of records, in turn, the least served consumers first. No copy."""

    name: ClassVar[str] = "rebalance"
    affinity: ClassVar = Affinity.NONE
    redistribution: ClassVar = Redistribution.SHARES

    def open(self, producer: int, producers: int, consumers: int, seed: int) -> Splitter:
        return _Dealer(producer, consumers)


class _Dealer:
    """Counts the rows dealt; two targets' counts never differ by more than 2 * RUN_ROWS_MIN."""

    def __init__(self, producer: int, consumers: int) -> None:
        #: {target: rows it got}.
        self._dealt = [0] * consumers
        #: All targets in the order in which equals are served; producers begin at different ones.
        self._ring = [(producer + step) % consumers for step in range(consumers)]

    def split(self, batch: pa.RecordBatch) -> Slices:
        rows = batch.num_rows
        if rows == 0:
            return []
        runs = runs_of(rows, len(self._dealt))
        slices = []
        for run, target in enumerate(sorted(self._ring, key=self._dealt.__getitem__)[:runs]):
            # Rounded up: the least served targets come first and get the odd rows.
            start, end = -(-run * rows // runs), -(-(run + 1) * rows // runs)
            self._dealt[target] += end - start
            slices.append((target, batch.slice(start, end - start)))
        return slices
