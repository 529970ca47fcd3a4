"""Partitioners: which consumer each record of an edge goes to.

A `Partitioner` is a plain frozen value that travels in the execution plan. `open` makes a `Splitter` from it, one per
producer subtask, which cuts record batches into slices for the consumers. Where no key demands
otherwise a batch is cut into contiguous slices that share its memory; only `Hash` and `Custom` copy, once per batch.

No randomness of its own: `Shuffle` draws from a generator seeded by the caller, so a run can be repeated.

Source: the partitioners of Flink's DataStream API; deviation: rebalance and shuffle deal out runs of records, not single
ones, because a run costs nothing to cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .hashing import key_hashers
from .keygroups import check_max_parallelism, check_parallelism, key_groups, owners

Slices = list[tuple[int, pa.RecordBatch]]
#: One consumer index per row; uint8 or uint16.
Targets = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
#: (batch, number of consumers) to one consumer index per row: a NumPy or Arrow array, or a list, of integers.
CustomFunction = Callable[[pa.RecordBatch, int], npt.ArrayLike]

#: Rebalance and shuffle do not cut a batch into runs shorter than about this; smaller batches go whole to one consumer.
RUN_ROWS_MIN = 4096


class Splitter(Protocol):
    """Cuts the batches of one producer subtask. Used by that subtask's thread alone."""

    def split(self, batch: pa.RecordBatch) -> Sequence[tuple[int, pa.RecordBatch]]:
        """Cut `batch` into (target, rows), where `target` is an index into the partitioner's `consumers`.

        Every row is in exactly one slice per target that gets it (broadcast: all of them), in the batch's order; no
        slice is empty. Slices may share memory with the batch and with each other.
        """
        ...


class Partitioner(Protocol):
    """How the records of an edge are dealt out: an immutable, picklable value."""

    #: For graphs and checkpoint metadata. Format, never change.
    name: ClassVar[str]

    def consumers(self, producer: int, producers: int, consumers: int) -> Sequence[int]:
        """Tell the consumer subtasks that subtask `producer` has a channel to, in the order of `split`'s targets.

        Raises: ValueError when this partitioner cannot connect `producers` with `consumers` subtasks.
        """
        ...

    def open(self, producer: int, producers: int, consumers: int, seed: int) -> Splitter:
        """Make the splitter of subtask `producer`; `seed` is the edge's, equal for all producers.

        Raises: ValueError as `consumers` does.
        """
        ...


