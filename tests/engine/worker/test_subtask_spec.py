"""The ends of channels as a spec says."""

from __future__ import annotations

from headrace.channels.buffer import ChannelId
from headrace.engine.contract.execution import SubtaskId
from headrace.engine.worker.subtask_spec import (
    Limits,
    SubtaskSpec,
    input_end,
    output_end,
)
from headrace.recovery.metadata import ChannelPosition

NEW, OLD = ChannelId(0, 0, 0), ChannelId(0, 1, 0)
LIMITS = Limits(
    buffer_bytes=10, window_bytes=100, queue_bytes_max=50, work_rows_max=5, work_target_ns=1
)


def position(channel: ChannelId, at: int, *, ended: bool = False) -> ChannelPosition:
    return ChannelPosition(channel.edge, channel.producer, channel.consumer, at, ended)


def spec(**positions: dict[ChannelId, ChannelPosition]) -> SubtaskSpec:
    return SubtaskSpec(
        id=SubtaskId(1, 0),
        is_source=False,
        is_sink=False,
        inputs=[[NEW, OLD]],
        outputs=[[NEW, OLD]],
        limits=LIMITS,
        finished=False,
        received=positions.get("received", {}),
        sent=positions.get("sent", {}),
    )


def test_a_channel_that_is_not_named_starts_at_its_beginning() -> None:
    restored = spec(received={OLD: position(OLD, 7, ended=True)})
    channel = input_end(restored, NEW, 2, None)
    assert (channel.port, channel.committed, channel.ended) == (2, 0, False)


def test_a_restored_input_goes_on_where_it_was_with_all_it_had_heard() -> None:
    restored = spec(received={OLD: position(OLD, 7, ended=True)})
    channel = input_end(restored, OLD, 0, None)
    assert (channel.committed, channel.ended) == (7, True)


def test_a_restored_output_numbers_its_records_on() -> None:
    restored = spec(sent={OLD: position(OLD, 7)})
    assert output_end(restored, OLD, None).sent == 7
    assert output_end(restored, NEW, None).sent == 0
