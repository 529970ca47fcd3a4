"""Users' functions in a stream: their errors as an output, and functions that are refused."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pyarrow.compute as pc
import pytest

import headrace as hr
from headrace.engine.api.stream import Stream
from headrace.engine.operators.failures import letter_schema

from .test_stream import ORDERS, OTHER, FraudModel, orders, same, sentence


def test_errors_are_an_output_beside_the_results() -> None:
    good = orders().map(same, on_error="route", name="good")
    assert good.errors.schema == letter_schema(ORDERS)
    job = hr.Job("job", good.errors.write.collect(name="dead"), good.write.collect(name="out"))
    plan = job.plan(parallelism=1)
    (task,) = [task for task in plan.tasks if task.operators[-1].name == "good"]
    keys = {edge.index: edge.key for edge in plan.edges}
    assert [keys[index] for index in task.error_outputs] == ["good (errors)->dead/0"]
    assert task.operators[-1].built_at.startswith("test_functions.py:")


@pytest.mark.parametrize("method", ["map", "flat_map", "filter", "map_batches", "map_async"])
def test_routed_errors_need_a_taker_and_a_known_word(method: str) -> None:
    def call(on_error: Any, function: Any = same) -> Stream:
        named = {"name": "ask"} if method == "map_async" else {}
        made: Stream = getattr(orders(), method)(function, on_error=on_error, **named)
        return made

    job = hr.Job("job", call("route").write.collect(name="out"))
    text = sentence(lambda: job.plan(parallelism=1))
    assert 'has on_error="route", and nothing takes its errors' in text
    assert re.match(rf"{method} ('ask' )?\(test_functions.py:", text)
    assert "did you mean 'skip'?" in sentence(lambda: call("skp"))
    for on_error in ("fail", "skip"):
        assert "has no errors to take" in sentence(partial(lambda on: call(on).errors, on_error))
    assert "a union has no errors" in sentence(lambda: call("route").union(orders("b")).errors)


async def later(row: Any) -> Any:
    return row


class Later:
    async def __call__(self, row: Any) -> Any:
        return row


async def more(row: Any) -> AsyncIterator[Any]:
    yield row


@pytest.mark.parametrize("function", [later, partial(later), Later, Later(), more])
@pytest.mark.parametrize("method", ["map", "flat_map", "filter"])
def test_a_coroutine_function_is_refused(method: str, function: Any) -> None:
    text = sentence(lambda: getattr(orders(), method)(function))
    assert text.startswith(f"{method} takes a plain function")
    assert "is a coroutine function (async def)" in text


def test_on_error_is_refused_where_a_failure_cannot_be_taken_apart() -> None:
    assert "needs a function of one row" in sentence(
        lambda: orders().filter(pc.field("amount") > 1, on_error="skip")
    )
    keyed = orders().key_by("customer")
    assert "process has no on_error='route'" in sentence(
        lambda: keyed.process(FraudModel, schema=OTHER, name="f", on_error="route")
    )
