"""What does the gate cost for one buffer: arrival, hand-out, commit and grant?

Unit: microseconds for `ROUND` buffers, one thread, by the number of channels that take turns. The
buffers hold one batch each and are made beforehand: no record is touched, so their size does not
matter. All of it runs in the owner thread, which is why it is measured. Run: `pytest
bench/test_gate.py --benchmark-only`. On 2 virtual cores with other work beside, expect a third of
noise; compare rows of one run.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.credit import Window
from headrace.channels.gate import Gate, InputChannel

ROUND = 256
ROWS = 512
SIZE_BYTES = 16_384


def gate_of(channels: int) -> Gate:
    ids = [ChannelId(0, producer, 0) for producer in range(channels)]
    window = Window(1 << 40, None)
    gate = Gate(InputChannel(i, 0, position=0, ended=False, window=window) for i in ids)
    gate.open()
    return gate


@pytest.mark.parametrize("rows_max", [ROWS // 8, ROWS, ROWS * 8])
@pytest.mark.parametrize("channels", [1, 8, 64])
def test_buffers_through_a_gate(benchmark: BenchmarkFixture, channels: int, rows_max: int) -> None:
    batch = pa.record_batch({"x": pa.array(range(ROWS), pa.int64())})
    gate = gate_of(channels)
    inputs = list(gate.channels.values())

    def pass_through() -> int:
        for number in range(ROUND):
            channel = inputs[number % channels]
            channel.buffer_arrived(Buffer(channel.arrived, ROWS, SIZE_BYTES, (batch,)))
        rows = 0
        while given := gate.next_input(rows_max):
            gate.commit(given)
            rows += sum(one.buffer.rows for one in given)
        return rows

    pedantic: Callable[..., int] = benchmark.pedantic
    assert pedantic(pass_through, rounds=50, warmup_rounds=2) == ROUND * ROWS
