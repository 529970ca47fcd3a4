"""The writes of a database's latest layers to one state, joined: the latest write of each key.

Pieces of bounded size, searched from the newest to the oldest: a single dictionary would now and
then grow by megabytes at once, with the GIL held for some 10 ms, and a free would take as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

#: No writes are added to a piece that would then hold more.
_PIECE_ENTRIES_MAX = 16_384


class Recent(Mapping[Any, Any]):
    """The writes of neighbouring layers, up to layer `last`."""

    def __init__(self) -> None:
        self.last = 0
        #: Newest first; one with more than `_PIECE_ENTRIES_MAX` is a layer's own and never changed.
        self.pieces: list[Mapping[Any, Any]] = []
        #: The newest, as long as more may be added to it.
        self._open: dict[Any, Any] | None = None

    def add(self, number: int, writes: Mapping[Any, Any]) -> None:
        """Join the writes of the next layer, which are never changed."""
        self.last = number
        if len(writes) > _PIECE_ENTRIES_MAX:
            self.pieces.insert(0, writes)
            self._open = None
        elif writes:
            if self._open is None or len(self._open) + len(writes) > _PIECE_ENTRIES_MAX:
                self._open = {}
                self.pieces.insert(0, self._open)
            self._open.update(writes)

    @property
    def entries(self) -> int:
        """Number of entries; a rewritten key may count more than once."""
        return sum(map(len, self.pieces))

    def get(self, key: Any, default: Any = None, /) -> Any:
        """Return the last write, or `default`."""
        for piece in self.pieces:
            if key in piece:
                return piece[key]
        return default

    def __getitem__(self, key: Any, /) -> Any:
        for piece in self.pieces:
            if key in piece:
                return piece[key]
        raise KeyError(key)

    def __contains__(self, key: object, /) -> bool:
        return any(key in piece for piece in self.pieces)

    def __bool__(self) -> bool:
        return bool(self.pieces)

    def __iter__(self) -> Iterator[Any]:
        return iter(dict.fromkeys(key for piece in self.pieces for key in piece))

    def __len__(self) -> int:
        return len({key for piece in self.pieces for key in piece})
