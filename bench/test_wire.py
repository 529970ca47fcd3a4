"""How long does a frame take to encode and to decode, by the number of records of 104 bytes?

Unit: microseconds a frame, one thread, no sockets. Encoding is serialising, digest and MAC;
decoding is MAC, digest, reading and full validation. "fixed" has a payload of fixed width, "text"
one of strings, whose UTF-8 is checked. Run: `pytest bench/test_wire.py --benchmark-only`. On 2
virtual cores with other work beside, expect a third of noise; compare rows of one run.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.wire import (
    BufferFrame,
    CreditFrame,
    Frame,
    FrameDecoder,
    FrameEncoder,
)

KEY = b"k" * 32
CHANNEL = ChannelId(0, 0, 0)
ROWS = [64, 512, 4_096, 32_768]
ROUNDS = 500


def frame(payload: str, rows: int) -> BufferFrame:
    numbers = np.arange(rows)
    kind = pa.binary(76) if payload == "fixed" else pa.string()
    text = pa.array([f"{number:076d}" for number in range(rows)]).cast(pa.binary()).cast(kind)
    batch = pa.record_batch([numbers, numbers, numbers, text], names=["key", "time", "seq", "data"])
    return BufferFrame(CHANNEL, Buffer.of(0, batch))


def decode_repeatedly(benchmark: BenchmarkFixture, sent: Frame, schema: pa.Schema) -> Frame:
    """Decode `ROUNDS` frames of one connection; they share a body, their headers are numbered."""
    encoder = FrameEncoder(KEY)
    decoder = FrameDecoder(KEY, lambda edge: schema)
    header, *bodies = encoder.encode(sent)
    body = pa.py_buffer(bodies[0] if bodies else b"")
    headers = iter([encoder.encode(sent)[0] for _ in range(ROUNDS)])

    def decode(header: bytes | memoryview) -> Frame:
        return decoder.frame(decoder.header(memoryview(header)), body)

    # The first frame pays for the schema.
    decode(header)
    pedantic: Callable[..., Frame] = benchmark.pedantic
    return pedantic(decode, setup=lambda: ((next(headers),), {}), rounds=ROUNDS)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("payload", ["fixed", "text"])
def test_encode_a_buffer(benchmark: BenchmarkFixture, payload: str, rows: int) -> None:
    encoder = FrameEncoder(KEY)
    sent = frame(payload, rows)
    pieces = benchmark(encoder.encode, sent)
    assert sum(len(piece) for piece in pieces) > rows * 100


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("payload", ["fixed", "text"])
def test_decode_a_buffer(benchmark: BenchmarkFixture, payload: str, rows: int) -> None:
    sent = frame(payload, rows)
    assert decode_repeatedly(benchmark, sent, sent.buffer.parts[0].schema) == sent


def test_encode_credit(benchmark: BenchmarkFixture) -> None:
    encoder = FrameEncoder(KEY)
    assert benchmark(encoder.encode, CreditFrame(CHANNEL, 1))


def test_decode_credit(benchmark: BenchmarkFixture) -> None:
    sent = CreditFrame(CHANNEL, 1)
    assert decode_repeatedly(benchmark, sent, pa.schema([])) == sent
