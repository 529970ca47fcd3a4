"""Key groups: the fixed number of parts that keys fall into, and the subtasks that own them.

A job has `max_parallelism` key groups for its whole life. State is stored by key group, so a
rescale moves whole groups and never looks at a key. A subtask owns a contiguous range of them.

Source: Flink, `KeyGroupRangeAssignment`. Ranges and owners are Flink's formulas. Deviation: the
group is taken from the upper half of a 64-bit hash by multiplication instead of a remainder, which
is three times faster in NumPy and leaves the lower bits, unbiased, to hash tables. Specified in
docs/key-hash.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .hashing import Hashes, hash_rows

KeyGroups = npt.NDArray[np.uint16]

#: Flink's limit as well; a key group then fits in the two bytes before every state key.
#: Format, never change.
MAX_PARALLELISM_LIMIT = 1 << 15

_HALF = np.uint64(32)


def key_groups(batch: pa.RecordBatch, columns: Sequence[str], max_parallelism: int) -> KeyGroups:
    """Tell the key group of every row, 0 <= group < max_parallelism.

    Raises: ValueError and TypeError as `hash_rows` does.
    """
    return groups_of_hashes(hash_rows(batch, columns), max_parallelism)


def groups_of_hashes(hashes: Hashes, max_parallelism: int) -> KeyGroups:
    """Tell the key group of every hash: its upper 32 bits, scaled to `max_parallelism`."""
    check_max_parallelism(max_parallelism)
    scaled = hashes >> _HALF
    scaled *= np.uint64(max_parallelism)
    scaled >>= _HALF
    return scaled.astype(np.uint16)


def key_group_range(max_parallelism: int, parallelism: int, index: int) -> range:
    """Tell the key groups of subtask `index`; the ranges of all tile `range(max_parallelism)`."""
    check_parallelism(max_parallelism, parallelism)
    assert 0 <= index < parallelism, f"subtask {index} of {parallelism}"
    start = -(-index * max_parallelism // parallelism)
    end = -(-(index + 1) * max_parallelism // parallelism)
    return range(start, end)


def owner(key_group: int, max_parallelism: int, parallelism: int) -> int:
    """Tell which of `parallelism` subtasks owns a key group."""
    assert 0 <= key_group < max_parallelism, f"key group {key_group} of {max_parallelism}"
    return key_group * parallelism // max_parallelism


def owners(max_parallelism: int, parallelism: int) -> npt.NDArray[np.uint16]:
    """Table of `owner`, indexed by key group."""
    check_parallelism(max_parallelism, parallelism)
    return (np.arange(max_parallelism) * parallelism // max_parallelism).astype(np.uint16)


def check_max_parallelism(max_parallelism: int) -> None:
    """Raise ValueError unless 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT."""
    if not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise ValueError(
            f"max parallelism must be from 1 to {MAX_PARALLELISM_LIMIT}, not {max_parallelism}"
        )


def check_parallelism(max_parallelism: int, parallelism: int) -> None:
    """Raise ValueError unless every subtask of `parallelism` can own a key group."""
    check_max_parallelism(max_parallelism)
    if not 1 <= parallelism <= max_parallelism:
        raise ValueError(
            f"parallelism must be from 1 to the max parallelism {max_parallelism}, "
            f"not {parallelism}"
        )
