"""Checkpoints from trigger to their end, without a coordinator.

The tests of a coordinator with checkpoints (`test_coordinator_checkpoints.py`) cover the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.channels.events import CheckpointMode
from headrace.engine.contract import messages as m
from headrace.engine.coordinator.checkpoints import (
    Checkpoints,
    Schedule,
    metadata_of,
)
from headrace.engine.coordinator.coordinator_events import (
    CheckpointRequested,
    PartEffect,
    SendMessage,
)
from headrace.engine.coordinator.pending import PendingCheckpoint
from headrace.engine.coordinator.retention import Retention
from headrace.engine.coordinator.rules import CheckpointRules
from headrace.engine.coordinator.transactions import Transactions
from headrace.engine.coordinator.workers import Workers
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery.metadata import (
    ChannelPosition,
    SubtaskSnapshot,
)

from . import driven_coordinator as driven
from .driven_coordinator import PLAN, texts

RULES = CheckpointRules(
    interval_ns=100,
    min_pause_ns=0,
    timeout_ns=500,
    tolerable_failures=1,
    retain=1,
    concurrent=2,
)


def run(side: str, first: int, rows: int, *, ended: bool = False) -> ChannelStateHandle:
    """In-flight records of worker 0's channel."""
    path = "chk-1/worker-0-e1.segment"
    buffers = [BufferHandle(path, 16, 8, "0" * 16, rows, 0, rows)] if rows else []
    return ChannelStateHandle(0, 0, 0, side, first, buffers, ended)


class Subject:
    """Both workers are there, an attempt runs; effects as text."""

    def __init__(
        self,
        mode: CheckpointMode = CheckpointMode.UNALIGNED,
        rules: CheckpointRules = RULES,
    ) -> None:
        workers = Workers([[0], [1]], driven.RULES)
        for worker in (0, 1):
            workers.register(worker, m.Register(worker, 0, "host", 1000, 1), 0)
        self.machine = Checkpoints(
            PLAN,
            mode,
            rules,
            None,
            1,
            workers=workers,
            transactions=Transactions(None, driven.RULES.restarts),
            retention=Retention(None, retain=1),
        )
        self.machine.begin(1, 0)
        self.now_ns = 0

    def trigger(self, now_ns: int, *, last: bool = False) -> list[str]:
        self.now_ns = now_ns
        return self.told(self.machine.trigger_due(now_ns, last=last))

    def acknowledge(
        self,
        checkpoint: int,
        *,
        received: int = 5,
        sent: int = 5,
        sent_end: bool = False,
        inputs: Sequence[ChannelStateHandle] = (),
        outputs: Sequence[ChannelStateHandle] = (),
    ) -> list[str]:
        """Both workers; the channel of worker 0 is as said, that of worker 1 is empty."""
        for worker in (0, 1):
            ours = worker == 0
            begin = ChannelPosition(0, worker, worker, sent if ours else 5, ours and sent_end)
            end = ChannelPosition(0, worker, worker, received if ours else 5, ended=False)
            parts = [
                SubtaskSnapshot(0, worker, False, [], [], [begin], list(outputs) if ours else []),
                SubtaskSnapshot(1, worker, False, [], [end], [], list(inputs) if ours else []),
            ]
            assert self.machine.is_pending(checkpoint)
            self.machine.acknowledged(worker, m.Acknowledge(1, checkpoint, parts, []))
        return self.write_ready()

    def write_ready(self) -> list[str]:
        return self.told(self.machine.write_ready(self.now_ns))

    def written(self, checkpoint: int) -> list[str]:
        return self.told(self.machine.written(checkpoint, self.now_ns, running=True))

    def told(self, effects: Sequence[PartEffect]) -> list[str]:
        self.machine.check(running=True)
        return texts(effects)


# --- the tile check, with what is in flight -------------------------------------------------------


def test_in_flight_records_of_both_sides_fill_the_gap_between_the_cuts() -> None:
    subject = Subject()
    subject.trigger(100)
    inputs, outputs = [run("input", 2, 3)], [run("output", 5, 4)]
    told = subject.acknowledge(1, received=2, sent=9, inputs=inputs, outputs=outputs)
    assert told == ["write 1: []"]


def test_a_record_that_nobody_captured_fails_the_attempt() -> None:
    subject = Subject()
    subject.trigger(100)
    (told,) = subject.acknowledge(1, received=2, sent=9, inputs=[run("input", 2, 6)])
    assert told.startswith("attempt broken: chk-1 does not tile: channel e0:0>0: ")


def test_a_record_that_both_sides_captured_fails_the_attempt() -> None:
    subject = Subject()
    subject.trigger(100)
    inputs, outputs = [run("input", 2, 4)], [run("output", 5, 4)]
    (told,) = subject.acknowledge(1, received=2, sent=9, inputs=inputs, outputs=outputs)
    assert "does not tile" in told


