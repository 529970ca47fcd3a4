"""Nexmark's queries answer as the independent computation does; one of them through a kill."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

import headrace as hr
from headrace.bench.nexmark.answers import of_table, sink_of
from headrace.bench.nexmark.queries import QUERIES, Events
from headrace.bench.nexmark.reference import expected

EVENTS = 30_000
#: Of queries with windows of ten seconds: twelve seconds.
_WINDOWED = {5: 120_000, 7: 120_000, 8: 120_000}
_PATIENCE_S = 120


@pytest.mark.parametrize("query", QUERIES)
def test_answers_are_those_of_the_reference(query: int) -> None:
    events = _WINDOWED.get(query, EVENTS)
    made = Events(hr.read.sequence(events, keys=None, name="numbers"), seed=query)
    job = hr.Job("nexmark", sink_of(query, QUERIES[query](made)), parallelism=2)
    found = of_table(query, job.run("threads").collected["out"])
    wanted = expected(query, events, seed=query)
    assert wanted.total() > 0
    assert found == wanted
    assert found != expected(query, events, seed=query + 1)


@pytest.mark.slow
@pytest.mark.kills
def test_winning_bids_are_exact_through_a_kill(tmp_path: Path) -> None:
    numbers = hr.read.sequence(EVENTS, keys=None, name="numbers", rate=6000)
    job = hr.Job(
        "nexmark",
        sink_of(4, QUERIES[4](Events(numbers))),
        parallelism=2,
        checkpoints=hr.Checkpoints(str(tmp_path), interval="300ms", mode="unaligned"),
    )
    handle = job.start("processes")
    deadline = time.monotonic() + _PATIENCE_S
    while handle.status().completed < 3:
        assert time.monotonic() < deadline, "no checkpoints"
        time.sleep(0.01)
    os.kill(max(handle.status().workers.values()), signal.SIGKILL)
    result = handle.wait(_PATIENCE_S)
    assert result.restarts >= 1
    assert of_table(4, result.collected["out"]) == expected(4, EVENTS)
