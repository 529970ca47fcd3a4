"""Committed values of declared state in RocksDB.

Reads are batched: `prefetch` reads all keys of a batch at once, sorted. Values of fixed width stay
at hand for later calls, in two generations of bounded size; others until the call ends. A read of
RocksDB costs some microseconds of processor, a value at hand a tenth of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import pyarrow as pa

from ...contract.operators import StateLayout
from ..arrays import is_word_type
from ..backend import ABSENT, Mark
from ..tables import to_arrow
from ..types import Cell, Key
from .codecs import KeyCodec
from .database import RocksDatabase, Writes
from .files import Entry, group_start
from .rows import Pair, entries_between
from .values import value_codec

_MISSING: Final = Mark()
_LOAD_ROWS = 4096
#: Keys of one generation at hand, about 100 bytes each; to free more at once holds the GIL for
#: milliseconds.
_AT_HAND_MAX = 65_536


class RocksKeyed:
    """See `ValueTable`: a space of the operator's database."""

    def __init__(
        self,
        database: RocksDatabase,
        name: str,
        keys: Sequence[pa.Field],
        type_: pa.DataType,
        from_arrow: Callable[[Cell], Cell],
        max_parallelism: int,
    ) -> None:
        value = pa.field(name, type_)
        self.layout = StateLayout(name, len(keys), pa.schema([*keys, value]))
        self._database = database
        self._keys = KeyCodec(name, keys, max_parallelism)
        self._values = value_codec([value])
        self._is_map = pa.types.is_map(type_)
        self._from_arrow = from_arrow
        #: Committed values at hand; `ABSENT` where the database has none.
        self._at_hand: dict[Key, Cell] = {}
        #: The generation before. An entry may be outdated if the key is at hand as well.
        self._before: dict[Key, Cell] = {}
        self._stays = is_word_type(type_)
        #: Where `some` goes on: position of the key group, and the stored key.
        self._group, self._resume = 0, b""
        database.add(self)

    def get(self, key: Key, default: Cell = None, /) -> Cell:
        """See `ValueTable`."""
        found = self._at_hand.get(key, _MISSING)
        if found is _MISSING:
            self.prefetch([key])
            found = self._at_hand[key]
        return default if found is ABSENT else found

    def merge(self, written: dict[Key, Cell]) -> None:
        """See `ValueTable`. Becomes a layer when the database commits."""
        self._database.stage(self.layout.name, written)
        if self._stays:
            self._at_hand.update(written)

    def load(self, items: Iterable[tuple[Key, Cell]]) -> None:
        """See `ValueTable`."""
        pairs = list(items)
        for first in range(0, len(pairs), _LOAD_ROWS):
            self._database.load(self.entries(dict(pairs[first : first + _LOAD_ROWS])))

    def some(self, count: int) -> tuple[list[tuple[Key, Cell]], bool]:
        """See `ValueTable`.

        Returns no keys while a snapshot holds layers back: a sweep is no reason to link files.
        """
        if not self._database.is_settled:
            return [], False
        cursor = self._database.cursor()
        pairs: list[Pair] = []
        groups = self._database.groups
        while self._group < len(groups) and len(pairs) < count:
            start = group_start(groups[self._group]) + self._keys.state
            found = entries_between(cursor, max(start, self._resume), start + b"\2")
            pairs += islice(found, count - len(pairs))
            if len(pairs) < count:
                self._group += 1
        over = self._group == len(groups)
        self._resume = b"" if over or not pairs else pairs[-1][0] + b"\0"
        self._group = 0 if over else self._group
        return self._decoded(pairs), over

    def forget(self) -> None:
        """End a call. Owner thread."""
        if not self._stays:
            self._at_hand = {}
        elif len(self._at_hand) > _AT_HAND_MAX:
            self._before, self._at_hand = self._at_hand, {}

    def prefetch(self, keys: Iterable[Key]) -> None:
        """Have the values of the coming call at hand."""
        at_hand = self._at_hand
        wanted = [key for key in dict.fromkeys(keys) if key not in at_hand]
        for known in (self._before, self._database.recent(self.layout.name)):
            if wanted and known:
                at_hand.update((key, known[key]) for key in wanted if key in known)
                wanted = [key for key in wanted if key not in at_hand]
        if wanted:
            self._fetch(wanted)

    def entries(self, writes: Writes) -> Iterator[Entry]:
        """See `Space`."""
        kept = {key: value for key, value in writes.items() if value is not ABSENT}
        if kept:
            # Dictionaries are maps or structs; only maps are pairs.
            cells = map(to_arrow, kept.values()) if self._is_map else kept.values()
            values = self._values.encode_cells(list(cells))
            yield from zip(self._keys.encode_cells(list(kept)), values, strict=True)
        if len(kept) < len(writes):
            gone = [key for key, value in writes.items() if value is ABSENT]
            yield from ((key, None) for key in self._keys.encode_cells(gone))

    def _decoded(self, pairs: Sequence[Pair]) -> list[tuple[Key, Cell]]:
        columns = [array.to_pylist() for array in self._keys.decode([key for key, _ in pairs])]
        keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        values = self._values.decode_cells([value for _, value in pairs])
        return list(zip(keys, map(self._from_arrow, values), strict=True))

    def _fetch(self, keys: list[Key]) -> None:
        stored = self._keys.encode_cells(keys)
        order = sorted(range(len(keys)), key=stored.__getitem__)
        found = self._database.get_many([stored[at] for at in order])
        present = [(at, raw) for at, raw in zip(order, found, strict=True) if raw is not None]
        self._at_hand.update(dict.fromkeys(keys, ABSENT))
        values = self._values.decode_cells([raw for _, raw in present])
        for (at, _), value in zip(present, values, strict=True):
            self._at_hand[keys[at]] = self._from_arrow(value)