@dataclass(frozen=True, slots=True)
class Forward:
    """Subtask i to subtask i. No copy."""

    name: ClassVar[str] = "forward"

    def consumers(self, producer: int, producers: int, consumers: int) -> Sequence[int]:
        if producers != consumers:
            raise ValueError(
                f"a forward edge needs equal parallelism on both sides, not {producers} and {consumers}"
            )
        return [producer]

    def open(self, producer: int, producers: int, consumers: int, seed: int) -> Splitter:
        self.consumers(producer, producers, consumers)
        return _CopyToAll(1)


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Every record to every consumer: the same batch, not copied."""

    name: ClassVar[str] = "broadcast"

    def consumers(self, producer: int, producers: int, consumers: int) -> Sequence[int]:
        return range(consumers)

    def open(self, producer: int, producers: int, consumers: int, seed: int) -> Splitter:
        return _CopyToAll(consumers)


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Equal shares for all: runs of records, in turn, the least served consumers first. No copy."""

    name: ClassVar[str] = "rebalance"

    def consumers(self, producer: int, producers: int, consumers: int) -> Sequence[int]:
        return range(consumers)

    def open(self, producer: int, producers: int, consumers: int, seed: int) -> Splitter:
        return _Dealer(producer, consumers)


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Each record to a consumer drawn evenly: random runs of records to random consumers, the least served first. No copy."""

    name: ClassVar[str] = "shuffle"

    def consumers(self, producer: int, producers: int, consumers: int) -> Sequence[int]:
        return range(consumers)

    def open(self, producer: int, producers: int, consumers: int, seed: int) -> Splitter:
        return _Shuffler(np.random.default_rng((seed, producer)), consumers)


@dataclass(frozen=True, slots=True)
class Hash:
    """Records of one key to one consumer: the owner of the key's key group.

    Attributes:
        columns: the key, in order.
        max_parallelism: number of key groups of the job.
    """

    name: ClassVar[str] = "hash"
    columns: tuple[str, ...]
    max_parallelism: int

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError("partitioning by hash needs at least one key column")
        check_max_parallelism(self.max_parallelism)

    def check(self, schema: pa.Schema) -> None:
        """Raise ValueError or TypeError, as `key_hashers` does, when batches of `schema` cannot be split."""
        key_hashers(schema, self.columns)

    def consumers(self, producer: int, producers: int, consumers: int) -> Sequence[int]:
        check_parallelism(self.max_parallelism, consumers)
        return range(consumers)

    def open(self, producer: int, producers: int, consumers: int, seed: int) -> KeySplitter:
        return KeySplitter(self, consumers)


@dataclass(frozen=True, slots=True)
class Custom:
    """Records to where a user's function says.

    The function must depend on the rows alone: recovery calls it again to give out records in flight.

    Attributes:
        function: called with a batch and the number of consumers, returns one consumer index per row.
        columns: what the function gets to see, or None for all columns.
    """

    name: ClassVar[str] = "custom"
    function: CustomFunction
    columns: tuple[str, ...] | None = None

    def consumers(self, producer: int, producers: int, consumers: int) -> Sequence[int]:
        return range(consumers)

    def open(self, producer: int, producers: int, consumers: int, seed: int) -> CustomSplitter:
        return CustomSplitter(self, consumers)


class KeySplitter:
    """Splits by the owner of each row's key group."""

    def __init__(self, partitioner: Hash, consumers: int) -> None:
        self._partitioner = partitioner
        self._consumers = consumers
        #: {key group: consumer}.
        self._owners = _narrow(owners(partitioner.max_parallelism, consumers), consumers)

    def targets(self, batch: pa.RecordBatch) -> Targets:
        """Tell the consumer of every row."""
        groups = key_groups(batch, self._partitioner.columns, self._partitioner.max_parallelism)
        targets: Targets = self._owners.take(groups)
        return targets

    def split(self, batch: pa.RecordBatch) -> Slices:
        if self._consumers == 1:
            return _whole(0, batch)
        return split_by_targets(batch, self.targets(batch), self._consumers)


class CustomSplitter:
    """Splits by a user's function, whose answer is not trusted."""

    def __init__(self, partitioner: Custom, consumers: int) -> None:
        self._partitioner = partitioner
        self._consumers = consumers

    def targets(self, batch: pa.RecordBatch) -> Targets:
        """Tell the consumer of every row.

        Raises: ValueError when the function's answer is not one integer per row in range; whatever the function raises.
        """
        columns = self._partitioner.columns
        visible = batch if columns is None else batch.select(list(columns))
        answer = np.asarray(self._partitioner.function(visible, self._consumers))
        if answer.shape != (batch.num_rows,):
            raise ValueError(
                f"the partition function must return one target per row, shape ({batch.num_rows},), "
                f"not {answer.shape}"
            )
        if answer.dtype.kind not in "iu":
            raise ValueError(
                f"the partition function must return integers without nulls, not {answer.dtype}"
            )
        wrong = np.flatnonzero((answer < 0) | (answer >= self._consumers))
        if len(wrong):
            raise ValueError(
                f"the partition function must return targets from 0 to {self._consumers - 1}, "
                f"not {answer[wrong[0]]} (row {wrong[0]})"
            )
        return _narrow(answer, self._consumers)

    def split(self, batch: pa.RecordBatch) -> Slices:
        if batch.num_rows == 0:
            return []
        return split_by_targets(batch, self.targets(batch), self._consumers)


class _CopyToAll:
    """The batch itself to every target."""

    def __init__(self, consumers: int) -> None:
        self._consumers = consumers

    def split(self, batch: pa.RecordBatch) -> Slices:
        if batch.num_rows == 0:
            return []
        return [(target, batch) for target in range(self._consumers)]


