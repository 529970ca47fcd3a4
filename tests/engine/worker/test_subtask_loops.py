"""The head of a loop, driven by hand: the end of its input, event time, and who is served."""

from __future__ import annotations

import pytest

from headrace.channels.events import MAX_WATERMARK, EndOfInput, Watermark
from headrace.engine.contract.execution import EventTimeRole
from headrace.engine.worker.subtask_events import EndLoop
from headrace.engine.worker.subtask_spec import EventTimeSpec

from .driven_subtask import A, B, L, M, loop_head

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
