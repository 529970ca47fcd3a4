"""Variable-length numbers, compared with the plain definition of one number."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.connectors.kafka.varints import BadVarint, pack, read, widths, zigzag

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300)


def one(value: int) -> bytes:
    """A signed number, byte for byte."""
    left = (value << 1) ^ (value >> 63)
    out = bytearray()
    while left > 127:
        out.append(left & 127 | 128)
        left >>= 7
    return bytes([*out, left])


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=40))
def test_columns_of_numbers_are_written_side_by_side_and_read_back(
    rows: list[tuple[int, int]],
) -> None:
    first, second = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    packed, sizes = pack([zigzag(first), 0, zigzag(second)])
    assert packed.to_pylist() == [one(a) + b"\0" + one(b) for a, b in rows]
    assert sizes.tolist() == [len(value) for value in packed.to_pylist()]
    data = np.frombuffer(b"".join(packed.to_pylist()), np.uint8)
    starts = np.cumsum(sizes) - sizes
    found, at = read(data, starts)
    again, end = read(data, at + 1)
    assert found.tolist() == first.tolist()
    assert again.tolist() == second.tolist()
    assert end.tolist() == np.cumsum(sizes).tolist()


@given(st.lists(NUMBERS, min_size=1))
def test_widths_are_the_bytes_of_each_number(values: list[int]) -> None:
    numbers = zigzag(np.array(values, np.int64))
    each = np.broadcast_to(widths(numbers), len(values))
    assert each.tolist() == [len(one(value)) for value in values]


@pytest.mark.parametrize("bits", range(0, 64, 7))
def test_numbers_of_one_width_and_of_two_are_written_alike(bits: int) -> None:
    edge = 1 << bits >> 1
    for values in ([edge] * 3, [edge - 1, edge, edge - 1, -edge, -edge - 1]):
        packed, sizes = pack([zigzag(np.array(values, np.int64)), 7])
        assert packed.to_pylist() == [one(value) + b"\7" for value in values]
        assert sizes.tolist() == [len(one(value)) + 1 for value in values]


@pytest.mark.parametrize("data", [b"\x80", b"\x80" * 11])
def test_a_number_without_an_end_is_refused(data: bytes) -> None:
    with pytest.raises(BadVarint):
        read(np.frombuffer(data, np.uint8), np.zeros(1, np.int64))
