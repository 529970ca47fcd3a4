"""Variable-length numbers of Kafka's record format, by the column.

Seven bits a byte, lowest first, the top bit set in all but the last byte; signed numbers are
zigzag-coded (0, -1, 1, -2 as 0, 1, 2, 3). Loops run over the bytes of a number, never over numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Unsigned: TypeAlias = npt.NDArray[np.uint64]

#: Bytes of the longest number, a signed one of 64 bits.
_BYTES_MAX = 10
_SEVEN = np.uint64(7)


class BadVarint(ValueError):
    """A number has no end, or lies outside of the data."""


def zigzag(values: Integers) -> Unsigned:
    """Map signed numbers to unsigned ones."""
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def widths(values: Unsigned) -> Integers:
    """Return how many bytes each number takes."""
    width = np.ones(len(values), np.int64)
    longest = int(values.max(initial=0))
    bound = 128
    while bound <= longest:
        width += values >= np.uint64(bound)
        bound <<= 7
    return width


def pack(fields: Sequence[Unsigned | int]) -> tuple[pa.Array, Integers]:
    """Write the numbers of several columns side by side.

    Args:
        fields: columns of one length; a plain number below 128 stands for a column of it.

    Returns: a binary column of each row's numbers, and the bytes of each row.
    """
    each = [1 if isinstance(field, int) else widths(field) for field in fields]
    total = sum(each)
    assert isinstance(total, np.ndarray), "one field is a column"
    ends = np.cumsum(total)
    out = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    at = ends - total
    for field, width in zip(fields, each, strict=True):
        if isinstance(width, int):
            out[at] = field
        else:
            assert isinstance(field, np.ndarray), "a plain number has no widths"
            _write(out, at, field, width)
        at = at + width
    offsets = np.zeros(len(total) + 1, np.int32)
    offsets[1:] = ends
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.binary(), len(total), buffers), total


def _write(out: Bytes, at: Integers, values: Unsigned, width: Integers) -> None:
    longest = int(width.max(initial=1))
    for byte in range(longest):
        # Most columns have numbers of one width: no selection then.
        if byte:
            longer = np.flatnonzero(width > byte)
            if len(longer) < len(values):
                at, values, width = at[longer], values[longer], width[longer]
        piece = (values >> np.uint64(7 * byte)).astype(np.uint8) & 127
        if byte + 1 < longest:
            piece |= (width > byte + 1).view(np.uint8) << 7
        out[at + byte] = piece


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
