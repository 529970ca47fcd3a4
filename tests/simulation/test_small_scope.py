"""The operators of a small scope: what they emit, what they commit, and what they complain of."""

from __future__ import annotations

import pytest

from headrace.channels.events import CheckpointMode
from headrace.engine.contract.operators import SourceStatus
from headrace.engine.operators.work import (
    FinishWork,
    PollWork,
    PrecommitWork,
    ProcessWork,
)
from headrace.engine.simulation.exploration.small_scope import (
    KEYED,
    SINK,
    SOURCE,
    Contents,
    Rows,
    Scope,
    SmallTask,
)
from headrace.engine.simulation.watch import Violation
from headrace.engine.worker.subtask_events import SubtaskId

SCOPE = Scope(CheckpointMode.UNALIGNED, rows=(2, 1), keyed=2)


def task(kind: int, subtask: int = 0) -> SmallTask:
    return SmallTask(SCOPE, SubtaskId(kind, subtask), epoch=1)


def process(operator: SmallTask, *ids: int) -> None:
    operator.run(1, ProcessWork(0, tuple(Rows((id,)) for id in ids), len(ids)))


def test_rows_are_cut_like_batches() -> None:
    rows = Rows((1, 2, 3))
    assert (rows.num_rows, rows.slice(1), rows.slice(0, 1)) == (3, Rows((2, 3)), Rows((1,)))


def test_equal_contents_have_equal_numbers() -> None:
    contents = Contents()
    assert contents.number((1,)) == contents.number((1,)) != contents.number((2,))
    assert contents.value(contents.number((2,))) == (2,)


def test_a_source_reads_a_record_at_a_time_and_says_which_is_its_last() -> None:
    source = task(SOURCE)
    first = source.run(1, PollWork(1))
    assert (first.rows_out, first.status, source.state) == (1, SourceStatus.MORE, 0)
    source.commit()
    assert source.run(2, PollWork(1)).status is SourceStatus.END
    source.commit()
    assert source.run(3, PollWork(1)).outputs == ((),)


def test_a_keyed_operator_passes_on_what_it_sees_and_ends_with_the_total() -> None:
    keyed = task(KEYED, 1)
    process(keyed, 10)
    assert keyed.state == ()
    keyed.commit()
    ((total,),) = keyed.run(2, FinishWork()).outputs
    assert total[1] == Rows(((1, (10,)),))


def test_records_of_one_source_must_come_in_order_and_once() -> None:
    keyed = task(KEYED)
    process(keyed, 1)
    process(keyed, 10)
    for again in (0, 1):
        with pytest.raises(Violation, match="comes after"):
            process(keyed, again)


def test_a_sink_prepares_what_it_has_written_since_its_last_transaction() -> None:
    sink = task(SINK)
    assert sink.run(1, PrecommitWork(1)).transactions == ()
    process(sink, 0, 1)
    ((name, transaction),) = sink.run(2, PrecommitWork(2)).transactions
    assert (name, sink.prepared) == ("sink", (transaction.id, (0, 1)))
    assert sink.open == ()


def test_what_the_sink_must_show_is_every_record_and_a_total_a_keyed_subtask() -> None:
    assert SCOPE.expected() == sorted([0, 1, 10, (0, (0,)), (1, (1, 10))], key=repr)
    assert [task.parallelism for task in SCOPE.plan().tasks] == [2, 2, 1]
