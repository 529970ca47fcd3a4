from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.channels.events import MIN_WATERMARK
from headrace.channels.partitioners.forward import Forward
from headrace.engine.contract.errors import UserCodeError
from headrace.engine.contract.execution import EventTimeRole, OperatorPlan, TaskPlan
from headrace.engine.contract.operators import (
    OperatorContext,
    Polled,
    RestoredState,
    Snapshot,
    SourceStatus,
    StateSnapshot,
    Transaction,
)
from headrace.engine.operators import aggregations as agg
from headrace.engine.operators.aggregate import AggregateOperator
from headrace.engine.operators.batch import FilterOperator
from headrace.engine.operators.chain import Chain, _Sizes
from headrace.engine.operators.row import FlatMapOperator
from headrace.engine.operators.stateless import StatelessOperator
from headrace.engine.operators.watermark import WatermarkOperator
from headrace.engine.operators.work import (
    CompletedWork,
    FinishWork,
    PollWork,
    PrecommitWork,
    ProcessWork,
)

SCHEMA = pa.schema([("x", pa.int64())])


def batch_of(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64())], schema=SCHEMA)


def restorable(frozen: Snapshot) -> RestoredState:
    assert isinstance(frozen, StateSnapshot)
    return RestoredState(frozen.name, frozen.kind, frozen.table())


