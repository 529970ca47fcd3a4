from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.engine.contract.errors import UserCodeError, UserError
from headrace.engine.contract.operators import OperatorContext, RestoredState, StateKind
from headrace.engine.operators.process import ProcessOperator, StatefulProcessor, declared_states
from headrace.engine.state.keyed import list_state, map_state, value_state

IN = pa.schema([("k", pa.int64()), ("g", pa.string()), ("v", pa.int64())])
OUT = pa.schema([("k", pa.int64()), ("total", pa.int64())])


class Totals(StatefulProcessor):
    total = value_state(pa.int64(), default=0)
    seen = list_state(pa.int64())
    groups = map_state(pa.string(), pa.int64())

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.total.value += row["v"]
        self.seen.append(row["v"])
        self.groups[row["g"]] = self.groups.get(row["g"], 0) + 1
        yield {"k": key, "total": self.total.value}


def opened(processor: Any, keys: Iterable[str] = ("k",)) -> ProcessOperator:
    operator = ProcessOperator(processor, list(keys), IN, OUT, operator="totals")
    operator.open(OperatorContext("job", "totals", 0, 1, 8, 0))
    return operator


def batch_of(rows: list[tuple[int, str, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(IN.names, row, strict=True)) for row in rows], schema=IN
    )


def run(operator: ProcessOperator, rows: list[tuple[int, str, int]]) -> list[tuple[Any, ...]]:
    found = [tuple(r.values()) for b in operator.process(batch_of(rows), 0) for r in b.to_pylist()]
    operator.commit()
    return found


def tables(operator: ProcessOperator) -> dict[str, pa.Table]:
    return {state.name: state.table().sort_by("k") for state in operator.snapshot()}


ROWS = st.lists(
    st.tuples(st.integers(-2, 2), st.sampled_from("xy"), st.integers(-9, 9)),
    min_size=1,
    max_size=20,
)


@given(st.lists(ROWS, max_size=4))
def test_states_follow_a_model(batches: list[list[tuple[int, str, int]]]) -> None:
    operator = opened(Totals)
    model: dict[int, list[int]] = {}
    for rows in batches:
        expected = []
        for k, _, v in rows:
            model.setdefault(k, []).append(v)
            expected.append((k, sum(model[k])))
        assert run(operator, rows) == expected
    seen = tables(operator)["seen"]
    assert dict(zip(seen["k"].to_pylist(), seen["seen"].to_pylist(), strict=True)) == model


@given(ROWS, ROWS)
def test_a_snapshot_before_commit_is_the_state_before_and_restores_to_it(
    first: list[tuple[int, str, int]], second: list[tuple[int, str, int]]
) -> None:
    operator = opened(Totals)
    run(operator, first)
    before = tables(operator)
    list(operator.process(batch_of(second), 0))
    assert tables(operator) == before
    restored = opened(Totals)
    halves = [
        RestoredState(name, StateKind.KEYED, part)
        for name, table in before.items()
        for part in (table.slice(0, 1), table.slice(1))
    ]
    restored.restore(halves)
    assert tables(restored) == before
    again = opened(Totals)
    run(again, first)
    assert run(restored, second) == run(again, second)


def test_several_key_columns_make_a_tuple() -> None:
    class Keys(StatefulProcessor):
        n = value_state(pa.int64(), default=0)

        def process(self, key: Any, row: dict[str, Any]) -> list[dict[str, Any]]:
            assert key == (row["k"], row["g"])
            self.n.value += 1
            return [{"k": key[0], "total": self.n.value}]

    operator = opened(Keys, ["k", "g"])
    rows = [(1, "x", 0), (1, "y", 0), (1, "x", 0)]
    assert run(operator, rows) == [(1, 1), (1, 1), (1, 2)]
    assert tables(operator)["n"].schema.names == ["__key_group", "k", "g", "n"]


