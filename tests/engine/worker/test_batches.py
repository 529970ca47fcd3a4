"""Full batches: a subtask that waits for rows, for a time, and never at a barrier or the end."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.credit import Window
from headrace.channels.events import CheckpointMode, EndOfInput, Watermark
from headrace.channels.gate import Gate, InputChannel
from headrace.engine.contract.execution import BatchRule
from headrace.engine.worker.batches import Batches
from headrace.engine.worker.subtask_events import DeadlineReached

from .driven_subtask import LIMITS, ROW_BYTES, A, B, Driven, barrier, batch

RULE = BatchRule(rows=5, linger_ns=100)


def driven(rule: BatchRule = RULE, **options: object) -> Driven:
    subject = Driven(batch=rule, **options)  # type: ignore[arg-type]  # the options of Driven
    subject.start()
    return subject


def test_a_call_has_as_many_rows_as_were_asked_for() -> None:
    subject = driven()
    assert subject.records(A, 3) == []
    assert subject.records(B, 1) == []
    assert subject.records(A, 2) == ["run 1: port 0 [0, 1, 2, 3, 4]"]


def test_what_there_is_goes_after_the_linger_of_the_first_row() -> None:
    subject = driven()
    subject.now_ns = 10
    subject.records(A, 1)
    subject.now_ns = 50
    subject.records(B, 1)
    assert subject.subtask.next_deadline_ns() == 110
    subject.now_ns = 109
    assert subject.step(DeadlineReached()) == []
    subject.now_ns = 110
    assert subject.step(DeadlineReached()) == ["run 1: port 0 [0, 0]"]


def test_rows_left_over_by_a_full_batch_wait_since_they_came() -> None:
    subject = driven()
    subject.now_ns = 10
    subject.records(A, 7)
    subject.now_ns = 60
    subject.done(1)
    assert subject.subtask.next_deadline_ns() == 110


def test_each_port_has_batches_of_its_own() -> None:
    subject = driven(inputs=((A,), (B,)))
    subject.records(A, 4)
    subject.now_ns = 30
    assert subject.records(B, 5) == ["run 1: port 1 [0, 1, 2, 3, 4]"]
    subject.now_ns = 50
    assert subject.done(1) == ["commit"]
    assert subject.subtask.next_deadline_ns() == 100


def test_no_time_is_wanted_while_nothing_waits_or_work_runs_late() -> None:
    subject = driven()
    assert subject.subtask.next_deadline_ns() is None
    subject.records(A, 6)
    subject.now_ns = 500
    subject.step(DeadlineReached())
    assert subject.subtask.next_deadline_ns() is None, "the row waits for the work, not for time"
    assert subject.done(1)[-1] == "run 2: port 0 [5]"


def test_without_linger_no_row_waits() -> None:
    subject = driven(BatchRule(5))
    assert subject.records(A, 2) == ["run 1: port 0 [0, 1]"]
    subject.records(A, 7)
    assert subject.done(1)[-1] == "run 2: port 0 [2, 3, 4, 5, 6]"


def test_the_end_of_all_input_flushes() -> None:
    subject = driven()
    subject.records(A, 2)
    assert subject.event(A, EndOfInput()) == [], "more may come over the other channel"
    assert subject.event(B, EndOfInput()) == ["run 1: port 0 [0, 1]"]
    assert subject.done(1)[-1] == "run 2: finish"


def test_an_aligned_barrier_flushes_what_stands_before_it() -> None:
    subject = driven()
    subject.records(A, 2)
    assert subject.event(A, barrier(1)) == ["run 1: port 0 [0, 1]"]
    subject.done(1)
    assert subject.records(B, 1) == []
    assert subject.event(B, barrier(1)) == ["run 2: port 0 [0]"]
    assert "snapshot 1" in subject.done(2)


def test_an_unaligned_cut_holds_the_rows_that_wait() -> None:
    subject = driven()
    subject.records(A, 2)
    subject.records(B, 1)
    effects = subject.event(A, barrier(1, CheckpointMode.UNALIGNED))
    assert not [e for e in effects if e.startswith("run")]
    effects = subject.event(B, barrier(1, CheckpointMode.UNALIGNED))
    (cut,) = [e for e in effects if e.startswith("cut")]
    assert "received 0 0" in cut
    assert "input e0:0>0 0..2; input e0:1>0 0..1" in cut


def test_a_watermark_waits_for_the_rows_before_it_and_splits_no_batch() -> None:
    subject = driven(inputs=((A,),))
    subject.records(A, 2)
    assert subject.event(A, Watermark(7)) == []
    effects = subject.records(A, 3)
    assert effects == ["run 1: port 0 [0, 1, 2, 3, 4]"]
    effects = subject.done(1, 5)
    assert effects[-2:] == ["send e1:0>0 0..5", "send e1:0>0 watermark 7@5"]


def test_a_batch_larger_than_the_windows_fills_with_more_credit() -> None:
    subject = driven(
        BatchRule(40, 1000),
        inputs=((A,),),
        limits=replace(LIMITS, window_bytes=10 * ROW_BYTES),
    )
    assert subject.records(A, 5) == []
    assert subject.records(A, 5) == ["grant e0:0>0 160"]
    assert subject.records(A, 10) == ["grant e0:0>0 240"]
    assert subject.records(A, 10) == ["grant e0:0>0 320"]
    effects = subject.records(A, 10)
    assert effects[0].startswith("run 1: port 0 [0, 1,")
    assert effects[1:] == ["grant e0:0>0 400"], "the next one fills while this one runs"


arrivals = st.lists(
    st.tuples(st.sampled_from([A, B]), st.integers(1, 9), st.integers(0, 60)), max_size=30
)


@given(arrivals, st.integers(1, 12), st.sampled_from([0, 30, 100]))
def test_every_row_comes_once_in_order_and_in_time(
    come: list[tuple[ChannelId, int, int]], rows: int, linger_ns: int
) -> None:
    """No batch is too large, a small one has lingered, and no row waits longer."""
    window = Window(1 << 20, None)
    gate = Gate(InputChannel(c, 0, position=0, ended=False, window=window) for c in (A, B))
    gate.open()
    subject = Batches(gate, BatchRule(rows, linger_ns))
    now_ns, ends = 0, {A: 0, B: 0}
    came: dict[tuple[ChannelId, int], int] = {}
    done: dict[ChannelId, list[int]] = {A: [], B: []}

    def work() -> None:
        while handed := subject.next_batch(now_ns):
            taken = [(g.channel, g.buffer.first + n) for g in handed for n in range(g.buffer.rows)]
            waiting = [key for key in came if key[1] >= gate.channels[key[0]].committed]
            oldest_ns = min(came[key] for key in waiting)
            assert len(taken) <= rows
            assert len(taken) == min(rows, len(waiting))
            assert len(taken) == rows or now_ns >= oldest_ns + linger_ns
            for id, position in taken:
                done[id].append(position)
            gate.commit(handed)
        overdue = [key for key in came if key[1] >= gate.channels[key[0]].committed]
        assert all(came[key] + linger_ns > now_ns for key in overdue)

    for id, count, passed_ns in come:
        due_ns = subject.next_deadline_ns(now_ns)
        while due_ns is not None and due_ns <= now_ns + passed_ns:
            passed_ns -= due_ns - now_ns
            now_ns = due_ns
            work()
            due_ns = subject.next_deadline_ns(now_ns)
        now_ns += passed_ns
        first = ends[id]
        buffer = Buffer(first, count, count * ROW_BYTES, (batch(first, count),))
        gate.channels[id].buffer_arrived(buffer)
        subject.arrived(id, buffer, now_ns)
        came.update({(id, first + n): now_ns for n in range(count)})
        ends[id] += count
        work()
    now_ns += 100
    work()
    assert done == {id: list(range(end)) for id, end in ends.items()}


def test_old_records_of_a_wave_wait_for_no_full_batch() -> None:
    subject = driven(inputs=((A,),), wave=1)
    assert subject.records(A, 2) == ["run 1: port 0 [0, 1]"]
