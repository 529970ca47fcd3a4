"""The base of partitioners: each kind of edge answers here all questions of the engine.

A `Partitioner` is a plain frozen value in the execution plan. `open` makes a `Splitter` from it,
one per producer subtask, which cuts record batches into slices for the consumers. Wire name,
affinity and redistribution belong to the class, and a subclass that lacks an answer is refused at
import. A new kind of edge is one file in this folder and its test; no other file lists the kinds.

Randomness comes in as a seed, so a run can be repeated.

Source: the partitioners of Flink's DataStream API. Deviation: rebalance deals out runs of records,
because a run costs nothing to cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import ClassVar, Protocol

import pyarrow as pa

from .slices import Slices, Targets, split_by_targets

#: A batch to the consumer of each row.
Router = Callable[[pa.RecordBatch], Targets]


class Affinity(Enum):
    """Which consumers may take a record."""

    #: The one consumer that the record's values name.
    RECORD = "record"
    #: Any consumer.
    NONE = "none"
    #: Every consumer takes a copy.
    COPY = "copy"


class Redistribution(Enum):
    """Which records in flight a consumer replays after a rescale."""

    #: Each consumer reads all records and keeps its own by the partitioner.
    FILTER = "filter"
    #: Consumers divide the records evenly; a share begins and ends between any two records.
    SHARES = "shares"
    #: Consumers divide the old channels; a channel's records stay together and in order.
    CHANNELS = "channels"
    #: Each consumer replays the records of one old consumer.
    REPLICA = "replica"


#: {affinity: the redistributions that respect it}.
_RESPECTS = {
    Affinity.RECORD: {Redistribution.FILTER},
    Affinity.NONE: {Redistribution.SHARES, Redistribution.CHANNELS},
    Affinity.COPY: {Redistribution.REPLICA},
}


#: {attribute of a class: its type}.
_ASKED = {"name": str, "affinity": Affinity, "redistribution": Redistribution}

#: {wire name: class} of all kinds that were imported; `registry` imports all there are.
KINDS: dict[str, type[Partitioner]] = {}


class Splitter(Protocol):
    """Cuts the batches of one producer subtask. Used by that subtask's thread alone."""

    def split(self, batch: pa.RecordBatch) -> Sequence[tuple[int, pa.RecordBatch]]:
        """Cut `batch` into (target, rows); `target` is an index into the partitioner's `consumers`.

        Every row is in exactly one slice (broadcast: in a slice per target), in the batch's order.
        No slice is empty. Slices may share memory with the batch and with each other.
        """
        ...


class Partitioner:
    """How an edge distributes records: an immutable, picklable value.

    Attributes:
        name: for graphs and checkpoint metadata. Format, never change.
    """

    __slots__ = ()
    name: ClassVar[str]
    affinity: ClassVar[Affinity]
    redistribution: ClassVar[Redistribution]

    def __init_subclass__(cls) -> None:
        """Register the class by wire name. Raises: TypeError where an answer is missing."""
        for attribute, kind in _ASKED.items():
            if not isinstance(vars(cls).get(attribute), kind):
                raise TypeError(f"{cls.__name__} needs {attribute}: {kind.__name__}")
        if cls.redistribution not in _RESPECTS[cls.affinity]:
            raise TypeError(
                f"{cls.__name__}: redistribution by {cls.redistribution.value} does not respect "
                f"affinity {cls.affinity.value}"
            )
        needed = "router" if cls.affinity is Affinity.RECORD else "open"
        if needed not in vars(cls):
            raise TypeError(f"{cls.__name__} has affinity {cls.affinity.value}; needs {needed}()")
        known = KINDS.setdefault(cls.name, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"{cls.__name__} and {known.__name__} are both named {cls.name!r}")
        # A dataclass with slots is made twice; the second class is the one in use.
        KINDS[cls.name] = cls

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Columns by which records are routed, as checkpoint metadata notes them."""
        return ()

    @property
    def parameters(self) -> tuple[str, ...]:
        """All else by which partitioners of a kind differ, as checkpoint metadata notes it."""
        return ()

    @classmethod
    def restored(
        cls, key_columns: tuple[str, ...], parameters: tuple[str, ...], max_parallelism: int
    ) -> Partitioner | None:
        """Make the partitioner again from metadata; None where only the program has it."""
        return None

    def consumers(self, producer: int, producers: int, consumers: int) -> Sequence[int]:
        """Return the consumers that `producer` has a channel to, in the order of `split`'s targets.

        Raises: ValueError when this partitioner cannot connect `producers` with `consumers`
            subtasks.
        """
        return range(consumers)

    def open(self, producer: int, producers: int, consumers: int, seed: int) -> Splitter:
        """Make the splitter of subtask `producer`; all producers of an edge have the same `seed`.

        Raises: ValueError as `consumers` does.
        """
        return _RoutingSplitter(self.router(consumers), consumers)

    @classmethod
    def names_consumers(cls) -> bool:
        """Tell whether each record names its consumer, by `router`."""
        return cls.router is not Partitioner.router

    def router(self, consumers: int) -> Router:
        """Make the function that names each row's consumer. Only kinds with affinity RECORD do.

        The answer depends on the row and `consumers` alone: recovery asks again after a rescale.
        """
        raise AssertionError(f"{self.name} has no affinity to records")


class _RoutingSplitter:
    """Splits by a router."""

    def __init__(self, router: Router, consumers: int) -> None:
        self._router = router
        self._consumers = consumers

    def split(self, batch: pa.RecordBatch) -> Slices:
        if batch.num_rows == 0:
            return []
        return split_by_targets(batch, self._router(batch), self._consumers)


class CopyToAll:
    """Splitter that hands every target the batch itself."""

    def __init__(self, targets: int) -> None:
        self._targets = targets

    def split(self, batch: pa.RecordBatch) -> Slices:
        if batch.num_rows == 0:
            return []
        return [(target, batch) for target in range(self._targets)]
