"""Drives readers as the runtime does, and sinks through two-phase commit, without a runtime."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest

from headrace.engine.contract.connectors import Source
from headrace.engine.contract.operators import (
    OperatorContext,
    RestoredState,
    SourceReader,
    SourceStatus,
    StateKind,
)


def context(index: int, parallelism: int, epoch: int = 1) -> OperatorContext:
    return OperatorContext("job", "operator", index, parallelism, 128, epoch)


@dataclass
class Drive:
    """What attempts at several parallelisms have read, all in all."""

    source: Source
    rng: random.Random
    rows_max: int = 7

    def __post_init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.saved: list[RestoredState] | None = None

    def open(self, parallelism: int) -> list[SourceReader]:
        """A new attempt from what `save` took last."""
        readers = [self.source.reader() for _ in range(parallelism)]
        for index, reader in enumerate(readers):
            reader.open(context(index, parallelism))
            if self.saved is not None:
                reader.restore(self.saved)
        return readers

    def step(self, reader: SourceReader) -> SourceStatus:
        """An accepted poll."""
        polled = reader.poll(self.rows_max)
        assert bool(polled.split) == bool(polled.batches), "each record is of a split"
        self.batches += polled.batches
        reader.commit()
        return polled.status

    def save(self, readers: Sequence[SourceReader]) -> None:
        """Take a checkpoint; work that runs beside it is lost with the attempt."""
        for reader in readers:
            reader.poll(self.rows_max)
        frozen = [state for reader in readers for state in reader.snapshot()]
        for reader in readers:
            reader.commit()
            reader.close()
        assert {state.kind for state in frozen} == {StateKind.UNION}
        table = pa.concat_tables([state.table() for state in frozen])
        self.saved = [RestoredState(frozen[0].name, StateKind.UNION, table)]

    def some(self, parallelism: int, steps: int) -> None:
        """An attempt of `steps` polls of subtasks in any order, up to a checkpoint."""
        readers = self.open(parallelism)
        for _ in range(steps):
            self.step(self.rng.choice(readers))
        self.save(readers)

    def rest(self, parallelism: int) -> None:
        """An attempt that reads to the end."""
        readers = self.open(parallelism)
        for reader in readers:
            while self.step(reader) is SourceStatus.MORE:
                pass
        self.save(readers)

    def table(self) -> pa.Table:
        return pa.Table.from_batches(self.batches, schema=self.source.schema)

    def column(self, name: str) -> list[object]:
        values: list[object] = self.table().column(name).to_pylist()
        return values


@pytest.fixture
def drive() -> Callable[..., Drive]:
    def make(source: Source, seed: int = 0, rows_max: int = 7) -> Drive:
        return Drive(source, random.Random(seed), rows_max)

    return make


@pytest.fixture
def at() -> Callable[..., OperatorContext]:
    return context
