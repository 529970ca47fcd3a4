"""Variable-length numbers of Kafka's record format, by the column.

Seven bits a byte, lowest first, the top bit set in all but the last byte; signed numbers are
zigzag-coded (0, -1, 1, -2 as 0, 1, 2, 3). Loops run over the bytes of a number, never over numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Unsigned: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]

#: Bytes of the longest number, a signed one of 64 bits.
_BYTES_MAX = 10
_SEVEN = np.uint64(7)


class BadVarint(ValueError):
    """A number has no end, or lies outside of the data."""


def zigzag(values: Integers) -> Unsigned:
    """Map signed numbers to unsigned ones."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def widths(values: Unsigned | int) -> Integers | int:
    """Return how many bytes each number takes; a plain number, if that is the same for all."""
    if isinstance(values, int):
        return _width(values)
    if not len(values):
        return 1
    shortest, longest = _width(int(values.min())), _width(int(values.max()))
    if shortest == longest:
        return longest
    width = np.full(len(values), shortest, np.int64)
    for count in range(shortest, longest):
        width += values >= np.uint64(1 << 7 * count)
    return width


def pack(fields: Sequence[Unsigned | int]) -> tuple[pa.Array, Integers]:
    """Write the numbers of several columns side by side.

    Args:
        fields: columns of one length; a plain number below 128 stands for a column of it.

    Returns: a binary column of each row's numbers, and the bytes of each row.
    """
    rows = next(len(field) for field in fields if not isinstance(field, int))
    #: (a byte of each row, rows that have this byte; None: all).
    pieces: list[tuple[Bytes | int, Mask | None]] = []
    for field in fields:
        pieces += [(field, None)] if isinstance(field, int) else _bytes_of(field)
    every = np.empty((rows, len(pieces)), np.uint8)
    for place, (piece, _) in enumerate(pieces):
        every[:, place] = piece
    total = np.full(rows, len(pieces), np.int64)
    masks = [(place, mask) for place, (_, mask) in enumerate(pieces) if mask is not None]
    if masks:
        there = np.ones(every.shape, np.bool_)
        for place, mask in masks:
            there[:, place] = mask
            total -= ~mask
        out = every[there]
    else:
        out = every.reshape(-1)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(total, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers), total


def _width(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def _bytes_of(values: Unsigned) -> Iterator[tuple[Bytes, Mask | None]]:
    """Yield the first byte of each number, then the second, with the numbers that have one."""
    if not len(values):
        return
    shortest, longest = _width(int(values.min())), _width(int(values.max()))
    mask: Mask | None = None
    for byte in range(longest):
        piece = (values >> np.uint64(7 * byte)).astype(np.uint8)
        if byte + 1 == longest:
            yield piece, mask
            return
        if byte + 1 < shortest:
            piece |= 128
            yield piece, mask
            continue
        more = values >= np.uint64(1 << 7 * (byte + 1))
        piece &= 127
        piece |= more.view(np.uint8) << 7
        yield piece, mask
        mask = more


def read(data: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """Read the signed number at each position.

    Returns: numbers, and positions behind them. Raises: BadVarint.
    """
    try:
        first = data[at]
        more = first >= 128
        if not more.any():
            value = first.astype(np.int64)
            return (value >> 1) ^ -(value & 1), at + 1
        return _read_long(data, at, first)
    except IndexError as error:
        raise BadVarint(str(error)) from error


def _read_long(data: Bytes, at: Integers, first: Bytes) -> tuple[Integers, Integers]:
    value = (first & 127).astype(np.uint64)
    end = at + 1
    rows = np.flatnonzero(first >= 128)
    for byte in range(1, _BYTES_MAX):
        whole = len(rows) == len(at)
        piece = data[end if whole else end[rows]]
        bits = (piece & 127).astype(np.uint64) << (np.uint64(byte) * _SEVEN)
        if whole:
            value |= bits
            end = end + 1
        else:
            value[rows] |= bits
            end[rows] += 1
        rows = rows[piece >= 128]
        if not len(rows):
            return (value >> np.uint64(1)).view(np.int64) ^ -(value & np.uint64(1)).view(
                np.int64
            ), end
    raise BadVarint(f"a number is longer than {_BYTES_MAX} bytes")
