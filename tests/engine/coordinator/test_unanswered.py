"""Sentences about workers that live and do not answer."""

from __future__ import annotations

import pytest

from headrace.engine.contract.execution import ExecutionPlan, OperatorPlan, TaskPlan
from headrace.engine.contract.messages import Call, Pulse
from headrace.engine.contract.operators import Operator, SourceReader
from headrace.engine.coordinator.unanswered import unanswered


def never_operator() -> Operator:
    raise AssertionError("nothing is opened here")


def never_source() -> SourceReader:
    raise AssertionError("nothing is opened here")


OPERATORS = (
    OperatorPlan("numbers", source=never_source, stateful=True),
    OperatorPlan("score", operator=never_operator, built_at="job.py:12"),
    OperatorPlan("rate", operator=never_operator),
    OperatorPlan("totals", operator=never_operator, stateful=True),
)
PLAN = ExecutionPlan("job", (TaskPlan(0, "all", OPERATORS, 2, (), ()),), (), 16)
HEAD = "worker 1 has not answered for 5 s: "
REMEDY = "; isolate=True runs its function in a process of its own"


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        ([Call(0, 0, 1)], f"score (job.py:12) holds the GIL{REMEDY}"),
        ([Call(0, 0, 2), Call(0, 1, 2)], f"rate holds the GIL{REMEDY}"),
        ([Call(0, 0, 2), Call(0, 1, 1)], f"rate or score (job.py:12) holds the GIL{REMEDY}"),
        ([Call(0, 0, 3)], "totals holds the GIL"),
        ([Call(0, 0, 0)], "numbers holds the GIL"),
        ([], "its process lives, and something in it holds the GIL"),
    ],
)
def test_the_operators_that_may_hold_the_gil_are_named(calls: list[Call], text: str) -> None:
    assert unanswered(PLAN, Pulse(1, 0, calls), 5_900_000_000) == HEAD + text


@pytest.mark.parametrize("call", [Call(0, 0, 4), Call(0, 0, -1), Call(1, 0, 0), Call(-1, 0, 0)])
def test_a_torn_record_names_nobody(call: Call) -> None:
    assert unanswered(PLAN, Pulse(1, 0, [call]), 10**9).endswith("something in it holds the GIL")
