"""What does one piece of work cost in the owner thread, from the buffer's arrival to the sending of
what came out?

Unit: microseconds a piece, one thread, by the number of channels on each side. The work itself
costs nothing: its answer is ready. So this is what the engine adds, and it bounds how small pieces
may be. "barrier" passes one aligned checkpoint through instead, from the first barrier to the
complete cut. Run: `pytest bench/test_subtask.py --benchmark-only`. On 2 virtual cores with other
work beside, expect a third of noise; compare rows of one run.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.events import Barrier, CheckpointMode
from headrace.engine.operators.work import Outputs, WorkDone
from headrace.engine.worker.subtask import Subtask
from headrace.engine.worker.subtask_events import (
    BufferArrived,
    CutTaken,
    EventArrived,
    RunWork,
    SubtaskId,
)
from headrace.engine.worker.subtask_spec import Limits, SubtaskSpec

ROWS = 512
SIZE_BYTES = 16_384
ROUNDS = 500
LIMITS = Limits(1 << 20, 1 << 40, 1 << 20, 16_384, 20_000_000)


def subtask_of(channels: int) -> tuple[Subtask, list[ChannelId]]:
    inputs = [ChannelId(0, producer, 0) for producer in range(channels)]
    outputs = [ChannelId(1, 0, consumer) for consumer in range(channels)]
    spec = SubtaskSpec(SubtaskId(1, 0), False, False, [inputs], [outputs], LIMITS, False, {}, {})
    subtask = Subtask(spec)
    subtask.start(0)
    return subtask, inputs


@pytest.mark.parametrize("channels", [1, 8, 64])
def test_one_piece_of_work(benchmark: BenchmarkFixture, channels: int) -> None:
    subtask, inputs = subtask_of(channels)
    batch = pa.record_batch({"x": pa.array(range(ROWS), pa.int64())})
    piece = batch.slice(0, ROWS // channels)
    outputs: Outputs = (
        tuple((target, piece, SIZE_BYTES // channels) for target in range(channels)),
    )
    position = 0

    def step() -> int:
        nonlocal position
        event = BufferArrived(inputs[0], Buffer(position, ROWS, SIZE_BYTES, (batch,)))
        position += ROWS
        effects = subtask.step(event, 0)
        pieces = 0
        # One piece once the first ones, which are small, have shown how quick the work is.
        while runs := [effect for effect in effects if isinstance(effect, RunWork)]:
            effects = subtask.step(WorkDone(runs[0].work, outputs, ROWS, 1), 0)
            pieces += 1
        return pieces

    pedantic: Callable[..., int] = benchmark.pedantic
    assert pedantic(step, rounds=ROUNDS, warmup_rounds=10) == 1


@pytest.mark.parametrize("mode", [CheckpointMode.ALIGNED, CheckpointMode.UNALIGNED])
@pytest.mark.parametrize("channels", [1, 8, 64])
def test_one_barrier(benchmark: BenchmarkFixture, channels: int, mode: CheckpointMode) -> None:
    subtask, inputs = subtask_of(channels)
    checkpoint = 0

    def step() -> int:
        nonlocal checkpoint
        checkpoint += 1
        effects = []
        for channel in inputs:
            effects += subtask.step(EventArrived(channel, 0, Barrier(checkpoint, mode, 0)), 0)
        return sum(isinstance(effect, CutTaken) for effect in effects)

    pedantic: Callable[..., int] = benchmark.pedantic
    assert pedantic(step, rounds=ROUNDS, warmup_rounds=10) == 1
