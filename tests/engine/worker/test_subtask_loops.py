"""The head of a loop, driven by hand: the end of its input, event time, and who is served."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.channels.credit import Budget
from headrace.channels.events import MAX_WATERMARK, EndOfInput, Watermark
from headrace.engine.contract.execution import EventTimeRole
from headrace.engine.operators.work import ChainTime
from headrace.engine.worker.subtask_events import (
    CreditGranted,
    DeadlineReached,
    EndLoop,
    WaveBegan,
)
from headrace.engine.worker.subtask_spec import EventTimeSpec
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery.metadata import ChannelPosition

from .driven_subtask import LIMITS, ROW_BYTES, A, B, Driven, L, M, X, loop_head

STORED = BufferHandle("chk-1/a", 8, 1, "0" * 16, 3, 0, 3)

# --- the end --------------------------------------------------------------------------------------


def test_a_head_goes_on_when_its_entries_have_ended_until_the_loop_has() -> None:
    head = loop_head()
    head.start()
    assert head.event(A, EndOfInput()) == []
    assert head.event(B, EndOfInput()) == []
    assert head.records(L, 1) == ["run 1: port 1 [0]"]
    assert head.done(1) == ["commit"]
    assert head.step(EndLoop()) == ["run 2: finish"]
    assert head.done(2) == ["commit", "finished", "send e1:0>0 end@0"]


def test_the_end_that_has_gone_round_changes_nothing() -> None:
    head = loop_head()
    head.start()
    head.event(A, EndOfInput())
    head.event(B, EndOfInput())
    head.step(EndLoop())
    head.done(1)
    assert head.event(L, EndOfInput()) == []
    assert head.event(M, EndOfInput()) == []
    assert head.step(EndLoop()) == []


def test_a_loop_does_not_end_before_its_entries() -> None:
    head = loop_head()
    head.start()
    head.event(A, EndOfInput())
    with pytest.raises(AssertionError, match="e0:1>0 enters a loop that ended"):
        head.step(EndLoop())


def test_a_loop_with_records_has_not_ended() -> None:
    head = loop_head()
    head.start()
    head.event(A, EndOfInput())
    head.event(B, EndOfInput())
    head.records(L, 1)
    with pytest.raises(AssertionError, match="e2:0>0: records in the loop"):
        head.step(EndLoop())


# --- at rest --------------------------------------------------------------------------------------

#: The edges of the cycle: from the head's output round to its back-edges.
CYCLE = (1, 2)


def ended_head(**options: object) -> Driven:
    """A head whose entries have ended."""
    head = loop_head(**options)
    head.start()
    head.event(A, EndOfInput())
    head.event(B, EndOfInput())
    return head


def test_a_head_at_rest_counts_the_records_of_the_cycle_alone() -> None:
    head = loop_head()
    head.start()
    head.records(A, 3)
    head.done(1, 3)
    head.records(L, 2)
    head.done(2, 1, 1)
    head.event(A, EndOfInput())
    head.event(B, EndOfInput())
    assert head.subtask.counts(CYCLE) == (5, 2)


def test_records_that_wait_to_be_sent_count_as_sent() -> None:
    head = ended_head(limits=replace(LIMITS, window_bytes=1, work_rows_max=1))
    head.records(L, 3)
    assert head.done(1, 30)[-1] == "send e1:0>0 0..1"
    assert head.subtask.counts(CYCLE) == (30, 1)


def test_a_head_whose_entries_go_on_is_not_at_rest() -> None:
    head = loop_head()
    head.start()
    head.event(A, EndOfInput())
    assert head.subtask.counts(CYCLE) is None


def test_an_end_behind_records_that_wait_is_no_end() -> None:
    head = loop_head(limits=replace(LIMITS, work_rows_max=1))
    head.start()
    head.event(B, EndOfInput())
    head.records(A, 2)
    head.event(A, EndOfInput())
    head.done(1)
    assert head.subtask.counts(CYCLE) is None


def test_running_work_is_no_rest() -> None:
    head = ended_head()
    head.records(L, 1)
    assert head.subtask.counts(CYCLE) is None
    head.done(1)
    assert head.subtask.counts(CYCLE) == (0, 1)


def test_records_left_to_replay_are_no_rest() -> None:
    stored = ChannelStateHandle(2, 0, 0, "input", 0, [STORED], ended=False)
    ended = [ChannelPosition(0, producer, 0, 0, ended=True) for producer in (0, 1)]
    head = loop_head(replay=[stored], received=ended)
    head.opened()
    assert head.subtask.counts(CYCLE) is None


def test_a_timer_that_is_set_and_a_call_under_way_are_no_rest() -> None:
    """Operators tell of both by the time at which they want to be woken."""
    head = ended_head(time=EventTimeSpec(EventTimeRole.ACTS))
    head.records(L, 1)
    head.done(1, time=ChainTime(due_ns=1_000))
    assert head.subtask.counts(CYCLE) is None
    head.now_ns = 1_000
    assert head.step(DeadlineReached()) == ["run 2: advance -9223372036854775808"]
    head.done(2, time=ChainTime())
    assert head.subtask.counts(CYCLE) == (0, 1)


def test_a_wave_of_replay_is_no_rest() -> None:
    ended = [ChannelPosition(0, producer, 0, 0, ended=True) for producer in (0, 1)]
    head = loop_head(received=ended, wave=1)
    head.opened()
    assert head.subtask.counts(CYCLE) is None
    head.step(WaveBegan(0))
    assert head.subtask.counts(CYCLE) == (0, 0)


def test_a_finished_head_is_at_rest() -> None:
    """Its operators have nothing to do, although it was restored."""
    ended = [ChannelPosition(0, producer, 0, 0, ended=True) for producer in (0, 1)]
    time = EventTimeSpec(EventTimeRole.ACTS, restored=True)
    head = loop_head(finished=True, received=ended, time=time)
    head.opened()
    assert head.subtask.counts(CYCLE) == (0, 0)


# --- event time -----------------------------------------------------------------------------------


def test_event_time_is_that_of_the_entries() -> None:
    head = loop_head()
    head.start()
    head.event(L, Watermark(3))
    head.event(M, Watermark(3))
    head.event(A, Watermark(9))
    assert head.event(B, Watermark(7)) == ["send e1:0>0 watermark 7@0"]
    assert head.event(L, Watermark(5, idle=True)) == []


def test_a_head_is_idle_when_its_entries_are() -> None:
    head = loop_head()
    head.start()
    head.event(A, Watermark(4, idle=True))
    assert head.event(B, Watermark(4, idle=True))[0] == "send e1:0>0 idle 4@0"


def test_the_highest_of_times_comes_when_the_loop_has_ended() -> None:
    head = loop_head(time=EventTimeSpec(EventTimeRole.ACTS))
    head.start()
    head.event(A, Watermark(4))
    head.event(A, EndOfInput())
    assert head.event(B, Watermark(5)) == ["run 1: advance 5"]
    head.done(1)
    assert head.event(B, EndOfInput()) == []
    assert head.step(EndLoop()) == [f"run 2: advance {MAX_WATERMARK}"]


# --- who is served --------------------------------------------------------------------------------


def test_back_edges_accept_while_the_head_has_no_room() -> None:
    head = loop_head(limits=replace(LIMITS, window_bytes=4 * ROW_BYTES))
    head.opened()
    assert head.records(L, 2) == ["grant e2:0>0 48"]
    assert head.records(L, 2) == ["grant e2:0>0 64"]
    assert head.records(A, 2) == [], "an entry gets credit back for committed records"
    assert head.step(CreditGranted(X, 80)) == ["run 1: port 0 [0, 1]"]


def test_back_edges_are_opened_while_they_replay() -> None:
    stored = ChannelStateHandle(2, 0, 0, "input", 0, [STORED], ended=False)
    head = loop_head(replay=[stored])
    granted = [effect for effect in head.opened() if effect.startswith("grant")]
    assert granted == [f"grant {channel} 800" for channel in (A, B, L, M)]


def test_entries_wait_while_the_loop_holds_more_than_the_windows_of_its_back_edges() -> None:
    head = loop_head(limits=replace(LIMITS, window_bytes=4 * ROW_BYTES, work_rows_max=1))
    head.start()
    assert head.records(L, 1) == ["run 1: port 1 [0]"]
    for _ in range(9):
        head.records(L, 1)
    head.records(A, 2)
    ran = [head.done(work)[-1] for work in range(1, 6)]
    assert ran == [
        "run 2: port 1 [1]",
        "run 3: port 1 [2]",
        "run 4: port 0 [0]",
        "run 5: port 1 [3]",
        "run 6: port 0 [1]",
    ]


def test_the_budget_counts_what_waits_on_back_edges() -> None:
    budget = Budget(100 * ROW_BYTES, 5)
    head = loop_head(limits=replace(LIMITS, window_bytes=4 * ROW_BYTES), budget=budget)
    head.opened()
    before_bytes = budget.held_bytes
    for _ in range(5):
        head.records(L, 4)
    assert budget.held_bytes == before_bytes + 20 * ROW_BYTES
