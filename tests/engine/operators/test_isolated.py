"""Operators in a process of their own: the same results as at home, and apart from it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.engine.contract.errors import UserCodeError
from headrace.engine.contract.launcher import Incarnation, WorkerProgram
from headrace.engine.contract.operators import ChildProcess, OperatorContext
from headrace.engine.drivers.companion import Companion
from headrace.engine.drivers.isolated_process import SpawnedProcess
from headrace.engine.operators.batch import MapBatchesOperator
from headrace.engine.operators.failures import OnError
from headrace.engine.operators.isolated import IsolatedFailed, IsolatedOperator
from headrace.engine.operators.row import FilterFunctionOperator, FlatMapOperator, MapOperator

SCHEMA = pa.schema([("n", pa.int64())])
CONTEXT = OperatorContext("j", "score", 0, 1, 16, 1)
#: Nobody listens at this coordinator's address.
PROGRAM = WorkerProgram("j", ("127.0.0.1", 1), b"secret" * 6, b"", 1)


def batch_of(numbers: Any) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


Open = Callable[[Callable[..., Any]], IsolatedOperator]


@pytest.fixture(scope="module")
def companion() -> Iterator[Companion]:
    made = Companion(PROGRAM, Incarnation(0, 0))
    yield made
    made.stop()


@pytest.fixture(params=["forked"])
def processes(request: pytest.FixtureRequest) -> Callable[[], ChildProcess]:
    if request.param == "spawned":
        return SpawnedProcess
    companion: Companion = request.getfixturevalue("companion")
    return companion.process


@pytest.fixture
def opened(processes: Callable[[], ChildProcess]) -> Iterator[Open]:
    """Opens isolated operators, and closes them after the test."""
    operators: list[IsolatedOperator] = []

    def make(inner: Callable[..., Any]) -> IsolatedOperator:
        operators.append(IsolatedOperator(inner, operator="score"))
        operators[-1].open(replace(CONTEXT, processes=processes))
        return operators[-1]

    yield make
    for operator in operators:
        operator.close()


def mapped(function: Any, schema: pa.Schema = SCHEMA) -> Callable[..., Any]:
    return lambda operator: MapBatchesOperator(function, schema, operator=operator)


def one(operator: IsolatedOperator, batch: pa.RecordBatch) -> pa.RecordBatch:
    (result,) = operator.process(batch, 0)
    return result


@pytest.mark.parametrize("processes", ["forked", "spawned"], indirect=True)
def test_isolated_operators_emit_what_they_emit_at_home(opened: Open) -> None:
    kinds: list[Callable[..., Any]] = [
        lambda operator: MapOperator(lambda row: {"n": row["n"] * 2}, SCHEMA, operator=operator),
        lambda operator: FlatMapOperator(lambda row: [row] * row["n"], SCHEMA, operator=operator),
        lambda operator: FilterFunctionOperator(lambda row: row["n"] > 1, operator=operator),
        mapped(lambda batch: iter([batch, batch.slice(3), batch])),
    ]
    batch = batch_of([1, 2, 3])
    for make in kinds:
        at_home = make(operator="score")
        at_home.open(CONTEXT)
        assert list(opened(make).process(batch, 0)) == list(at_home.process(batch, 0))


def checked(row: dict[str, Any]) -> dict[str, Any]:
    if row["n"] % 3 == 0:
        raise ValueError(f"{row['n']} is a fizz")
    return row


def checked_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    for row in batch.to_pylist():
        checked(row)
    return batch


KEEPING: dict[str, Callable[[OnError, str], Any]] = {
    "map": lambda how, name: MapOperator(checked, SCHEMA, operator=name, on_error=how),
    "flat_map": lambda how, name: FlatMapOperator(
        lambda row: [checked(row)] * 2, SCHEMA, operator=name, on_error=how
    ),
    "filter": lambda how, name: FilterFunctionOperator(
        lambda row: checked(row)["n"] > 2, operator=name, on_error=how
    ),
    "map_batches": lambda how, name: MapBatchesOperator(
        checked_batch, SCHEMA, operator=name, on_error=how
    ),
}


@pytest.mark.parametrize("kind", KEEPING)
def test_failed_records_come_out_as_at_home(opened: Open, kind: str) -> None:
    make = KEEPING[kind]
    at_home = make("route", "score")
    at_home.open(CONTEXT)
    operator = opened(lambda operator: make("route", operator))
    for numbers in (range(10), [3], [0, 3, 6], [1], [4], range(6_000)):
        batch = batch_of(list(numbers))
        assert list(operator.process(batch, 0)) == list(at_home.process(batch, 0))
        letters = list(operator.take_errors())
        assert letters == list(at_home.take_errors())
        assert sum(map(len, letters)) == sum(n % 3 == 0 for n in numbers)
        assert list(operator.take_errors()) == [], "each letter once"


def test_columns_of_every_kind_pass(opened: Open) -> None:
    texts = pa.array(["a", None, "b", "a"])
    batch = pa.record_batch(
        {
            "dictionary": texts.dictionary_encode(),
            "text": texts,
            "list": pa.array([[1], [], None, [2, 3]], pa.list_(pa.int8())),
            "bytes": pa.array([b"x" * 20_000] * 4),
        }
    )
    operator = opened(mapped(lambda batch: batch, batch.schema))
    for given in (batch, batch.slice(1, 2)):
        assert one(operator, given) == given


def test_results_that_are_kept_stay_as_they_are(opened: Open) -> None:
    """Their memory is not taken for later batches."""
    operator = opened(mapped(lambda batch: batch))
    kept = [one(operator, batch_of(np.full(50_000, i))) for i in range(8)]
    assert [batch["n"].unique().to_pylist() for batch in kept] == [[i] for i in range(8)]


def test_a_function_may_keep_its_batches(opened: Open) -> None:
    class Remember:
        def __init__(self) -> None:
            self.kept: list[Any] = []

        def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
            self.kept.append(batch)
            return {"n": [old["n"][0].as_py() for old in self.kept]}

    operator = opened(mapped(Remember))
    told = [one(operator, batch_of(np.full(50_000, i)))["n"].to_pylist() for i in range(6)]
    assert told[-1] == list(range(6))


def test_memory_is_taken_again_when_nobody_reads_it(opened: Open) -> None:
    operator = opened(mapped(lambda batch: batch))
    for i in range(20):
        one(operator, batch_of(np.full(50_000, i)))
    line = operator._line
    assert line is not None
    assert (len(line._written), len(line._read)) <= (2, 2)


def test_a_function_that_raises_fails_as_at_home_and_may_be_called_again(opened: Open) -> None:
    def check(row: dict[str, Any]) -> dict[str, Any]:
        return {"n": 6 // row["n"]}

    operator = opened(lambda operator: MapOperator(check, SCHEMA, operator=operator))
    with pytest.raises(UserCodeError) as raised:
        list(operator.process(batch_of([1, 0]), 0))
    assert raised.value.operator == "score"
    assert raised.value.message.startswith("ZeroDivisionError")
    assert raised.value.message.endswith("for record {'n': 0}")
    assert 'return {"n": 6 // row["n"]}' in raised.value.user_traceback
    assert one(operator, batch_of([3])) == batch_of([2])


def test_a_class_that_cannot_be_made_fails_when_it_is_opened(opened: Open) -> None:
    class Model:
        def __init__(self) -> None:
            raise FileNotFoundError("no weights")

    with pytest.raises(UserCodeError, match="FileNotFoundError: no weights"):
        opened(mapped(Model))


def ends(how: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def end(batch: pa.RecordBatch) -> pa.RecordBatch:
        import ctypes
        import os

        if how == "exit":
            os._exit(3)
        if how == "kill":
            os.kill(os.getpid(), 9)
        ctypes.string_at(0)
        return batch

    return end


@pytest.mark.parametrize("processes", ["forked", "spawned"], indirect=True)
@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("exit", "ended with exit code 3 during a call"),
        ("kill", "was killed by SIGKILL (perhaps the machine ran out of memory) during a call"),
        ("crash", "was killed by SIGSEGV during a call"),
    ],
)
def test_the_end_of_the_process_is_one_sentence(opened: Open, how: str, text: str) -> None:
    operator = opened(mapped(ends(how)))
    with pytest.raises(IsolatedFailed) as raised:
        one(operator, batch_of([1]))
    assert str(raised.value) == f"operator 'score': its isolated process {text}"


def test_other_threads_go_on_while_a_call_holds_its_gil(opened: Open) -> None:
    def hold(batch: pa.RecordBatch) -> pa.RecordBatch:
        import ctypes

        ctypes.PyDLL(None).usleep(1_000_000)
        return batch

    operator = opened(mapped(hold))
    call = threading.Thread(target=one, args=(operator, batch_of([1])))
    longest_s, last_s = 0.0, time.monotonic()
    call.start()
    while call.is_alive():
        time.sleep(0.001)
        longest_s, last_s = max(longest_s, time.monotonic() - last_s), time.monotonic()
    assert longest_s < 0.5


def test_a_closed_operator_ends_its_process(opened: Open) -> None:
    operator = opened(mapped(lambda _: {"n": [os.getpid()]}))
    pid = one(operator, batch_of([1]))["n"][0].as_py()
    assert pid != os.getpid()
    operator.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
