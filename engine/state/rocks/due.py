"""An index of due times over the rows of another state in the same database, by key group and time.

An entry is a key alone: the time (as an unsigned number, so bytes sort by time), then columns that
name the row. Due rows come in the order of time over all key groups. Memory holds one key per key
group as a lower bound: deleted entries leave marks until the database compacts, and a scan from the
front would step over all marks each time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK
from headrace.channels.keygroups import KeyGroups

from ...contract.operators import StateLayout
from .codecs import KeyCodec, groups_of
from .database import RocksDatabase
from .files import Entry, group_start
from .rows import RocksRows

Times = npt.NDArray[np.int64]

# Format, never change.
DUE = pa.field("__due", pa.uint64(), nullable=False)
_BIAS = np.uint64(1 << 63)


class DueIndex:
    """Which rows of a state are due when.

    Args:
        columns: name a row; the key group's and others.
        groups: the key groups that are kept here.
    """

    def __init__(
        self,
        database: RocksDatabase,
        name: str,
        columns: Sequence[pa.Field],
        groups: range,
        max_parallelism: int,
    ) -> None:
        fields = [DUE, *columns]
        self.rows = RocksRows(database, StateLayout(name, len(fields), pa.schema(fields)))
        self._codec = KeyCodec(name, fields, max_parallelism)
        self._groups = groups
        #: By key group of ours, a time before which nothing is due.
        self._next = np.full(len(groups), MIN_WATERMARK, np.int64)
        #: By key group of ours, a stored key below which there is none.
        self._first = [group_start(group) + self._codec.state for group in groups]
        #: Offset of the time in a stored key: behind the group, the state's name and the not-null
        #: byte.
        self._time_at = 2 + len(self._codec.state) + 1

    def keys(self, due: Times, columns: Sequence[pa.Array], groups: KeyGroups) -> list[bytes]:
        """Make stored keys, for `add` and `remove`."""
        times = pa.array(biased(due), DUE.type)
        return self._codec.encode([times, *columns], groups)

    def columns(self, keys: Sequence[bytes]) -> tuple[Times, list[pa.Array], KeyGroups]:
        """Return the due times of stored keys, the names of their rows, and their key groups."""
        times, *columns = self._codec.decode(keys)
        return _unbiased(times.to_numpy()), columns, groups_of(keys)

    def load(self, keys: Sequence[bytes]) -> None:
        """Take restored keys, as committed keys."""
        self.rows.load((key, b"") for key in keys)

    def replace(self, old: Sequence[bytes], new: Sequence[bytes]) -> None:
        """Replace the entries `old` by `new`; common entries stay unwritten."""
        before, after = set(old), set(new)
        entries: list[Entry] = [(key, None) for key in before - after]
        added = sorted(after - before)
        entries += [(key, b"") for key in added]
        self.rows.put(entries)
        for key in added:
            group = int.from_bytes(key[:2], "big") - self._groups.start
            self._first[group] = min(self._first[group], key)
            self._next[group] = min(int(self._next[group]), self._time_of(key))

    def due(self, until_ns: int, count_max: int) -> tuple[list[bytes], bool]:
        """Return entries due up to `until_ns`, the earliest first, and whether these are all.

        The caller must replace the entries in the same call.
        """
        waiting = np.flatnonzero(self._next <= until_ns).tolist()
        found = heapq.merge(*(self._of(at, until_ns) for at in waiting), key=_behind_group)
        keys = list(islice(found, count_max + 1))
        return keys[:count_max], len(keys) <= count_max

    def _of(self, at: int, until_ns: int) -> Iterator[bytes]:
        # Above all keys: the first byte of a time is 1, for not null.
        upper = group_start(self._groups[at]) + self._codec.state + b"\2"
        for key, _ in self.rows.range(self.rows.cursor(), self._first[at], upper):
            self._first[at], self._next[at] = key, self._time_of(key)
            if self._next[at] > until_ns:
                return
            yield key
        self._first[at], self._next[at] = upper, MAX_WATERMARK

    def _time_of(self, key: bytes) -> int:
        return int.from_bytes(key[self._time_at : self._time_at + 8], "big") - (1 << 63)


def biased(times: Times) -> npt.NDArray[np.uint64]:
    """Shift times so that their unsigned bytes sort by time."""
    return times.view(np.uint64) + _BIAS


def _unbiased(times: npt.NDArray[np.uint64]) -> Times:
    """Shift back."""
    return (times - _BIAS).view(np.int64)


def _behind_group(key: bytes) -> bytes:
    return key[2:]
