"""Slots: each key gets a small number, its position in the columns of state.

Numbers are dense and are given batch by batch, in a fixed but arbitrary order within a batch; a key
never loses its slot. So the columns of state are plain arrays, and an aggregate of a whole batch is
one scatter.

`lookup` runs in the subtask's thread and gives new keys *provisional* slots, from `committed` on;
`commit` moves `committed` past the new slots. A snapshot (`freeze`) reads below `committed`, an
append-only part: a slot's key is written once, and larger copies replace full arrays. The hash
table is no part of a snapshot, so the running work may change it freely. A failed call leaves
provisional slots behind; the contract of operators then rebuilds the subtask from a checkpoint.

Open addressing with quadratic probing, a whole batch per step: gather, compare, and continue with
the open rows. Sorting (`np.unique`) or a Python dictionary per row is 5 to 20 times slower. The
hash is not keyed: an author of malicious keys can make lookups slow.

Not here: the columns of state (`columns.py`), and the owner of a key
(`headrace.channels.keygroups`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .arrays import Mask, Words

Slots = npt.NDArray[np.int64]

#: A table doubles (at least) when more than one in `_SPARSITY` places would be taken: every further
#: step costs some ten microseconds a batch, even for few rows, a place only four bytes.
_SPARSITY = 3
_CAPACITY_MIN = 1024
#: Rows looked up at a time, so that the temporaries stay in the processor's cache.
_BLOCK_ROWS = 8192
_EMPTY = np.int32(-1)
_FIBONACCI = np.uint64(0x9E3779B97F4A7C15)
_KEYS_MAX = 1 << 31


class IntegerSlots:
    """Slots of int64 words.

    Attributes:
        count: number of known keys, with provisional slots; slots are 0 <= slot < count.
        null_slot: the slot of the null key, or -1.
    """

    def __init__(self) -> None:
        self.count = 0
        self.null_slot = -1
        #: Word by slot; positions below `count` are written once.
        self._words: Words = np.zeros(_CAPACITY_MIN, np.int64)
        #: Slot by place, `_EMPTY` where free; the length is a power of two.
        self._table = np.full(_CAPACITY_MIN, _EMPTY, np.int32)
        self._shift = np.uint64(64 - 10)

    def lookup(self, words: Words, valid: Mask | None = None) -> Slots:
        """Return the slot of each row's key, giving new keys a slot.

        `valid` is False where the key is null.
        """
        if valid is None:
            return self._lookup(words)
        rows = np.flatnonzero(valid)
        slots = np.empty(len(words), np.int64)
        slots[rows] = self._lookup(words[rows])
        if len(rows) < len(words):
            if self.null_slot < 0:
                self._reserve_words(1)
                self.null_slot = self.count
                self.count += 1
            slots[~valid] = self.null_slot
        return slots

    @property
    def size_bytes(self) -> int:
        """Memory of words and table."""
        return self._words.nbytes + self._table.nbytes

    def words(self, count: int) -> Words:
        """Return the words of the first `count` slots; a view that never changes."""
        assert count <= self.count, f"{count} slots asked for, {self.count} are known"
        return self._words[:count]

    def _lookup(self, words: Words) -> Slots:
        slots = np.empty(len(words), np.int64)
        for first in range(0, len(words), _BLOCK_ROWS):
            end = first + _BLOCK_ROWS
            self._lookup_block(words[first:end], slots[first:end])
        return slots

    def _lookup_block(self, words: Words, slots: Slots) -> None:
        """Try every row's home place; most keys are found there."""
        places = self._home(words)
        found = self._table.take(places, mode="clip")
        slots[:] = found
        hit = self._words.take(slots, mode="clip") == words
        hit &= found >= 0
        # A third of the time of `all`, which matters in batches of few records.
        if np.count_nonzero(hit) < len(hit):
            self._probe(words, slots, places, np.flatnonzero(~hit))

    def _probe(self, words: Words, slots: Slots, places: Slots, rows: Slots) -> None:
        """Find slots for `rows`, place by place; a key claims the first free place on its way."""
        wanted, place, step = words.take(rows), places.take(rows), 0
        while len(rows):
            found = self._table.take(place, mode="clip")
            free = found < 0
            if free.any():
                if self._reserve(int(np.count_nonzero(free))):
                    place, step = self._home(wanted), 0
                    continue
                self._claim(wanted[free], place[free])
                # Of several keys at a place, one has it now; all look at the place again.
                found = self._table.take(place, mode="clip")
            # A wrong slot does no harm: its row is written again.
            slots[rows] = found
            missed = np.flatnonzero(self._words.take(found, mode="clip") != wanted)
            rows, wanted = rows.take(missed), wanted.take(missed)
            step += 1
            place = _next(place.take(missed), step, len(self._table))

    def _claim(self, words: Words, places: Slots) -> None:
        """Give the free `places` to new keys: a place to one key, the last writer."""
        tickets = np.arange(len(words), dtype=np.int32)
        self._table[places] = tickets
        won = self._table[places] == tickets
        new = np.arange(self.count, self.count + int(np.count_nonzero(won)), dtype=np.int32)
        self._words[new] = words[won]
        self._table[places[won]] = new
        self.count += len(new)

    def _home(self, words: Words) -> Slots:
        mixed = words.view(np.uint64) * _FIBONACCI
        mixed >>= self._shift
        return mixed.view(np.int64)

    def _reserve(self, more: int) -> bool:
        """Make room for so many new keys.

        True: the table was rebuilt and every place has changed.
        """
        self._reserve_words(more)
        needed = (self.count + more) * _SPARSITY
        if needed <= len(self._table):
            return False
        self._rebuild(max(2 * len(self._table), 1 << (needed - 1).bit_length()))
        return True

    def _reserve_words(self, more: int) -> None:
        needed = self.count + more
        assert needed < _KEYS_MAX, "a subtask can hold 2**31 keys"
        if needed > len(self._words):
            larger = np.zeros(max(needed, 2 * len(self._words)), np.int64)
            larger[: self.count] = self._words[: self.count]
            self._words = larger

    def _rebuild(self, capacity: int) -> None:
        table = np.full(capacity, _EMPTY, np.int32)
        self._shift = np.uint64(64 - (capacity.bit_length() - 1))
        slots = np.arange(self.count, dtype=np.int32)
        if self.null_slot >= 0:
            slots = np.delete(slots, self.null_slot)
        places, step = self._home(self._words[slots]), 0
        while len(slots):
            free = table[places] < 0
            table[places[free]] = slots[free]
            homeless = table[places] != slots
            slots = slots[homeless]
            step += 1
            places = _next(places[homeless], step, capacity)
        self._table = table


def _next(places: Slots, step: int, capacity: int) -> Slots:
    """Return the place after `step` earlier places.

    Triangular numbers visit every place of a table of a power of two.
    """
    return (places + step) & (capacity - 1)