def test_an_end_of_input_in_flight_must_have_been_captured() -> None:
    lost, kept = Subject(), Subject()
    for subject in (lost, kept):
        subject.trigger(100)
    (told,) = lost.acknowledge(1, sent_end=True)
    assert "does not tile" in told
    outputs = [run("output", 5, 0, ended=True)]
    assert kept.acknowledge(1, sent_end=True, outputs=outputs) == ["write 1: []"]


def test_what_is_left_to_replay_is_of_channels_that_are_no_more() -> None:
    subject = Subject()
    subject.trigger(100)
    assert subject.acknowledge(1, inputs=[run("replay", 0, 7)]) == ["write 1: []"]


def test_at_least_once_promises_no_tiles() -> None:
    subject = Subject(CheckpointMode.AT_LEAST_ONCE)
    subject.trigger(100)
    assert subject.acknowledge(1, received=9, sent=5) == ["write 1: []"]


def test_a_channel_whose_sender_says_nothing_fails_the_attempt() -> None:
    subject = Subject()
    subject.trigger(100)
    for worker in (0, 1):
        subject.machine.acknowledged(worker, m.Acknowledge(1, 1, [], []))
    told = "attempt broken: chk-1 does not tile: channel e0:0>0: no end reported"
    assert subject.write_ready() == [told]


# --- several at once ------------------------------------------------------------------------------


def test_several_are_under_way_up_to_the_limit() -> None:
    subject = Subject()
    assert subject.trigger(100) == ["Trigger to 0", "Trigger to 1"]
    assert subject.trigger(200) == ["Trigger to 0", "Trigger to 1"]
    assert subject.trigger(300) == []
    assert subject.machine.under_way == 2


def test_one_metadata_is_written_at_a_time_and_a_newer_one_waits() -> None:
    subject = Subject()
    subject.trigger(100)
    subject.trigger(200)
    assert subject.acknowledge(1) == ["write 1: []"]
    assert subject.acknowledge(2) == []
    assert subject.written(1)[:3] == ["Completed to 0", "Completed to 1", "commit 1: []"]
    assert subject.write_ready() == ["write 2: []"]


def test_a_newer_one_that_completes_first_ends_the_older() -> None:
    subject = Subject()
    subject.trigger(100)
    subject.trigger(200)
    subject.acknowledge(2)
    told = subject.written(2)
    assert told[2:] == ["commit 2: []", "Cancelled to 0", "Cancelled to 1"]
    assert not subject.machine.is_pending(1), "nobody waits for it any more"


def test_the_last_one_comes_alone_and_its_completion_is_told() -> None:
    subject = Subject()
    subject.trigger(100)
    assert subject.trigger(150, last=True) == []
    subject.acknowledge(1)
    assert not any(told.startswith("last") for told in subject.written(1))
    assert subject.trigger(160, last=True) == ["Trigger to 0", "Trigger to 1"]
    subject.acknowledge(2)
    assert subject.written(2)[-1] == "last 2"


# --- giving up ------------------------------------------------------------------------------------


def test_a_metadata_that_cannot_be_written_is_a_failed_checkpoint() -> None:
    subject = Subject()
    subject.trigger(100)
    subject.acknowledge(1)
    told = subject.told(subject.machine.discarded(1, "disk full", 110))
    assert told == ["Cancelled to 0", "Cancelled to 1"]
    assert subject.machine.under_way == 0


def test_more_failures_in_a_row_than_are_tolerable_fail_the_attempt() -> None:
    subject = Subject()
    subject.trigger(100)
    subject.trigger(200)
    cancelled = ["Cancelled to 0", "Cancelled to 1"]
    assert subject.told(subject.machine.expire(600)) == cancelled
    *told, broken = subject.told(subject.machine.expire(700))
    assert told == cancelled
    assert broken.startswith("attempt broken: too many checkpoints")


def test_all_that_are_late_are_given_up_before_the_attempt_fails() -> None:
    subject = Subject(rules=replace(RULES, tolerable_failures=0))
    subject.trigger(100)
    subject.trigger(200)
    told = subject.told(subject.machine.expire(700))
    assert told[:4] == ["Cancelled to 0", "Cancelled to 1"] * 2
    assert told[4].startswith("attempt broken: too many checkpoints failed; chk-1")


def test_what_is_pending_ends_with_the_attempt_and_who_asked_is_told() -> None:
    subject = Subject()
    subject.machine.requested(CheckpointRequested(7))
    subject.trigger(50)
    told = subject.told(subject.machine.leave("a worker was lost"))
    assert told == ["answer 7: a worker was lost"]
    assert subject.machine.next_deadline_ns(stopping=False) is None


def test_requests_that_were_not_granted_are_refused_once() -> None:
    subject = Subject()
    subject.machine.requested(CheckpointRequested(7))
    assert subject.told(subject.machine.refuse_requests("stopped")) == ["answer 7: stopped"]
    assert subject.told(subject.machine.refuse_requests("stopped")) == []


