"""`isolate=` of operators: refused before a job runs where it cannot work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headrace as hr

SCHEMA = pa.schema([("sequence", pa.int64())])


def numbers() -> hr.Stream:
    return hr.read.sequence(10, name="numbers")


class Count(hr.StatefulProcessor):
    n = hr.value_state(pa.int64(), default=0)

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"n": 1}


def process_isolated() -> hr.Stream:
    return numbers().key_by("key").process(Count, schema=SCHEMA, name="count", isolate=True)


def filter_by_expression() -> hr.Stream:
    return numbers().filter(pc.field("sequence") > 1, isolate=True)


def isolated_and_shared() -> hr.Stream:
    return numbers().map_batches(list, share="worker", isolate=True)


def isolated_by_a_word() -> hr.Stream:
    return numbers().map(lambda row: row, isolate="yes")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            process_isolated,
            (
                "process: isolate=True is not for this: a processor's state lies in the worker; do"
                " the slow part in a map or map_batches before it, with isolate=True there"
            ),
        ),
        (
            filter_by_expression,
            "filter: isolate=True is not for this: an Arrow expression does not hold the GIL",
        ),
        (
            isolated_and_shared,
            (
                "map_batches: isolate=True is not for this: share='worker' keeps one instance in"
                " the worker; choose one of the two"
            ),
        ),
        (isolated_by_a_word, "map: isolate is True or False, not 'yes'"),
    ],
)
def test_what_cannot_be_isolated_is_refused_when_it_is_built(
    build: Callable[[], hr.Stream], text: str
) -> None:
    with pytest.raises(hr.UserError) as raised:
        build()
    assert str(raised.value) == text


def test_a_function_that_needs_locks_of_the_program_is_refused_before_the_job_runs() -> None:
    lock = threading.Lock()

    def score(row: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return row

    out = numbers().map(score, name="score", isolate=True).write.collect(name="out")
    with pytest.raises(hr.UserError) as raised:
        hr.Job("job", out, parallelism=1).plan()
    (sentence,) = str(raised.value).splitlines()
    assert sentence.startswith("map 'score' (test_isolated.py:")
    assert "cannot be shipped to the workers (TypeError: cannot pickle '_thread.lock'" in sentence


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (lambda s: s.map(lambda row: {"sequence": -row["sequence"]}, SCHEMA, isolate=True), 10),
        (lambda s: s.flat_map(lambda row: [{"sequence": 1}] * 2, SCHEMA, isolate=True), 20),
        (lambda s: s.filter(lambda row: row["sequence"] > 6, isolate=True), 3),
        (lambda s: s.map_batches(lambda batch: batch, isolate=True), 10),
    ],
    ids=["map", "flat_map", "filter", "map_batches"],
)
def test_isolated_operators_run_in_a_job(
    stream: Callable[[hr.Stream], hr.Stream], expected: int
) -> None:
    job = hr.Job("job", stream(numbers()).write.collect(name="out"), parallelism=1)
    assert job.run("processes").collected["out"].num_rows == expected


def test_failed_records_of_isolated_operators_are_routed_or_dropped() -> None:
    def odd(row: dict[str, Any]) -> dict[str, Any]:
        if row["sequence"] % 2 == 0:
            raise ValueError("even")
        return row

    routed = numbers().map(odd, on_error="route", isolate=True, name="odd")
    skipped = hr.read.sequence(10, name="others").map(
        odd, on_error="skip", isolate=True, name="skips"
    )
    job = hr.Job(
        "job",
        routed.write.collect(name="out"),
        routed.errors.write.collect(name="dead"),
        skipped.write.collect(name="rest"),
        parallelism=1,
    )
    found = job.run("processes").collected
    assert sorted(found["out"]["sequence"].to_pylist()) == [1, 3, 5, 7, 9]
    dead = [letter["record"]["sequence"] for letter in found["dead"].to_pylist()]
    assert sorted(dead) == [0, 2, 4, 6, 8]
    assert sorted(found["rest"]["sequence"].to_pylist()) == [1, 3, 5, 7, 9]
