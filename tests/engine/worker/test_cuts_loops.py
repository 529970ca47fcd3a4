"""Cuts at the head of a loop: alignment over the entries, back-edges up to their barrier."""

from __future__ import annotations

from dataclasses import replace

from headrace.channels.events import CheckpointMode
from headrace.engine.worker.subtask_events import (
    BufferRead,
    CheckpointCancelled,
    DeadlineReached,
)
from headrace.inflight.handle import BufferHandle, ChannelStateHandle

from .driven_subtask import LIMITS, A, B, L, M, barrier, batch, loop_head

STORED = BufferHandle("chk-1/a", 8, 1, "0" * 16, 3, 0, 3)


def test_a_cut_waits_for_the_entries_alone() -> None:
    head = loop_head()
    head.start()
    head.records(A, 1)
    head.records(L, 2)
    head.event(A, barrier(1))
    assert head.event(B, barrier(1)) == []
    assert head.done(1)[:3] == ["commit", "send e1:0>0 barrier 1@0", "snapshot 1"]
    head.event(L, barrier(1))
    assert head.event(M, barrier(1)) == ["cut 1: received 1 0 0 0; sent 0; input e2:0>0 0..2"]


def test_the_cut_names_what_came_round_before_the_barrier_and_nothing_behind() -> None:
    head = loop_head()
    head.start()
    head.records(L, 2)
    head.event(A, barrier(1))
    assert head.event(B, barrier(1)) == []
    assert head.done(1) == ["commit", "send e1:0>0 barrier 1@0", "snapshot 1"]
    assert head.records(L, 1) == ["run 2: port 1 [2]"]
    assert head.event(L, barrier(1)) == []
    assert head.done(2) == ["commit"]
    assert head.records(L, 1) == ["run 3: port 1 [3]"]
    assert head.event(M, barrier(1)) == [
        "cut 1: received 0 0 2 0; sent 0; input e2:0>0 2..3",
    ]


def test_a_back_edge_whose_barrier_comes_first_is_blocked_until_the_cut() -> None:
    head = loop_head()
    head.start()
    head.records(L, 1)
    assert head.event(L, barrier(1)) == []
    assert head.done(1) == ["commit"]
    assert head.records(L, 1) == []
    assert head.records(A, 1) == ["run 2: port 0 [0]"]
    head.done(2)
    head.event(A, barrier(1))
    assert head.event(B, barrier(1)) == [
        "send e1:0>0 barrier 1@0",
        "snapshot 1",
        "run 3: port 1 [1]",
    ]
    assert head.event(M, barrier(1)) == ["cut 1: received 1 0 1 0; sent 0"]


def test_an_early_barrier_behind_records_bounds_the_capture() -> None:
    head = loop_head(limits=replace(LIMITS, work_rows_max=1))
    head.start()
    head.event(A, barrier(1))
    head.records(L, 1)
    head.records(L, 1)
    head.event(L, barrier(1))
    head.event(B, barrier(1))
    head.records(L, 1)
    assert head.done(1)[-3:] == ["send e1:0>0 barrier 1@0", "snapshot 1", "run 2: port 1 [1]"]
    assert head.event(M, barrier(1)) == ["cut 1: received 0 0 1 0; sent 0; input e2:0>0 1..2"]


def test_a_given_up_checkpoint_unblocks_back_edges() -> None:
    head = loop_head()
    head.start()
    head.event(L, barrier(1))
    assert head.records(L, 1) == []
    assert head.step(CheckpointCancelled(1)) == ["run 1: port 1 [0]"]


def test_at_least_once_captures_back_edges_and_blocks_none() -> None:
    head = loop_head()
    head.start()
    counted = barrier(1, CheckpointMode.AT_LEAST_ONCE)
    head.event(L, counted)
    assert head.records(L, 1) == ["run 1: port 1 [0]"]
    head.event(A, counted)
    head.records(M, 1)
    head.event(B, counted)
    assert head.done(1) == [
        "commit",
        "send e1:0>0 barrier 1@0",
        "snapshot 1",
        "run 2: port 1 [0]",
    ]
    assert head.event(M, counted) == ["cut 1: received 0 0 1 0; sent 0; input e2:1>0 0..1"]


def test_an_aligned_checkpoint_of_a_loop_may_turn_unaligned() -> None:
    head = loop_head(limits=replace(LIMITS, alignment_timeout_ns=100))
    head.start()
    head.records(A, 1)
    head.records(L, 2)
    head.event(A, barrier(1))
    head.now_ns = 100
    assert head.step(DeadlineReached()) == ["send e1:0>0 barrier 1@0", "snapshot 1"]
    head.event(B, barrier(1))
    head.event(L, barrier(1))
    assert head.event(M, barrier(1)) == [
        "cut 1: received 0 0 0 0; sent 0; input e0:0>0 0..1; input e2:0>0 0..2"
    ]


def test_what_a_back_edge_has_left_to_replay_belongs_to_an_aligned_cut() -> None:
    stored = ChannelStateHandle(2, 0, 0, "input", 0, [STORED], ended=False)
    head = loop_head(replay=[stored])
    head.start()
    head.event(A, barrier(2))
    head.event(B, barrier(2))
    head.event(L, barrier(2))
    head.event(M, barrier(2))
    (cut,) = head.cuts
    assert [(h.side, [b.rows for b in h.buffers]) for h in cut.replay] == [("replay", [3])]
    assert head.step(BufferRead(0, batch(0, 3))) == ["run 1: port 1 [0, 1, 2]"]


def test_what_an_entry_has_left_to_replay_holds_an_aligned_cut_back() -> None:
    stored = ChannelStateHandle(0, 0, 0, "input", 0, [STORED], ended=False)
    head = loop_head(replay=[stored])
    head.start()
    head.event(A, barrier(2))
    head.event(B, barrier(2))
    assert head.step(BufferRead(0, batch(0, 3))) == ["run 1: port 0 [0, 1, 2]"]
    assert not head.cuts
    assert "send e1:0>0 barrier 2@0" in head.done(1)
