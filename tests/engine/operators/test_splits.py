"""The operator that reads splits: bounded pieces, and state that is cut between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from headrace.channels.events import MAX_WATERMARK
from headrace.engine.contract.connectors import Split
from headrace.engine.contract.errors import UserCodeError
from headrace.engine.contract.operators import OperatorContext, RestoredState, StateKind
from headrace.engine.operators.splits import SPLITS, SplitsOperator, split_rows

SCHEMA = pa.schema([("x", pa.int64())])


class Reader:
    """Reads `n` rows of split "n", four in a batch; notes what is asked for."""

    def __init__(self, asked: list[tuple[str, int]], fails: bool = False) -> None:
        self._asked, self._fails = asked, fails
        self.closed = False

    def open(self, context: OperatorContext) -> None:
        assert context.operator == "in"

    def read(self, split: Split, skip: int) -> Iterator[pa.RecordBatch]:
        self._asked.append((split.name, skip))
        if self._fails:
            raise OSError("the split is away")
        numbers = list(range(int(split.payload["n"])))[skip:]
        for at in range(0, len(numbers), 4):
            yield pa.record_batch({"x": pa.array(numbers[at : at + 4], pa.int64())})

    def close(self) -> None:
        self.closed = True


class Source:
    """Splits for `SplitsOperator`; nobody plans."""

    def __init__(
        self, *, repeatable: bool = True, schema: pa.Schema = SCHEMA, fails: bool = False
    ) -> None:
        self.repeatable, self.schema = repeatable, schema
        self.asked: list[tuple[str, int]] = []
        self.readers: list[Reader] = []
        self._fails = fails

    def planner(self) -> None:
        raise AssertionError("nobody plans")

    def reader(self) -> Reader:
        self.readers.append(Reader(self.asked, self._fails))
        return self.readers[-1]


def operator_of(
    source: Source, *states: RestoredState, index: int = 0, parallelism: int = 1
) -> SplitsOperator:
    subject = SplitsOperator(source, operator="in")  # type: ignore[arg-type]  # no planner
    subject.open(OperatorContext("job", "in", index, parallelism, 8, 1))
    if states:
        subject.restore(states)
    return subject


def splits(*rows: int) -> pa.RecordBatch:
    records = split_rows(Split(str(n), {"n": n}) for n in rows)
    return pa.RecordBatch.from_pylist(records, schema=SPLITS)


def values(batches: Sequence[pa.RecordBatch]) -> list[int]:
    return [x for batch in batches for x in batch["x"].to_pylist()]


def left(subject: SplitsOperator) -> list[tuple[str, int]]:
    (state,) = subject.snapshot()
    assert state.kind is StateKind.UNION
    return [(row["name"], row["rows"]) for row in state.table().to_pylist()]


def test_splits_are_read_in_bounded_pieces_while_the_clock_asks() -> None:
    subject = operator_of(Source())
    subject.tell_time(5)
    assert subject.next_timer_ns() is None
    assert list(subject.process(splits(6, 3), 0)) == []
    assert subject.next_timer_ns() == 5
    assert values(list(subject.fire(5, 5))) == [0, 1, 2, 3, 4]
    assert values(list(subject.fire(5, 100))) == [5, 0, 1, 2]
    assert subject.next_timer_ns() is None


def test_a_cut_in_the_midst_of_a_split_goes_on_behind_the_rows_emitted() -> None:
    source = Source()
    subject = operator_of(source)
    subject.process(splits(6, 3), 0)
    subject.commit()
    assert left(subject) == [("6", 0), ("3", 0)]
    subject.fire(0, 5)
    assert left(subject) == [("6", 0), ("3", 0)], "not committed"
    subject.commit()
    assert left(subject) == [("6", 5), ("3", 0)]
    (state,) = subject.snapshot()
    again = operator_of(source, RestoredState(state.name, state.kind, state.table()))
    assert sorted(values(list(again.fire(0, 100)))) == [0, 1, 2, 5]
    assert source.asked == [("6", 0), ("3", 0), ("6", 5)]


def test_unfinished_splits_are_dealt_out_one_by_one_at_another_parallelism() -> None:
    source = Source()
    old = [operator_of(source) for _ in range(2)]
    for subject, rows in zip(old, ((6, 2, 5), (3,)), strict=True):
        subject.process(splits(*rows), 0)
        subject.commit()
    states = [state for subject in old for state in subject.snapshot()]
    restored = [RestoredState(s.name, s.kind, s.table()) for s in states]
    new = [operator_of(source, *restored, index=i, parallelism=3) for i in range(3)]
    assert [len(left(subject)) for subject in new] == [2, 1, 1]
    assert sorted(split for subject in new for split in left(subject)) == [
        ("2", 0),
        ("3", 0),
        ("5", 0),
        ("6", 0),
    ]


def test_a_split_that_cannot_be_repeated_is_emitted_whole() -> None:
    source = Source(repeatable=False)
    subject = operator_of(source)
    subject.process(splits(9, 3), 0)
    assert values(list(subject.fire(0, 2))) == list(range(9))
    subject.commit()
    assert left(subject) == [("3", 0)]
    assert values(list(subject.fire(0, 2))) == [0, 1, 2]
    assert source.asked == [("9", 0), ("3", 0)]


@pytest.mark.parametrize("repeatable", [True, False])
def test_an_empty_split_ends_at_once(repeatable: bool) -> None:
    subject = operator_of(Source(repeatable=repeatable))
    subject.process(splits(0, 0, 2), 0)
    assert values(list(subject.fire(0, 10))) == [0, 1]
    subject.commit()
    assert left(subject) == []


def test_the_end_of_input_waits_until_all_splits_are_read() -> None:
    subject = operator_of(Source())
    subject.process(splits(6), 0)
    assert subject.advance(7, 100).done, "other watermarks pass"
    pieces = [subject.advance(MAX_WATERMARK, 4) for _ in range(2)]
    assert [(values(piece.batches), piece.done) for piece in pieces] == [
        ([0, 1, 2, 3], False),
        ([4, 5], True),
    ]
    assert list(subject.finish()) == []


def test_a_reader_that_raises_is_blamed_by_name() -> None:
    subject = operator_of(Source(fails=True))
    subject.process(splits(6), 0)
    with pytest.raises(UserCodeError, match="operator 'in': OSError: the split is away"):
        subject.fire(0, 10)


def test_records_of_another_schema_are_refused_with_both() -> None:
    subject = operator_of(Source(schema=pa.schema([("y", pa.string())])))
    subject.process(splits(6), 0)
    sentence = r"split '6' gave records of \(x: int64\), and the source says \(y: string\)"
    with pytest.raises(UserCodeError, match=sentence):
        subject.fire(0, 10)


def test_closing_closes_the_reader() -> None:
    source = Source()
    operator_of(source).close()
    assert [reader.closed for reader in source.readers] == [True]


@pytest.mark.parametrize("split", [Split("", {}), Split("a", {"n": True}), Split("a", {"n": None})])  # type: ignore[dict-item]  # what is refused
def test_a_split_that_is_not_plain_is_refused(split: Split) -> None:
    with pytest.raises(ValueError, match="split"):
        split_rows([split])
