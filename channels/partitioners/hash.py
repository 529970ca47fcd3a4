"""Hash: all records of a key to one consumer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from ..hashing import key_hashers
from ..keygroups import check_max_parallelism, check_parallelism, key_groups, owners
from .partitioner import Affinity, Partitioner, Redistribution, Router
from .slices import Targets, narrow


@dataclass(frozen=True, slots=True)
class Hash(Partitioner):
    """All records of a key to one consumer: the owner of the key's key group.

    Attributes:
        columns: the key, in order.
        max_parallelism: number of key groups of the job.
    """

    name: ClassVar[str] = "hash"
    affinity: ClassVar = Affinity.RECORD
    redistribution: ClassVar = Redistribution.FILTER
    columns: tuple[str, ...]
    max_parallelism: int

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError("partitioning by hash needs at least one key column")
        check_max_parallelism(self.max_parallelism)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self.columns

    @classmethod
    def restored(
        cls, key_columns: tuple[str, ...], parameters: tuple[str, ...], max_parallelism: int
    ) -> Partitioner:
        return cls(key_columns, max_parallelism)

    def check(self, schema: pa.Schema) -> None:
        """Raise ValueError or TypeError, as `key_hashers` does, where `schema` has no such key."""
        key_hashers(schema, self.columns)

    def consumers(self, producer: int, producers: int, consumers: int) -> Sequence[int]:
        check_parallelism(self.max_parallelism, consumers)
        return range(consumers)

    def router(self, consumers: int) -> Router:
        #: {key group: consumer}.
        owner_of = narrow(owners(self.max_parallelism, consumers), consumers)

        def route(batch: pa.RecordBatch) -> Targets:
            if consumers == 1:
                return np.zeros(batch.num_rows, np.uint8)
            targets: Targets = owner_of.take(key_groups(batch, self.columns, self.max_parallelism))
            return targets

        return route
