"""Reports: a cut in the terms of the coordinator, and of the user."""

from __future__ import annotations

import pytest

from headrace.channels.buffer import ChannelId
from headrace.engine.contract.operators import Transaction
from headrace.engine.worker.reports import acknowledge
from headrace.engine.worker.subtask_events import Cut, Hold, SubtaskId
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


def test_every_cut_becomes_a_snapshot_and_its_transactions_go_with_their_sink() -> None:
    first, second = Transaction("a", {"rows": 1}), Transaction("b", {})
    cuts = [cut_of(SOURCE), cut_of(SINK, ("out", first), ("out", second))]
    message = acknowledge(PLAN, persisted(SOURCE, SINK), cuts, 0)
    assert (message.epoch, message.checkpoint) == (5, 3)
    assert [(s.task, s.index, s.async_ns, s.watermark) for s in message.subtasks] == [
        (0, 1, 7, 9),
        (1, 1, 7, 9),
    ]
    records = [TransactionRecord("out", "a", {"rows": 1}), TransactionRecord("out", "b", {})]
    assert message.transactions == records


@pytest.mark.parametrize(("now_ns", "end_to_end_ns"), [(150, 50), (90, 0)])
def test_the_whole_duration_is_never_negative(now_ns: int, end_to_end_ns: int) -> None:
    message = acknowledge(PLAN, persisted(SINK), [cut_of(SINK, created_ns=100)], now_ns)
    assert [s.end_to_end_ns for s in message.subtasks] == [end_to_end_ns]


def test_what_held_a_cut_is_named_as_its_user_knows_it() -> None:
    holds = (Hold("barrier", ChannelId(0, 0, 1), 30), Hold("work", None, 20))
    message = acknowledge(PLAN, persisted(SINK), [cut_of(SINK, holds=holds)], 0)
    (snapshot,) = message.subtasks
    assert snapshot.holds == [
        metadata.Hold("barrier", "numbers->out/0 0>1", 30),
        metadata.Hold("work", "out", 20),
    ]