class _Dealer:
    """Keeps count of the rows dealt; the counts of two targets never differ by more than 2 * RUN_ROWS_MIN."""

    def __init__(self, producer: int, consumers: int) -> None:
        #: {target: rows it got}.
        self._dealt = [0] * consumers
        #: All targets in the order in which equals are served; producers begin at different ones.
        self._ring = [(producer + step) % consumers for step in range(consumers)]

    def split(self, batch: pa.RecordBatch) -> Slices:
        rows = batch.num_rows
        if rows == 0:
            return []
        runs = _runs(rows, len(self._dealt))
        slices = []
        for run, target in enumerate(sorted(self._ring, key=self._dealt.__getitem__)[:runs]):
            # Rounded up: the least served targets come first and get the odd rows.
            start, end = -(-run * rows // runs), -(-(run + 1) * rows // runs)
            self._dealt[target] += end - start
            slices.append((target, batch.slice(start, end - start)))
        return slices


class _Shuffler:
    """Cuts at random places and gives the runs to different random targets, those before the others that got a run less.

    Independent draws would leave one slow consumer without work while another's queue, and so the producer, is full.
    """

    def __init__(self, rng: np.random.Generator, consumers: int) -> None:
        self._rng = rng
        #: {target: rows it got}.
        self._dealt = np.zeros(consumers, np.int64)

    def split(self, batch: pa.RecordBatch) -> Slices:
        rows, consumers = batch.num_rows, len(self._dealt)
        runs = _runs(rows, consumers)
        if rows == 0 or consumers == 1:
            return _whole(0, batch)
        order = self._rng.permutation(consumers)
        fewest = np.argsort(self._dealt[order] // RUN_ROWS_MIN, kind="stable")
        targets = order[fewest[:runs]]
        if runs == 1:
            self._dealt[targets] += rows
            return _whole(int(targets[0]), batch)
        # A cut moves by at most a quarter of a run, so no run is shorter than half of one.
        cuts = (np.arange(1, runs) + self._rng.uniform(-0.25, 0.25, runs - 1)) * (rows / runs)
        bounds = [0, *cuts.astype(np.int64).tolist(), rows]
        self._dealt[targets] += np.diff(bounds)
        return _cut(batch, bounds, targets.tolist())


def split_by_targets(batch: pa.RecordBatch, targets: Targets, consumers: int) -> Slices:
    """Group the rows of `batch` by target, keeping their order within each: one copy, then slices of it.

    `targets` holds one index per row; the caller vouches that it is below `consumers`.
    """
    rows = batch.num_rows
    if rows == 0:
        return []
    if consumers == 2:
        order, bounds = _order_of_two(targets)
    else:
        # NumPy's stable sort of 8 and 16-bit integers is a radix sort.
        order = np.argsort(targets, kind="stable")
        bounds = [*np.searchsorted(targets[order], np.arange(consumers)).tolist(), rows]
    used = [target for target in range(consumers) if bounds[target] < bounds[target + 1]]
    if len(used) == 1:
        return _whole(used[0], batch)
    # The order is a permutation, so bounds need no check (a third of the time).
    grouped = pc.take(batch, pa.array(order), boundscheck=False)
    return _cut(grouped, [*(bounds[target] for target in used), rows], used)


def _order_of_two(targets: Targets) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Sort targets 0 and 1, a quarter faster than argsort. Returns the order and the bounds of both."""
    second = targets.astype(np.bool_)
    ones = int(np.count_nonzero(second))
    zeros = len(targets) - ones
    order = np.empty(len(targets), np.int64)
    order[zeros:] = np.flatnonzero(second)
    order[:zeros] = np.flatnonzero(~second)
    return order, [0, zeros, len(targets)]


def _narrow(targets: npt.NDArray[np.integer], consumers: int) -> Targets:
    assert consumers <= 1 << 16, f"{consumers} consumers do not fit in 16 bits"
    if consumers <= 256:
        return targets.astype(np.uint8)
    return targets.astype(np.uint16)


def _runs(rows: int, consumers: int) -> int:
    return min(consumers, max(1, rows // RUN_ROWS_MIN))


def _whole(target: int, batch: pa.RecordBatch) -> Slices:
    return [(target, batch)] if batch.num_rows else []


def _cut(batch: pa.RecordBatch, bounds: Sequence[int], targets: Sequence[int]) -> Slices:
    """Slice between neighbouring bounds, one slice per target."""
    return [
        (target, batch.slice(start, end - start))
        for target, start, end in zip(targets, bounds[:-1], bounds[1:], strict=True)
    ]
