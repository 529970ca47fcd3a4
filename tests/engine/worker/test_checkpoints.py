"""Checkpoints of a worker: one write when all have cut, and a report in the terms of the user."""

from __future__ import annotations

import pytest

from headrace.channels.buffer import ChannelId
from headrace.engine.contract import messages as m
from headrace.engine.contract.execution import SubtaskId
from headrace.engine.contract.operators import Transaction
from headrace.engine.worker.checkpoints import Checkpoints
from headrace.engine.worker.subtask_events import Cut, Hold
from headrace.engine.worker.worker_events import CheckpointPersisted
from headrace.recovery import metadata
from headrace.recovery.metadata import TransactionRecord

from ..coordinator.driven_coordinator import PLAN

SOURCE, SINK = SubtaskId(0, 1), SubtaskId(1, 1)


def cut_of(
    subtask: SubtaskId,
    *transactions: tuple[str, Transaction],
    created_ns: int = 0,
    holds: tuple[Hold, ...] = (),
) -> Cut:
    return Cut(
        subtask, 3, False, (), (), transactions, (), (), 1, 2, created_ns, holds, watermark_ns=9
    )


def persisted(*subtasks: SubtaskId) -> CheckpointPersisted:
    nothing = dict.fromkeys(subtasks, 0)
    return CheckpointPersisted(
        5, 3, {s: [] for s in subtasks}, {s: [] for s in subtasks}, nothing, 7
    )


def acknowledged(*cuts: Cut, now_ns: int = 0) -> m.Acknowledge:
    """What a worker with these subtasks reports when its part is durable."""
    subject = Checkpoints(5, PLAN, len(cuts))
    subject.triggered(3, None)
    orders = [order for cut in cuts for order in subject.cut(cut)]
    assert [order.cuts for order in orders] == [cuts]
    message = subject.persisted(persisted(*(cut.subtask for cut in cuts)), now_ns)
    assert message is not None
    return message


def test_a_checkpoint_is_written_when_all_have_cut_and_its_trigger_was_heard() -> None:
    subject = Checkpoints(5, PLAN, 2)
    assert subject.cut(cut_of(SOURCE)) == []
    assert subject.is_cutting
    assert subject.cut(cut_of(SINK)) == []
    assert subject.triggered(2, None) == []
    (order,) = subject.triggered(4, None)
    assert (order.epoch, order.checkpoint, order.savepoint) == (5, 3, None)
    assert not subject.is_cutting
    assert subject.triggered(5, None) == []


def test_a_savepoint_keeps_its_directory_until_it_is_written() -> None:
    subject = Checkpoints(5, PLAN, 1)
    assert subject.triggered(3, "file:///kept") == []
    assert not subject.is_cutting
    (order,) = subject.cut(cut_of(SOURCE))
    assert order.savepoint == "file:///kept"


def test_a_subtask_that_cuts_twice_is_a_bug() -> None:
    subject = Checkpoints(5, PLAN, 2)
    subject.cut(cut_of(SOURCE))
    with pytest.raises(AssertionError, match="cut twice"):
        subject.cut(cut_of(SOURCE))


def test_a_checkpoint_that_was_given_up_is_neither_written_nor_acknowledged() -> None:
    subject = Checkpoints(5, PLAN, 2)
    subject.triggered(3, None)
    subject.cut(cut_of(SOURCE))
    subject.given_up(3)
    assert not subject.is_cutting
    assert subject.cut(cut_of(SINK)) == []
    assert len(subject.cut(cut_of(SOURCE))) == 1
    subject.given_up(3)
    assert subject.persisted(persisted(SOURCE, SINK), 0) is None


def test_every_cut_becomes_a_snapshot_and_its_transactions_go_with_their_sink() -> None:
    first, second = Transaction("a", {"rows": 1}, "0f"), Transaction("b", {})
    message = acknowledged(cut_of(SOURCE), cut_of(SINK, ("out", first), ("out", second)))
    assert (message.epoch, message.checkpoint) == (5, 3)
    assert [(s.task, s.index, s.async_ns, s.watermark) for s in message.subtasks] == [
        (0, 1, 7, 9),
        (1, 1, 7, 9),
    ]
    one = TransactionRecord("out", "a", {"rows": 1}, "0f")
    records = [one, TransactionRecord("out", "b", {})]
    assert message.transactions == records


@pytest.mark.parametrize(("now_ns", "end_to_end_ns"), [(150, 50), (90, 0)])
def test_the_whole_duration_is_never_negative(now_ns: int, end_to_end_ns: int) -> None:
    message = acknowledged(cut_of(SINK, created_ns=100), now_ns=now_ns)
    assert [s.end_to_end_ns for s in message.subtasks] == [end_to_end_ns]


def test_what_held_a_cut_is_named_as_its_user_knows_it() -> None:
    holds = (Hold("barrier", ChannelId(0, 0, 1), 30), Hold("work", None, 20))
    message = acknowledged(cut_of(SINK, holds=holds))
    (snapshot,) = message.subtasks
    assert snapshot.holds == [
        metadata.Hold("barrier", "numbers->out/0 0>1", 30),
        metadata.Hold("work", "out", 20),
    ]
