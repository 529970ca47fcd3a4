"""Session windows: a key's records that follow each other within the gap make one window.

A batch, sorted by key and time, becomes sessions of its own. The batch's sessions and the known
sessions of the same keys are intervals, and one more sort shows which intervals meet. Of intervals
that meet, one known session absorbs the others.

A record is late if its session, merged with every session that it meets in the batch and in the
state, ends at least the lateness before the watermark. So a record may join any live session.

Source: Flink's `EventTimeSessionWindows` and `MergingWindowSet`: sessions that touch merge.
Deviation: the records of a batch meet each other before lateness is decided.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..contract.operators import StateBackend
from ..state.arrays import Mask
from ..state.slots import Slots
from .window import WindowOperator
from .window_store import NEVER, WindowAggregate
from .windows import SessionWindow, Times

_NONE = -1
_CAPACITY_MIN = 1024


@dataclass(frozen=True, slots=True)
class _Intervals:
    """Known sessions and a batch's sessions. `slot` is `_NONE` for a session of the batch."""

    key: Slots
    start: Times
    last: Times
    slot: Slots


class SessionOperator(WindowOperator):
    """Aggregates over sessions.

    A key's sessions are a linked list, rebuilt by every batch with the key.
    """

    state_name = "sessions"

    def __init__(
        self,
        window: SessionWindow,
        spec: WindowAggregate,
        *,
        operator: str,
        backend: StateBackend | None = None,
    ) -> None:
        super().__init__(spec, operator=operator, backend=backend)
        self._gap_ns = window.gap_ns
        self._forget()

    def _forget(self) -> None:
        #: By key, its first session; by session, the next session of the key. Used in the subtask's
        #: thread only.
        self._head: Slots = np.full(_CAPACITY_MIN, _NONE, np.int64)
        self._next: Slots = np.full(_CAPACITY_MIN, _NONE, np.int64)

    def _numbered(self, batch: pa.RecordBatch) -> Slots:
        first = self._store.count
        slots = np.arange(first, first + batch.num_rows)
        self._grow(first + batch.num_rows)
        keys = self._store.keys.lookup(batch)
        self._grow(self._store.count)
        order = np.argsort(keys, kind="stable")
        self._link(keys[order], slots[order])
        return slots

    def _assign(self, batch: pa.RecordBatch, times: Times, watermark: Times | int) -> Slots:
        keys = self._store.keys.lookup(batch)
        self._grow(self._store.count)
        self._rows.recall_keys()
        passed = np.zeros(self._store.keys.count, np.int64)
        passed[keys] = watermark
        found, session_of = self._sessions(keys, times)
        known = self._known(np.unique(keys), passed)
        merged, group_of = _meet(known, found)
        touched = np.zeros(len(merged.key), np.bool_)
        touched[group_of[len(known.key) :]] = True
        late = (merged.slot == _NONE) & (merged.last + self._lateness_ns <= passed[merged.key])
        slots = self._settle(merged, late, touched & ~late)
        self._absorb(known.slot, slots[group_of[: len(known.key)]])
        self._head[np.unique(keys)] = _NONE
        self._link(merged.key[~late], slots[~late])
        group_of_row = group_of[len(known.key) + session_of]
        self._add(batch, slots[group_of_row], late[group_of_row])
        changed: Slots = slots[touched & ~late]
        return changed

    def _sessions(self, keys: Slots, times: Times) -> tuple[_Intervals, Slots]:
        """Make the sessions of a batch alone. Returns also the session of each row."""
        order = np.lexsort((times, keys))
        key, time = keys[order], times[order]
        begins = np.ones(len(order), np.bool_)
        begins[1:] = (key[1:] != key[:-1]) | (time[1:] - time[:-1] > self._gap_ns)
        first = np.flatnonzero(begins)
        newest = time[np.append(first[1:], len(order)) - 1]
        session_of = np.empty(len(order), np.int64)
        session_of[order] = np.cumsum(begins) - 1
        slots = np.full(len(first), _NONE)
        return _Intervals(key[first], time[first], newest + (self._gap_ns - 1), slots), session_of

    def _known(self, keys: Slots, passed: Times) -> _Intervals:
        """Collect the live sessions of some keys; `passed` is the watermark by key."""
        store = self._store
        met: list[Slots] = []
        at = self._head[keys]
        while len(at := at[at != _NONE]):
            met.append(at)
            at = self._next[at]
        slots = np.concatenate([*met, np.zeros(0, np.int64)])
        key, last = store.key.working[slots], store.last.working[slots]
        waiting = store.fire_at.working[slots] != NEVER
        live = ~store.gone.working[slots] & (waiting | (last + self._lateness_ns > passed[key]))
        slots = slots[live]
        return _Intervals(key[live], store.start.working[slots], last[live], slots)

    def _settle(self, merged: _Intervals, late: Mask, touched: Mask) -> Slots:
        """Give slots to new sessions, set the bounds of touched sessions.

        Returns each session's slot; `_NONE` if late.
        """
        slots: Slots = merged.slot.copy()
        new = np.flatnonzero((slots == _NONE) & ~late)
        first = self._store.count
        slots[new] = np.arange(first, first + len(new))
        self._grow(first + len(new))
        self._store.open(
            slots[touched], merged.key[touched], merged.start[touched], merged.last[touched]
        )
        return slots

    def _absorb(self, known: Slots, into: Slots) -> None:
        """Merge `known` sessions into the sessions that absorbed them."""
        taken = known != into
        gone = known[taken]
        self._store.aggregates.merge(into[taken], gone)
        self._store.gone.working[gone] = True
        self._store.fire_at.working[gone] = NEVER
        self._rows.keep(gone)

    def _add(self, batch: pa.RecordBatch, slots: Slots, late: Mask) -> None:
        if not late.any():
            self._store.aggregates.add(slots, batch.column)
            return
        self._late.add(batch, late)
        kept = batch.filter(pa.array(~late))
        self._store.aggregates.add(slots[~late], kept.column)

    def _grow(self, count: int) -> None:
        self._store.grow(count)
        self._head = _grown(self._head, self._store.keys.count)
        self._next = _grown(self._next, count)

    def _link(self, keys: Slots, slots: Slots) -> None:
        """Put sessions at the front of their keys' lists; `keys` is sorted."""
        if not len(keys):
            return
        changes = keys[1:] != keys[:-1]
        first = np.flatnonzero(np.append(True, changes))
        last = np.flatnonzero(np.append(changes, True))
        self._next[slots[:-1]] = slots[1:]
        self._next[slots[last]] = self._head[keys[last]]
        self._head[keys[first]] = slots[first]