# --- one pending checkpoint -----------------------------------------------------------------------


# --- the schedule ---------------------------------------------------------------------------------

ONE = replace(RULES, timeout_ns=1_000, concurrent=1)


def test_nothing_is_due_before_an_attempt_starts_or_after_it_ended() -> None:
    schedule = Schedule(ONE)
    assert schedule.due_ns is None
    schedule.attempt_started(50)
    assert schedule.due_ns == 150
    schedule.attempt_ended()
    assert schedule.due_ns is None


@pytest.mark.parametrize(
    ("triggered_at_ns", "next_ns"),
    [(150, 250), (170, 250), (249, 250), (250, 350), (900, 1_000)],
)
def test_a_trigger_that_was_a_little_late_does_not_shift_the_next(
    triggered_at_ns: int, next_ns: int
) -> None:
    schedule = Schedule(ONE)
    schedule.attempt_started(50)
    schedule.triggered(triggered_at_ns)
    assert schedule.due_ns == next_ns


def test_a_pause_follows_the_end_of_each_checkpoint() -> None:
    schedule = Schedule(replace(ONE, min_pause_ns=80))
    schedule.attempt_started(0)
    schedule.triggered(100)
    schedule.ended(110, complete=True)
    assert schedule.due_ns == 200, "the interval is longer"
    schedule.triggered(200)
    schedule.ended(290, complete=False)
    assert schedule.due_ns == 370


def test_without_an_interval_nothing_is_ever_due() -> None:
    schedule = Schedule(replace(ONE, interval_ns=None))
    schedule.attempt_started(0)
    schedule.triggered(10)
    schedule.ended(20, complete=True)
    assert schedule.due_ns is None


def test_failures_in_a_row_are_tolerated_up_to_the_limit() -> None:
    schedule = Schedule(ONE)
    schedule.attempt_started(0)
    for complete, broken in [(False, False), (True, False), (False, False), (False, True)]:
        schedule.ended(0, complete=complete)
        assert schedule.is_broken is broken
    schedule.attempt_started(0)
    schedule.ended(0, complete=False)
    assert not schedule.is_broken, "a new attempt begins anew"


# --- metadata -------------------------------------------------------------------------------------


def test_the_metadata_says_how_edges_deal_out_records() -> None:
    numbers = hr.read.sequence(10, keys=2, name="numbers")
    totals = (
        numbers.rebalance()
        .filter(pc.field("key") > 0)
        .key_by("key")
        .aggregate(n=hr.count(), name="totals")
    )
    plan = hr.Job("job", totals.write.collect(name="out"), parallelism=2).plan()
    pending = PendingCheckpoint(1, 0, False, None, CheckpointMode.ALIGNED)
    found = metadata_of(plan, pending, [], epoch=1, now_ns=0)
    assert [(e.partitioning, e.columns) for e in found.edges] == [
        ("rebalance", []),
        ("hash", ["key"]),
    ]


# --- full ones ------------------------------------------------------------------------------------


class Fulls:
    """Triggers as a worker sees them: which ask for a full checkpoint."""

    def __init__(self, every: int, concurrent: int = 1) -> None:
        self.subject = Subject(rules=replace(RULES, full_every=every, concurrent=concurrent))
        self.number = 0

    def trigger(self) -> bool:
        self.number += 1
        effects = self.subject.machine.trigger_due(100 * self.number, last=False)
        messages = [e.message for e in effects if isinstance(e, SendMessage)]
        (full,) = {message.full for message in messages if isinstance(message, m.Trigger)}
        return full

    def complete(self, number: int) -> None:
        self.subject.acknowledge(number)
        self.subject.written(number)

    def take(self) -> bool:
        full = self.trigger()
        self.complete(self.number)
        return full


def test_one_checkpoint_in_so_many_is_full() -> None:
    assert [Fulls(0).take() for _ in range(3)] == [False] * 3
    for every in (1, 2, 3):
        fulls = Fulls(every)
        assert [fulls.take() for _ in range(6)] == [n % every == 0 for n in range(6)]


def test_checkpoints_are_full_until_one_is_complete() -> None:
    """Else the next would build upon one that was triggered earlier, and names older files."""
    fulls = Fulls(2, concurrent=2)
    assert [fulls.take(), fulls.take()] == [True, False]
    assert [fulls.trigger(), fulls.trigger()] == [True, True]
    fulls.complete(3)
    fulls.complete(4)
    assert [fulls.take(), fulls.take()] == [False, True]


def test_a_full_checkpoint_that_was_given_up_is_due_still() -> None:
    fulls = Fulls(2)
    assert [fulls.take(), fulls.take(), fulls.trigger()] == [True, False, True]
    fulls.subject.machine.give_up(3, "slow", 350)
    assert [fulls.take(), fulls.take()] == [True, False]
