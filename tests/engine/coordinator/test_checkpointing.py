"""Checkpoints from trigger to their end, without a coordinator; its tests (`test_coordinator_checkpoints.py`) cover the rest."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.channels.events import CheckpointMode
from headrace.engine.contract import messages as m
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.coordinator.checkpointing import FINE, Checkpointing, Verdict
from headrace.engine.coordinator.ledger import Ledger
from headrace.engine.coordinator.pending import CheckpointRules, Wish
from headrace.engine.coordinator.roster import Roster
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery.metadata import ChannelPosition, SubtaskSnapshot

from .driven_coordinator import PLAN, noted

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

    def __init__(self, mode: CheckpointMode = CheckpointMode.UNALIGNED) -> None:
        roster = Roster([[0], [1]])
        for worker in (0, 1):
            roster.register(worker, m.Register(worker, 0, "host", 1000, 1), 0)
        self.machine = Checkpointing(PLAN, mode, RULES, roster, Ledger(None, retain=1), 1)
        self.machine.begin(1, 0)
        self.effects: list[d.CoordinatorEffect] = []
        self.now_ns = 0

    def trigger(self, now_ns: int, *, last: bool = False) -> list[str]:
        self.now_ns = now_ns
        self.machine.trigger_due(now_ns, last=last, effects=self.effects)
        return self.told()

    def acknowledge(
        self,
        checkpoint: int,
        *,
        received: int = 5,
        sent: int = 5,
        sent_end: bool = False,
        inputs: Sequence[ChannelStateHandle] = (),
        outputs: Sequence[ChannelStateHandle] = (),
    ) -> Verdict:
        """Both workers; the channel of worker 0 is as said, that of worker 1 is empty."""
        for worker in (0, 1):
            ours = worker == 0
            begin = ChannelPosition(0, worker, worker, sent if ours else 5, ours and sent_end)
            end = ChannelPosition(0, worker, worker, received if ours else 5, ended=False)
            parts = [
                SubtaskSnapshot(0, worker, False, [], [], [begin], list(outputs) if ours else []),
                SubtaskSnapshot(1, worker, False, [], [end], [], list(inputs) if ours else []),
            ]
            assert self.machine.acknowledged(worker, m.Acknowledge(1, checkpoint, parts, []))
        return self.machine.write_ready(self.now_ns, self.effects)

    def written(self, checkpoint: int) -> Verdict:
        return self.machine.written(checkpoint, self.now_ns, running=True, effects=self.effects)

    def told(self) -> list[str]:
        effects, self.effects = self.effects, []
        self.machine.check(running=True)
        return [text for text in map(noted, effects) if text is not None]


# --- the tile check, with what is in flight ---------------------------------------------------------------------------


def test_in_flight_records_of_both_sides_fill_the_gap_between_the_cuts() -> None:
    subject = Subject()
    subject.trigger(100)
    verdict = subject.acknowledge(
        1, received=2, sent=9, inputs=[run("input", 2, 3)], outputs=[run("output", 5, 4)]
    )
    assert verdict == FINE
    assert subject.told() == ["write 1: []"]


def test_a_record_that_nobody_captured_fails_the_attempt() -> None:
    subject = Subject()
    subject.trigger(100)
    verdict = subject.acknowledge(1, received=2, sent=9, inputs=[run("input", 2, 6)])
    assert verdict.failure.startswith("chk-1 does not tile: channel e0:0>0: ")
    assert subject.told() == []


def test_a_record_that_both_sides_captured_fails_the_attempt() -> None:
    subject = Subject()
    subject.trigger(100)
    verdict = subject.acknowledge(
        1, received=2, sent=9, inputs=[run("input", 2, 4)], outputs=[run("output", 5, 4)]
    )
    assert "does not tile" in verdict.failure


def test_an_end_of_input_in_flight_must_have_been_captured() -> None:
    lost, kept = Subject(), Subject()
    for subject in (lost, kept):
        subject.trigger(100)
    assert "does not tile" in lost.acknowledge(1, sent_end=True).failure
    assert kept.acknowledge(1, sent_end=True, outputs=[run("output", 5, 0, ended=True)]) == FINE


def test_what_is_left_to_replay_is_of_channels_that_are_no_more() -> None:
    subject = Subject()
    subject.trigger(100)
    assert subject.acknowledge(1, inputs=[run("replay", 0, 7)]) == FINE


def test_at_least_once_promises_no_tiles() -> None:
    subject = Subject(CheckpointMode.AT_LEAST_ONCE)
    subject.trigger(100)
    assert subject.acknowledge(1, received=9, sent=5) == FINE


def test_a_channel_whose_sender_says_nothing_fails_the_attempt() -> None:
    subject = Subject()
    subject.trigger(100)
    for worker in (0, 1):
        subject.machine.acknowledged(worker, m.Acknowledge(1, 1, [], []))
    verdict = subject.machine.write_ready(100, subject.effects)
    assert verdict.failure == "chk-1 does not tile: channel e0:0>0: no end reported"


# --- several at once --------------------------------------------------------------------------------------------------


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
    subject.told()
    subject.acknowledge(1)
    subject.acknowledge(2)
    assert subject.told() == ["write 1: []"]
    subject.written(1)
    assert subject.told()[:3] == ["Completed to 0", "Completed to 1", "commit 1: []"]
    subject.machine.write_ready(subject.now_ns, subject.effects)
    assert subject.told() == ["write 2: []"]


def test_a_newer_one_that_completes_first_ends_the_older() -> None:
    subject = Subject()
    subject.trigger(100)
    subject.trigger(200)
    subject.acknowledge(2)
    subject.told()
    assert subject.written(2) == FINE
    assert "Cancelled to 0" in subject.told()
    late = m.Acknowledge(1, 1, [], [])
    assert not subject.machine.acknowledged(0, late), "nobody waits for it any more"


def test_the_last_one_comes_alone_and_its_completion_is_told() -> None:
    subject = Subject()
    subject.trigger(100)
    assert subject.trigger(150, last=True) == []
    subject.acknowledge(1)
    subject.written(1)
    subject.told()
    assert subject.trigger(160, last=True) == ["Trigger to 0", "Trigger to 1"]
    subject.acknowledge(2)
    assert subject.written(2) == Verdict(final=2)


# --- giving up --------------------------------------------------------------------------------------------------------


def test_a_metadata_that_cannot_be_written_is_a_failed_checkpoint() -> None:
    subject = Subject()
    subject.trigger(100)
    subject.acknowledge(1)
    subject.told()
    assert subject.machine.discarded(1, "disk full", 110, subject.effects) == FINE
    assert subject.told() == ["Cancelled to 0", "Cancelled to 1"]
    assert subject.machine.under_way == 0


def test_more_failures_in_a_row_than_are_tolerable_fail_the_attempt() -> None:
    subject = Subject()
    subject.trigger(100)
    subject.trigger(200)
    assert subject.machine.expire(600, subject.effects) == FINE
    assert subject.machine.expire(700, subject.effects).failure.startswith("too many checkpoints")


def test_what_is_pending_ends_with_the_attempt_and_who_asked_is_told() -> None:
    subject = Subject()
    subject.machine.requested(Wish(7))
    subject.trigger(50)
    subject.machine.leave("a worker was lost", subject.effects)
    assert subject.told() == ["answer 7: a worker was lost"]
    assert subject.machine.next_deadline_ns(stopping=False) is None
