"""Partitions of keys, compared with kafka-python's murmur2."""

from __future__ import annotations

import random

import pyarrow as pa
from kafka.partitioner import default

from headrace.engine.connectors.kafka.partitioner import by_key, murmur2


def test_hash_is_that_of_kafkas_clients() -> None:
    rng = random.Random(1)
    keys = [rng.randbytes(length) for length in range(40) for _ in range(5)]
    expected = [default.murmur2(key) & 0xFFFFFFFF for key in keys]
    assert murmur2(pa.array(keys, pa.binary())).tolist() == expected


def test_hash_of_a_slice_is_that_of_its_values() -> None:
    keys = pa.array([b"a", b"bcd", b"efghijk", b""], pa.binary())
    assert murmur2(keys[1:]).tolist() == murmur2(keys).tolist()[1:]


def test_no_keys_have_no_partitions() -> None:
    assert by_key(pa.array([], pa.binary()), 3).tolist() == []


def test_known_keys_go_to_known_partitions() -> None:
    # Of Java's client: toPositive(murmur2(key)) % 10.
    keys = [b"21", b"foobar", b"a-little-bit-long-string", b"a-little-bit-longer-string"]
    hashes = [-973932308, -790332482, -985981536, -1486304829]
    expected = [(each & 0x7FFFFFFF) % 10 for each in hashes]
    assert by_key(pa.array(keys, pa.binary()), 10).tolist() == expected
