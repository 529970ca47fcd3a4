"""A local file as the content of a stored object, read a piece at a time, any number of times.

Reading tens of megabytes at once would hold them all, and giving back that much memory stops every
thread for milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

#: Fits into the processor's cache, and is long enough for storage.
PIECE_BYTES = 1 << 20


class FileContent(Sequence[bytes]):
    """The pieces of a file that does not change. Raises OSError, also when a piece is asked for."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._size_bytes = os.stat(path).st_size
        self._pieces = range(0, self._size_bytes, PIECE_BYTES)

    def __len__(self) -> int:
        return len(self._pieces)

    @overload
    def __getitem__(self, index: int, /) -> bytes: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[bytes]: ...
    def __getitem__(self, index: int | slice, /) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return list(self._read(self._pieces[index]))
        (piece,) = self._read([self._pieces[index]])
        return piece

    def __iter__(self) -> Iterator[bytes]:
        return self._read(self._pieces)

    def _read(self, offsets: Iterable[int]) -> Iterator[bytes]:
        with open(self._path, "rb", buffering=0) as file:
            for offset in offsets:
                wanted = min(PIECE_BYTES, self._size_bytes - offset)
                piece = os.pread(file.fileno(), wanted, offset)
                if len(piece) != wanted:
                    raise OSError(
                        f"{self._path} ended at {offset + len(piece)} and must not change"
                    )
                yield piece