class AddOne(StatelessOperator):
    """Adds one; at the end emits a last record. Notes what happens to it."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def open(self, context: OperatorContext) -> None:
        self.log.append(f"open {context.operator} {context.index}/{context.parallelism}")

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        return [batch_of(*(x + 1 for x in batch["x"].to_pylist())), batch_of()]

    def finish(self) -> Iterable[pa.RecordBatch]:
        return [batch_of(100)]

    def close(self) -> None:
        self.log.append("close")


class OneToTwo:
    """A source of two batches; a sink that collects. Stands for both ends."""

    def __init__(self) -> None:
        self.written: list[int] = []

    def open(self, context: OperatorContext) -> None: ...

    def restore(self, states: Sequence[RestoredState]) -> None: ...

    def commit(self) -> None: ...

    def snapshot(self) -> Sequence[StateSnapshot]:
        return ()

    def close(self) -> None: ...

    def poll(self, rows_max: int) -> Polled:
        return Polled([batch_of(1), batch_of(2)], SourceStatus.IDLE, 7)

    def write(self, batch: pa.RecordBatch) -> None:
        self.written += batch["x"].to_pylist()

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        return [Transaction(f"t{checkpoint}", {"rows": len(self.written)})]


class Parity:
    """Splits even from odd."""

    def split(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        parity = batch["x"].to_numpy() % 2
        parts = [(t, batch.filter(pa.array(parity == t))) for t in (0, 1)]
        return [(t, part) for t, part in parts if part.num_rows]


class All:
    """Sends everything to target 0."""

    def split(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        return [(0, batch)]


def chain_of(
    *operators: OperatorPlan,
    splitters: Sequence[Any] = (All(),),
    buffer_bytes: int = 1 << 20,
    owner: str = "",
) -> Chain:
    task = TaskPlan(0, "task", operators, 4, (), tuple(range(len(splitters))))
    chain = Chain(
        task,
        job="job",
        index=2,
        max_parallelism=16,
        epoch=1,
        splitters=splitters,
        buffer_bytes=buffer_bytes,
        owner=owner,
    )
    chain.open()
    return chain


def add_one(name: str, log: list[str] | None = None) -> OperatorPlan:
    return OperatorPlan(name, operator=lambda: AddOne([] if log is None else log))


def plain(outputs: Any) -> list[list[tuple[int, list[int]]]]:
    return [[(target, b["x"].to_pylist()) for target, b, _ in edge] for edge in outputs]


def test_batches_are_joined_and_run_through_all_operators() -> None:
    chain = chain_of(add_one("a"), add_one("b"))
    assert plain(chain.process([batch_of(1), batch_of(2)], 0)) == [[(0, [3, 4])]]


def test_each_edge_gets_everything_split_its_own_way() -> None:
    chain = chain_of(add_one("a"), splitters=[Parity(), All()])
    assert plain(chain.process([batch_of(1, 2, 3)], 0)) == [
        [(0, [2, 4]), (1, [3])],
        [(0, [2, 3, 4])],
    ]


def test_large_outputs_are_cut_to_the_buffer_size() -> None:
    chain = chain_of(add_one("a"), buffer_bytes=800)
    ((*pieces,),) = chain.process([batch_of(*range(1000))], 0)
    assert all(batch.nbytes <= 800 for _, batch, _ in pieces)
    assert [x for _, batch, _ in pieces for x in batch["x"].to_pylist()] == list(range(1, 1001))


@pytest.mark.parametrize(
    ("column", "size_bytes"),
    [
        (pa.array([1, 2, 3]), 24),
        (pa.array([1, None, 3], pa.int16()), 6),
        (pa.array([True, False, True]), 1),
        (pa.array([b"1234567"] * 3, pa.binary(7)), 21),
        (pa.array(["a", "bc", "def"]), 3 * 4 + 6),
        (pa.array(["a", "bc", "a"]).dictionary_encode(), 3 * 4 + 2 * 4 + 3),
    ],
    ids=["numbers", "nulls", "booleans", "fixed", "texts", "codes"],
)
def test_an_output_has_the_size_of_its_records(column: pa.Array, size_bytes: int) -> None:
    batch, sizes = pa.record_batch({"x": column}), _Sizes()
    assert [sizes.of(batch), sizes.of(pa.record_batch({"y": [1]})), sizes.of(batch)] == [
        size_bytes,
        8,
        size_bytes,
    ]


def test_the_end_of_input_passes_through_the_operators_behind() -> None:
    chain = chain_of(add_one("a"), add_one("b"))
    assert plain(chain.finish()) == [[(0, [101]), (0, [100])]]


def test_a_source_at_the_head_is_polled() -> None:
    chain = chain_of(OperatorPlan("source", source=OneToTwo), add_one("a"))
    outputs, polled = chain.poll(10, 0)
    assert plain(outputs) == [[(0, [2]), (0, [3])]]
    assert (polled.status, polled.wait_ns) == (SourceStatus.IDLE, 7)
    assert chain.precommit(1) == []


def test_a_poll_counts_the_records_of_the_source_and_not_those_that_come_out() -> None:
    drop = OperatorPlan("drop", operator=partial(FilterOperator, pc.field("x") < 0))
    chain = chain_of(OperatorPlan("source", source=OneToTwo), drop)
    done = chain.run(1, PollWork(10))
    assert (done.rows_polled, done.rows_out) == (2, 0)


class Partitions(OneToTwo):
    """A reader of two splits, whose times are its records."""

    def __init__(self, open: Sequence[str], *polls: tuple[str, int]) -> None:
        super().__init__()
        self.polls = list(polls)
        self.splits = frozenset(open)

    def poll(self, rows_max: int) -> Polled:
        split, second = self.polls.pop(0)
        batch = pa.record_batch([pa.array([second], pa.timestamp("s"))], names=["at"])
        return Polled([batch], SourceStatus.MORE, split=split)

    def open_splits(self) -> frozenset[str]:
        return self.splits


def test_the_splits_of_a_source_have_a_watermark_each_that_outlives_the_chain() -> None:
    def make(*polls: tuple[str, int]) -> Chain:
        times = partial(
            WatermarkOperator, "at", 0, pa.schema([("at", pa.timestamp("s"))]), operator="times"
        )
        made = OperatorPlan("times", operator=times, time=EventTimeRole.MAKES)
        return chain_of(OperatorPlan("in", source=lambda: Partitions("ab", *polls)), made)

    def watermarks(chain: Chain, polls: int) -> Iterator[int]:
        for _ in range(polls):
            chain.poll(10, 0)
            chain.commit()
            yield chain.time().watermark_ns

    second = 1_000_000_000
    chain = make(("a", 70), ("b", 20))
    assert list(watermarks(chain, 2)) == [MIN_WATERMARK, 20 * second - 1]
    states = [(name, restorable(frozen)) for name, frozen in chain.snapshot()]
    again = make(("b", 90), ("a", 80))
    again.restore({"times": [state for name, state in states if name == "times"]})
    assert list(watermarks(again, 2)) == [70 * second - 1, 80 * second - 1]


def test_a_sink_at_the_tail_writes_and_precommits_under_its_name() -> None:
    sink = OneToTwo()
    chain = chain_of(add_one("a"), OperatorPlan("out", sink=lambda: sink), splitters=[])
    assert chain.process([batch_of(1, 2)], 0) == ()
    assert chain.finish() == ()
    assert sink.written == [2, 3, 100]
    [(name, transaction)] = chain.precommit(5)
    assert (name, transaction.id, transaction.payload) == ("out", "t5", {"rows": 3})


def test_a_transaction_names_the_run_of_the_sink_that_precommitted_it() -> None:
    def run(sink: str, owner: str) -> str:
        chain = chain_of(OperatorPlan(sink, sink=OneToTwo), splitters=[], owner=owner)
        [(_, transaction)] = chain.precommit(5)
        return transaction.run

    assert run("out", "0f") == OperatorContext("job", "out", 0, 1, 16, 7, owner="0f").run
    assert len({run("out", "0f"), run("out", "0e"), run("other", "0f")}) == 3


def test_only_a_source_with_the_method_hears_of_checkpoints() -> None:
    class Hears(OneToTwo):
        def completed(self, checkpoint: int, states: Sequence[StateSnapshot]) -> None:
            self.written += [checkpoint, len(states)]

    source = Hears()
    chain = chain_of(OperatorPlan("in", source=lambda: source))
    assert chain.hears == "in"
    done = chain.run(1, CompletedWork(7, tuple(source.snapshot())))
    assert (done.work, done.outputs) == (1, ())
    assert source.written == [7, len(source.snapshot())]
    assert chain_of(OperatorPlan("in", source=OneToTwo)).hears is None


def test_each_kind_of_work_is_run_and_its_result_told() -> None:
    source = chain_of(OperatorPlan("in", source=OneToTwo), splitters=[Parity(), All()])
    polled = source.run(7, PollWork(10))
    assert (polled.work, polled.rows_out, polled.status, polled.wait_ns) == (
        7,
        2,
        SourceStatus.IDLE,
        7,
    )
    assert plain(polled.outputs) == [[(1, [1]), (0, [2])], [(0, [1]), (0, [2])]]
    middle = chain_of(add_one("a"))
    processed = middle.run(1, ProcessWork(0, (batch_of(1), batch_of(2)), 2))
    assert (plain(processed.outputs), processed.rows_out) == ([[(0, [2, 3])]], 2)
    assert processed.time == middle.time()
    assert plain(middle.run(2, FinishWork()).outputs) == [[(0, [100])]]
    sink = chain_of(OperatorPlan("out", sink=OneToTwo), splitters=[])
    sink.run(1, ProcessWork(0, (batch_of(5),), 1))
    precommitted = sink.run(2, PrecommitWork(5))
    [(name, transaction)] = precommitted.transactions
    assert (name, transaction.id, transaction.payload) == ("out", "t5", {"rows": 1})


def test_life_is_head_first_and_death_tail_first() -> None:
    log: list[str] = []
    chain = chain_of(add_one("a", log), add_one("b", log))
    chain.close()
    chain.close()
    assert log == ["open a 2/4", "open b 2/4", "close", "close"]


def test_a_failed_open_still_closes_what_was_opened() -> None:
    class Fails(AddOne):
        def open(self, context: OperatorContext) -> None:
            raise UserCodeError("b", "no model")

    log: list[str] = []
    plans = (add_one("a", log), OperatorPlan("b", operator=lambda: Fails(log)))
    task = TaskPlan(0, "task", plans, 4, (), ())
    chain = Chain(task, job="j", index=0, max_parallelism=16, epoch=1, splitters=[], buffer_bytes=1)
    with pytest.raises(UserCodeError):
        chain.open()
    chain.close()
    assert log == ["open a 0/4", "close", "close"]


def totals() -> AggregateOperator:
    return AggregateOperator(["x"], {"n": agg.count()}, SCHEMA, "final", operator="totals")


def twice() -> FlatMapOperator:
    return FlatMapOperator(lambda row: [row, row] * 800, SCHEMA, operator="twice")


def final_counts(chain: Chain) -> list[tuple[int, int]]:
    (edge,) = chain.finish()
    return [(row["x"], row["n"]) for _, batch, _ in edge for row in batch.to_pylist()]


def test_a_stateful_operator_behind_another_gets_several_batches_before_one_commit() -> None:
    make: Callable[[], Any] = totals
    chain = chain_of(OperatorPlan("twice", operator=twice), OperatorPlan("totals", operator=make))
    numbers = np.arange(1025) % 2
    chain.process([batch_of(*numbers.tolist())], 0)
    ((name, before),) = chain.snapshot()
    assert (name, restorable(before).table.num_rows) == ("totals", 0)
    chain.commit()
    ((_, after),) = chain.snapshot()
    again = chain_of(OperatorPlan("twice", operator=twice), OperatorPlan("totals", operator=make))
    again.restore({"totals": [restorable(after)]})
    assert sorted(final_counts(again)) == [(0, 513 * 1600), (1, 512 * 1600)]
    assert sorted(final_counts(chain)) == [(0, 513 * 1600), (1, 512 * 1600)]


class Picky(StatelessOperator):
    """Records above 9 are late."""

    def __init__(self) -> None:
        self._late: list[pa.RecordBatch] = []

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        numbers = batch["x"].to_pylist()
        self._late.append(batch_of(*(x for x in numbers if x > 9)))
        return [batch_of(*(-x for x in numbers if x <= 9))]

    def take_late(self) -> Sequence[pa.RecordBatch]:
        late, self._late = self._late, []
        return late


def test_late_records_of_the_tail_go_to_the_edges_that_take_them_and_all_are_counted() -> None:
    operators = tuple(OperatorPlan(f"o{i}", operator=Picky) for i in range(2))
    task = TaskPlan(0, "t", operators, 1, inputs=(0,), outputs=(1, 2, 3), late_outputs=(2,))
    splitters = [Forward().open(0, 1, 1, 0) for _ in range(3)]
    chain = Chain(
        task, job="j", index=0, max_parallelism=8, epoch=1, splitters=splitters, buffer_bytes=1000
    )
    chain.open()
    outputs = chain.process([batch_of(3, -12, 11)], 0)
    # The first operator calls 11 late, which nobody takes; the second 12.
    found = [[x for _, batch, _ in edge for x in batch["x"].to_pylist()] for edge in outputs]
    assert found == [[3], [12], [3]]
    assert chain.take_rows_late() == 2
    assert chain.take_rows_late() == 0


@pytest.mark.parametrize("late_outputs", [(1,), (2,), (1, 2)])
def test_rows_out_are_results_wherever_late_records_go(late_outputs: tuple[int, ...]) -> None:
    operators = (OperatorPlan("o", operator=Picky),)
    task = TaskPlan(0, "t", operators, 1, inputs=(0,), outputs=(1, 2), late_outputs=late_outputs)
    splitters = [Forward().open(0, 1, 1, 0) for _ in range(2)]
    chain = Chain(
        task, job="j", index=0, max_parallelism=8, epoch=1, splitters=splitters, buffer_bytes=1000
    )
    chain.open()
    work = ProcessWork(0, (batch_of(3, 4, 5, 11),), 4)
    assert [chain.run(number, work).rows_out for number in (1, 2)] == [3, 3]


def test_rows_out_of_a_sink_are_those_it_wrote() -> None:
    chain = chain_of(add_one("a"), OperatorPlan("sink", sink=OneToTwo), splitters=())
    work = ProcessWork(0, (batch_of(1, 2, 3),), 3)
    assert [chain.run(number, work).rows_out for number in (1, 2)] == [3, 3]
