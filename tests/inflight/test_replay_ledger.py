"""The ledger of a replay counts buffers and records by edge."""

from __future__ import annotations

import pytest

from headrace.channels.buffer import ChannelId
from headrace.channels.gate import InputChannel
from headrace.inflight.handle import BufferHandle
from headrace.inflight.replay import ReadOrder, ReplayInput
from headrace.inflight.replay_ledger import ReplayCount, ReplayLedger


def order(number: int, edge: int = 0) -> ReadOrder:
    return ReadOrder(number, edge, BufferHandle("chk-1/a", 0, 8, "0" * 16, 5, 0, 5))


def given(number: int, rows: int) -> ReplayInput:
    return ReplayInput(number, 0, (), rows)


def counts(ledger: ReplayLedger) -> list[tuple[int, ...]]:
    return [(c.edge, c.buffers, c.empty, c.passed, c.committed) for c in ledger.counts(())]


def test_a_subtask_without_a_replay_has_no_counts() -> None:
    assert ReplayLedger().counts(()) == ()


def test_a_buffer_counts_when_all_its_records_are_worked_on() -> None:
    ledger = ReplayLedger()
    ledger.ordered([order(0), order(1)])
    ledger.read(0, 5)
    ledger.worked(given(0, 3))
    assert counts(ledger) == [(0, 0, 0, 0, 3)]
    ledger.worked(given(0, 2))
    ledger.read(1, 4)
    ledger.worked(given(1, 1))
    assert counts(ledger) == [(0, 1, 0, 5, 6)]


def test_a_buffer_of_which_nothing_passed_is_empty_at_once() -> None:
    ledger = ReplayLedger()
    ledger.ordered([order(0, edge=1)])
    assert counts(ledger) == [(1, 0, 0, 0, 0)]
    ledger.read(0, 0)
    assert counts(ledger) == [(1, 0, 1, 0, 0)]


def test_new_records_of_the_edges_that_replay_are_counted() -> None:
    ledger = ReplayLedger()
    ledger.ordered([order(0, edge=1)])
    channels = [input_channel(edge, arrived) for edge, arrived in ((0, 7), (1, 2), (1, 3))]
    assert ledger.counts(channels) == (ReplayCount(1, 0, 0, 0, 0, 5),)


def input_channel(edge: int, arrived: int) -> InputChannel:
    channel = InputChannel.__new__(InputChannel)
    channel.channel, channel.arrived = ChannelId(edge, 0, 0), arrived
    return channel


def test_a_buffer_that_nobody_ordered_is_a_fault() -> None:
    with pytest.raises(KeyError):
        ReplayLedger().read(0, 1)
