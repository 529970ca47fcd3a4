"""Aggregations of a user's own: what they are given, what is refused, and what checkpoints hold."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.operators.accumulators import Accumulator, accumulator
from headrace.testing import simulate

SCHEMA = pa.schema([("v", pa.float64()), ("w", pa.int64())])


class Spread(hr.CustomAggregate):
    state: ClassVar[Any] = {"low": math.inf, "high": -math.inf, "n": 0, "any": False}
    result = pa.float64()

    def accumulate(self, state: dict[str, Any], groups: Any, *columns: pa.Array) -> None:
        numbers = columns[0].to_numpy(zero_copy_only=False)
        np.minimum.at(state["low"], groups, numbers)
        np.maximum.at(state["high"], groups, numbers)
        np.add.at(state["n"], groups, 1)
        state["any"][groups] = True

    def merge(self, state: dict[str, Any], groups: Any, other: dict[str, Any]) -> None:
        np.minimum.at(state["low"], groups, other["low"])
        np.maximum.at(state["high"], groups, other["high"])
        np.add.at(state["n"], groups, other["n"])
        np.logical_or.at(state["any"], groups, other["any"])

    def finish(self, state: dict[str, Any]) -> Any:
        return state["high"] - state["low"]


class Weighted(hr.CustomAggregate):
    state: ClassVar[Any] = {"total": 0.0, "weight": 0}
    result = pa.float64()

    def accumulate(self, state: dict[str, Any], groups: Any, *columns: pa.Array) -> None:
        values, weights = (column.to_numpy(zero_copy_only=False) for column in columns)
        np.add.at(state["total"], groups, values * weights)
        np.add.at(state["weight"], groups, weights)

    def merge(self, state: dict[str, Any], groups: Any, other: dict[str, Any]) -> None:
        for name, column in state.items():
            np.add.at(column, groups, other[name])

    def finish(self, state: dict[str, Any]) -> Any:
        return pa.array(state["total"] / state["weight"])


class Careless(Weighted):
    def accumulate(self, state: dict[str, Any], groups: Any, *columns: pa.Array) -> None:
        state["weight"] = state["weight"] + 0.5

    def finish(self, state: dict[str, Any]) -> Any:
        return [1.0]


def made(aggregation: hr.Aggregation) -> Accumulator:
    return accumulator("r", aggregation, SCHEMA)


def results(of: Accumulator, slots: int) -> list[Any]:
    found: list[Any] = of.result([column.working[:slots] for column in of.columns]).to_pylist()
    return found


def test_groups_are_those_of_the_batch_alone() -> None:
    spread = made(hr.custom(Spread, "v"))
    spread.add(np.array([900, 2, 900]), pa.array([1.0, 5.0, 4.0]))
    spread.add(np.array([2]), pa.array([7.0]))
    low, high, n, seen = (column.working for column in spread.columns)
    assert (low[900], high[900], n[900], seen[900]) == (1.0, 4.0, 2, True)
    assert (low[2], high[2], n[2]) == (5.0, 7.0, 2)
    assert (low[0], n[0], seen[0]) == (math.inf, 0, False)


def test_several_columns_come_as_several_columns() -> None:
    mean = made(hr.custom(Weighted(), "v", "w"))
    both = pa.StructArray.from_arrays([pa.array([1.0, 4.0]), pa.array([1, 2])], ["v", "w"])
    mean.add(np.array([0, 0]), both)
    assert results(mean, 1) == [3.0]


def test_stored_state_is_restored_and_merged() -> None:
    spread, again = made(hr.custom(Spread, "v")), made(hr.custom(Spread, "v"))
    spread.add(np.array([0, 1, 1]), pa.array([1.0, 5.0, 9.0]))
    state = [column.working[:2] for column in spread.columns]
    stored = spread.store(state)
    assert [field.name for field in spread.fields] == ["r.low", "r.high", "r.n", "r.any"]
    again.load(np.array([0, 1]), stored)
    assert results(again, 2) == [0.0, 4.0]
    again.merge(np.array([1, 1]), state)
    assert results(again, 2)[1] == 8.0


def test_results_of_another_length_and_states_of_another_type_are_refused() -> None:
    careless = made(hr.custom(Careless, "v"))
    with pytest.raises(TypeError, match="state 'weight' is float64 of shape"):
        careless.add(np.array([0]), pa.array([1.0]))
    with pytest.raises(ValueError, match="finish returned 1 results for 2 groups"):
        results(careless, 2)


def test_classes_that_declare_too_little_are_refused() -> None:
    class Stateless(Weighted):
        state: ClassVar[Any] = {}

    class Texts(Weighted):
        state: ClassVar[Any] = {"text": ""}

    class Untyped(Weighted):
        result: ClassVar[Any] = float

    for class_, sentence in (
        (Stateless, r"Stateless\.state names its columns"),
        (Texts, r"Texts\.state\['text'\] is ''; an int, a float or a bool is due"),
        (Untyped, r"Untyped\.result is an Arrow type"),
    ):
        with pytest.raises(hr.UserError, match=sentence):
            hr.custom(class_, "v")
    wrong: Any = dict
    with pytest.raises(hr.UserError, match="custom takes a CustomAggregate"):
        hr.custom(wrong, "v")


def rows() -> hr.Stream:
    schema = pa.schema([("key", pa.string()), ("v", pa.float64()), ("at", pa.timestamp("ns"))])
    records = [
        {"key": f"k{n % 3}", "v": n * n % 17, "at": (n + n // 10 * 20) * 1_000_000}
        for n in range(60)
    ]
    batch = pa.RecordBatch.from_pylist(records, schema=schema)
    return hr.read.batches([batch], name="rows")


def test_an_unknown_column_is_refused() -> None:
    keyed = rows().key_by("key")
    with pytest.raises(hr.UserError, match=r"'w'"):
        keyed.aggregate(m=hr.custom(Weighted, "v", "w"), name="m")


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_it_survives_crashes_and_rescales_by_key(backend: Any) -> None:
    state = hr.State(backend=backend)
    spread = hr.custom(Spread, "v")
    out = rows().key_by("key").aggregate(spread=spread, emit="final", name="spread", state=state)
    job = hr.Job("by_key", out.write.collect(name="out"))

    def check(output: Any) -> bool:
        return {row["key"]: row["spread"] for row in output["out"]} == dict(expected(range(60)))

    assert simulate(job, seeds=6, check=check).restores > 0


def test_it_survives_crashes_in_session_windows() -> None:
    timed = rows().with_watermark("at", delay="2ms", name="times").key_by("key")
    sessions = timed.window(hr.session("5ms"))
    out = sessions.aggregate(spread=hr.custom(Spread, "v"), n=hr.count(), name="sessions")
    assert simulate(hr.Job("sessions", out.write.collect(name="out")), seeds=6).restores > 0


def expected(numbers: range) -> list[tuple[str, float]]:
    """The spread of each key."""
    by_key = {k: [float(n * n % 17) for n in numbers if n % 3 == k] for k in range(3)}
    return [(f"k{k}", max(of) - min(of)) for k, of in by_key.items()]
