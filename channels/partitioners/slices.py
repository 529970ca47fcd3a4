"""Record batches cut into slices, one or none per target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

#: (target, rows): targets are different, rows are not empty.
Slices = list[tuple[int, pa.RecordBatch]]
#: One target per row.
Targets = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]

#: Runs are not cut shorter than about this; smaller batches go whole to one target.
RUN_ROWS_MIN = 4096


def runs_of(rows: int, targets: int) -> int:
    """Return the number of runs to cut a batch into."""
    return min(targets, max(1, rows // RUN_ROWS_MIN))


def whole(target: int, batch: pa.RecordBatch) -> Slices:
    """The batch itself to one target."""
    return [(target, batch)] if batch.num_rows else []


def cut(batch: pa.RecordBatch, bounds: Sequence[int], targets: Sequence[int]) -> Slices:
    """Slice between neighbouring bounds, one slice per target. No copy."""
    return [
        (target, batch.slice(start, end - start))
        for target, start, end in zip(targets, bounds[:-1], bounds[1:], strict=True)
    ]


def narrow(targets: npt.NDArray[np.integer], consumers: int) -> Targets:
    """Narrow targets to 8 or 16 bits. The caller vouches for targets below `consumers`."""
    assert consumers <= 1 << 16, f"{consumers} consumers do not fit in 16 bits"
    if consumers <= 256:
        return targets.astype(np.uint8)
    return targets.astype(np.uint16)


def split_by_targets(batch: pa.RecordBatch, targets: Targets, consumers: int) -> Slices:
    """Group the rows of `batch` by target, in order within each: one copy, then slices of it.

    The caller vouches for `targets`: an index below `consumers` per row.
    """
    rows = batch.num_rows
    if rows == 0 or consumers == 1:
        return whole(0, batch)
    if rows == 1:
        return whole(int(targets[0]), batch)
    if consumers == 2:
        order, bounds = _order_of_two(targets)
    else:
        # NumPy's stable sort of 8 and 16-bit integers is a radix sort.
        order = np.argsort(targets, kind="stable")
        bounds = [*np.searchsorted(targets[order], np.arange(consumers)).tolist(), rows]
    used = [target for target in range(consumers) if bounds[target] < bounds[target + 1]]
    if len(used) == 1:
        return whole(used[0], batch)
    # The order is a permutation, so bounds need no check (a third of the time).
    grouped = pc.take(batch, pa.array(order), boundscheck=False)
    return cut(grouped, [*(bounds[target] for target in used), rows], used)


def _order_of_two(targets: Targets) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Sort targets 0 and 1, a quarter faster than argsort. Returns the order and both bounds."""
    second = targets.astype(np.bool_)
    ones = second.nonzero()[0]
    zeros = len(targets) - len(ones)
    order = np.empty(len(targets), np.int64)
    order[zeros:] = ones
    order[:zeros] = (~second).nonzero()[0]
    return order, [0, zeros, len(targets)]
