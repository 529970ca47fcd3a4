"""Small records carry a checksum, and every flipped bit of one is told."""

from __future__ import annotations

import msgspec
import pytest

from headrace.recovery.claims import Claimer
from headrace.recovery.records import (
    RECORD_BYTES_MAX,
    DamagedRecord,
    decode_record,
    encode_record,
)

CLAIMER = Claimer(directory="/checkpoints", job="orders")


def test_a_record_is_a_line_of_json_and_its_checksum() -> None:
    data = encode_record(CLAIMER)
    line, checksum = data.splitlines()
    assert msgspec.json.decode(line) == {"directory": "/checkpoints", "job": "orders"}
    assert checksum.startswith(b"xxh3:")
    assert decode_record(data, Claimer) == CLAIMER


def test_every_flipped_bit_and_every_missing_byte_is_told() -> None:
    whole = encode_record(CLAIMER)
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedRecord):
            decode_record(bytes(data), Claimer)
    first_line = whole.find(b"\n") + 1
    for length in set(range(len(whole))) - {first_line}:
        with pytest.raises(DamagedRecord):
            decode_record(whole[:length], Claimer)


def test_a_record_of_an_early_version_is_read_without_a_checksum() -> None:
    assert decode_record(msgspec.json.encode(CLAIMER) + b"\n", Claimer) == CLAIMER


def test_a_record_beyond_the_limit_is_not_decoded() -> None:
    with pytest.raises(DamagedRecord, match="are too many"):
        decode_record(b" " * (RECORD_BYTES_MAX + 1), Claimer)