def test_a_batch_function_gets_the_rows_of_one_key_in_order() -> None:
    class Batches(StatefulProcessor):
        total = value_state(pa.int64(), default=0)

        def process_batch(self, key: Any, rows: pa.RecordBatch) -> dict[str, list[int]]:
            assert set(rows["k"].to_pylist()) == {key}
            self.total.value += sum(rows["v"].to_pylist())
            return {"k": [key], "total": [self.total.value]}

    rows = [(2, "", 1), (1, "", 10), (2, "", 2)]
    assert run(opened(Batches), rows) == [(2, 3), (1, 10)]


def test_subtasks_do_not_share_an_instance() -> None:
    shared = Totals()
    first, second = opened(shared), opened(shared)
    run(first, [(1, "x", 5)])
    assert run(second, [(1, "x", 1)]) == [(1, 1)]


def test_a_wrong_value_fails_in_the_users_line() -> None:
    class Wrong(StatefulProcessor):
        total = value_state(pa.int64())

        def process(self, key: Any, row: dict[str, Any]) -> None:
            self.total.value = row["g"]

    with pytest.raises(UserCodeError, match="state 'total' holds int64, got str 'x'") as caught:
        run(opened(Wrong), [(1, "x", 0)])
    assert "self.total.value = row" in caught.value.user_traceback
    assert "keyed.py" not in caught.value.user_traceback
    assert "'g': 'x'" in caught.value.message


def test_a_lone_dict_is_refused() -> None:
    class Lone(StatefulProcessor):
        def process(self, key: Any, row: dict[str, Any]) -> Any:
            return {"k": 1, "total": 1}

    with pytest.raises(UserCodeError, match="iterable of dicts"):
        run(opened(Lone), [(1, "x", 0)])


def test_states_are_inherited_and_open_sees_them() -> None:
    class More(Totals):
        more = value_state(pa.string())
        opened = False

        def open(self) -> None:
            self.opened = "more" in vars(self)
            assert self.opened

    assert list(declared_states(More)) == ["total", "seen", "groups", "more"]
    assert [state.name for state in opened(More).snapshot()] == ["total", "seen", "groups", "more"]


def test_all_nans_are_one_key() -> None:
    class Count(StatefulProcessor):
        n = value_state(pa.int64(), default=0)

        def process(self, key: Any, row: dict[str, Any]) -> list[dict[str, Any]]:
            self.n.value += 1
            return [{"k": 0, "total": self.n.value}]

    batch = pa.record_batch({"f": [float("nan"), float("nan"), -0.0, 0.0]})
    operator = ProcessOperator(Count, ["f"], batch.schema, OUT, operator="n")
    operator.open(OperatorContext("job", "n", 0, 1, 8, 0))
    (out,) = operator.process(batch, 0)
    assert out["total"].to_pylist() == [1, 2, 1, 2]


def test_state_that_is_no_longer_declared_is_refused() -> None:
    operator = opened(Totals)
    run(operator, [(1, "x", 1)])
    old = [RestoredState("old", StateKind.KEYED, tables(operator)["total"])]
    with pytest.raises(UserError, match="'old'"):
        opened(Totals).restore(old)


def test_an_unknown_key_is_the_users_mistake() -> None:
    with pytest.raises(UserError, match="'nope'"):
        ProcessOperator(Totals, ["nope"], IN, OUT, operator="totals")


def test_a_processor_outside_a_job_says_so_and_shares_nothing() -> None:
    class Hand(StatefulProcessor):
        total = value_state(pa.int64(), default=0)
        seen = list_state(pa.int64())
        by = map_state(pa.string(), pa.int64())

    one = Hand()

    def write() -> None:
        one.total.value = 1

    uses: list[Callable[[], object]] = [
        write,
        lambda: one.total.value,
        lambda: one.seen.append(1),
        lambda: list(one.seen),
        lambda: one.by.update(a=1),
        lambda: len(one.by),
        lambda: one.timers.set(1),
        lambda: list(one.timers),
        lambda: one.processing_timers.set_after("1s"),
    ]
    for use in uses:
        with pytest.raises(UserError, match=r"outside a job has no key.*hr\.testing\.Harness"):
            use()
