"""Compressed batches in every shape that clients write."""

from __future__ import annotations

import gzip
import struct

import pyarrow as pa
import pytest

from headrace.engine.connectors.kafka import compression
from headrace.engine.connectors.kafka.compression import (
    CODECS,
    BadCompression,
    Compression,
    compress,
    decompress,
    joined,
)

CONTENT = bytes(range(256)) * 1000


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("content", [b"", b"x", CONTENT])
def test_content_comes_back(codec: Compression, content: bytes) -> None:
    packed = compress(pa.py_buffer(content), codec)
    assert decompress(packed, CODECS.index(codec)).to_pybytes() == content


def test_snappy_comes_plain_or_framed() -> None:
    plain = pa.compress(CONTENT, codec="snappy")
    assert decompress(plain, 2).to_pybytes() == CONTENT
    framed = compress(pa.py_buffer(CONTENT), "snappy").to_pybytes()
    assert framed.startswith(b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1))


def test_several_members_are_read_as_one() -> None:
    data = gzip.compress(b"first ") + gzip.compress(b"second")
    assert decompress(pa.py_buffer(data), 1).to_pybytes() == b"first second"


@pytest.mark.parametrize("codec", CODECS[1:])
def test_damage_is_told(codec: Compression) -> None:
    packed = compress(pa.py_buffer(CONTENT), codec)
    half = packed.slice(0, packed.size // 2)
    with pytest.raises(BadCompression):
        decompress(half, CODECS.index(codec))


def test_an_unknown_codec_is_told() -> None:
    with pytest.raises(BadCompression, match="compression 7 is unknown"):
        decompress(pa.py_buffer(b""), 7)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_content_beyond_the_limit_is_refused(
    codec: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "BYTES_MAX", 100_000)
    packed = compress(pa.py_buffer(bytes(1_000_000)), codec)
    with pytest.raises(BadCompression, match="more than 100000 bytes"):
        decompress(packed, CODECS.index(codec))


def test_pieces_are_joined() -> None:
    assert (
        joined([pa.py_buffer(b"ab"), pa.py_buffer(b""), pa.py_buffer(b"c")]).to_pybytes() == b"abc"
    )