def _meet(known: _Intervals, found: _Intervals) -> tuple[_Intervals, Slots]:
    """Merge the intervals of a key that overlap or touch.

    Returns: the merged intervals, sorted by key and start, each with the slot of a known session in
    it; and for each interval, known sessions first, the number of its merged interval.
    """
    key = np.concatenate([known.key, found.key])
    start = np.concatenate([known.start, found.start])
    last = np.concatenate([known.last, found.last])
    order = np.lexsort((start, key))
    key, start, last = key[order], start[order], last[order]
    reach = reached(key, last)
    begins = np.ones(len(key), np.bool_)
    begins[1:] = (key[1:] != key[:-1]) | (start[1:] > reach[:-1] + 1)
    first = np.flatnonzero(begins)
    group_of = np.empty(len(key), np.int64)
    group_of[order] = np.cumsum(begins) - 1
    slots = np.full(len(first), _NONE)
    slots[group_of[: len(known.key)]] = known.slot
    ends = np.append(first[1:], len(key)) - 1
    return _Intervals(key[first], start[first], reach[ends], slots), group_of


def reached(key: Slots, last: Times) -> Times:
    """The largest `last` so far within each key; `key` is sorted."""
    # Ranks instead of times, so that key and rank fit into one number, whose running maximum starts
    # anew with each key.
    by_last = np.argsort(last, kind="stable")
    rank = np.empty(len(last), np.int64)
    rank[by_last] = np.arange(len(last))
    reach: npt.NDArray[np.int64] = np.maximum.accumulate(key * len(last) + rank) % len(last)
    return last[by_last[reach]]


def _grown(old: Slots, count: int) -> Slots:
    if count <= len(old):
        return old
    new = np.full(max(count, 2 * len(old)), _NONE, np.int64)
    new[: len(old)] = old
    return new
