"""A newest time for each split; the oldest counts, silent ones are left out, and it goes with
the split.
"""

from __future__ import annotations

from headrace.engine.contract.operators import OperatorContext, RestoredState
from headrace.engine.operators.split_times import SplitTimes

A, B = "a", "b"
BOTH = frozenset({A, B})


def times(
    *splits: str, idle_after_ns: int | None = None, index: int = 0, parallelism: int = 1
) -> SplitTimes:
    subject = SplitTimes(idle_after_ns)
    subject.begin(OperatorContext("job", "watermark", index, parallelism, 16, 1))
    if splits:
        subject.opened(frozenset(splits))
    return subject


def feed(
    subject: SplitTimes,
    split: str,
    newest_ns: int,
    *,
    open: frozenset[str] | None = BOTH,
    now_ns: int = 0,
) -> None:
    subject.polled(split, open, now_ns, empty=False)
    subject.came(newest_ns)
    subject.commit()


def state(*subjects: SplitTimes) -> list[RestoredState]:
    return [RestoredState(s.name, s.kind, s.table()) for t in subjects for s in t.snapshot()]


def test_the_oldest_open_split_counts_and_one_without_records_holds_all_back() -> None:
    subject = times(A, B)
    feed(subject, A, 50)
    assert subject.newest_ns is None
    feed(subject, B, 10)
    assert subject.newest_ns == 10
    feed(subject, B, 90)
    assert subject.newest_ns == 50


def test_a_finished_split_holds_nothing_back_and_of_all_finished_ones_the_newest_counts() -> None:
    subject = times(A, B)
    feed(subject, A, 50)
    feed(subject, B, 10)
    feed(subject, A, 60, open=frozenset({A}))
    assert subject.newest_ns == 60
    feed(subject, A, 40, open=frozenset())
    assert subject.newest_ns == 60


def test_the_last_records_of_a_split_that_ends_with_them_count() -> None:
    subject = times(A)
    feed(subject, A, 50, open=frozenset())
    assert subject.newest_ns == 50


def test_records_of_no_split_have_one_time() -> None:
    subject = times()
    for newest_ns, expected in ((5, 5), (9, 9), (7, 9)):
        feed(subject, "", newest_ns, open=None)
        assert subject.newest_ns == expected


def test_a_split_goes_with_its_time_to_another_number_of_subtasks() -> None:
    old = times(A, B)
    feed(old, A, 50)
    feed(old, B, 10)
    for split, newest_ns in ((A, 50), (B, 10)):
        subject = times(split, index=1, parallelism=2)
        subject.restore(state(old))
        subject.opened(frozenset({split}))
        assert subject.newest_ns == newest_ns
    merged = times(A, B, "c")
    merged.restore(state(subject))
    merged.opened(frozenset({A, B, "c"}))
    assert merged.newest_ns is None, "a and c are unknown"
    assert state(merged)[0].table.to_pylist()[1:] == [
        {"subtask": 0, "parallelism": 1, "split": B, "newest_ns": 10}
    ]


def test_a_restored_time_does_not_fall_behind_what_is_read_next() -> None:
    old = times(A)
    feed(old, A, 50)
    subject = times(A)
    subject.restore(state(old))
    subject.opened(frozenset({A}))
    feed(subject, A, 20, open=frozenset({A}))
    assert subject.newest_ns == 50


def test_what_a_checkpoint_without_splits_says_is_of_no_split() -> None:
    table = times().snapshot()[0].table().drop_columns(["split", "newest_ns"])
    table = table.append_column("newest_ns", [[7]])
    subject = times()
    subject.restore([RestoredState("newest", times().snapshot()[0].kind, table)])
    assert subject.newest_ns == 7


def test_a_snapshot_holds_what_was_committed() -> None:
    subject = times(A, B)
    feed(subject, A, 50)
    before = state(subject)
    subject.polled(A, frozenset({B}), 0, empty=False)
    subject.came(70)
    assert state(subject) == before
    subject.commit()
    assert {row["split"]: row["newest_ns"] for row in state(subject)[0].table.to_pylist()} == {
        "": 70
    }


def test_a_silent_split_is_left_out_until_it_speaks_again() -> None:
    subject = times(A, B, idle_after_ns=100)
    feed(subject, B, 10, now_ns=1000)
    for now_ns in (1000, 1030, 1060, 1099):
        feed(subject, A, now_ns, now_ns=now_ns)
    assert subject.newest_ns == 10
    feed(subject, A, 1100, now_ns=1100)
    assert subject.newest_ns == 1100
    feed(subject, B, 20, now_ns=1101)
    assert subject.newest_ns == 20


def test_a_split_is_not_silent_while_the_reader_has_had_no_time_for_it() -> None:
    subject = times(A, B, idle_after_ns=100)
    feed(subject, B, 10, now_ns=1000)
    feed(subject, A, 50, now_ns=9000)
    assert subject.newest_ns == 10, "one poll that took long"
    for now_ns in (9001, 9002, 9003):
        feed(subject, A, 51, now_ns=now_ns)
    assert subject.newest_ns == 51


def test_a_split_whose_records_do_not_reach_the_generator_is_silent() -> None:
    subject = times(A, B, idle_after_ns=100)
    for now_ns in range(0, 200, 10):
        feed(subject, A, now_ns, now_ns=now_ns)
        subject.polled(B, BOTH, now_ns, empty=False)
    assert subject.newest_ns == 190


def test_when_all_are_silent_the_newest_counts() -> None:
    subject = times(A, B, idle_after_ns=100)
    feed(subject, A, 50, now_ns=0)
    feed(subject, B, 10, now_ns=0)
    for now_ns in (50, 100):
        assert subject.newest_ns == 10
        subject.polled("", BOTH, now_ns, empty=True)
    assert subject.newest_ns == 50


def test_a_split_is_given_its_time_from_the_first_poll_of_the_attempt() -> None:
    subject = times(A, B, idle_after_ns=100)
    subject.polled("", BOTH, 10**12, empty=True)
    feed(subject, A, 50, now_ns=10**12)
    subject.polled("", BOTH, 10**12 + 1, empty=True)
    assert subject.newest_ns is None
    subject.polled("", BOTH, 10**12 + 100, empty=True)
    assert subject.newest_ns == 50


def test_without_a_time_to_be_idle_after_none_is() -> None:
    subject = times(A, B)
    feed(subject, A, 50)
    for now_ns in range(0, 10**15, 10**14):
        subject.polled("", BOTH, now_ns, empty=True)
    assert subject.newest_ns is None
