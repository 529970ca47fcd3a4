"""What holds a job back, by made observations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from headrace.engine.observation.explain import explain
from headrace.engine.observation.facts import Facts, StorageWait
from headrace.engine.observation.observed import (
    CheckpointObserved,
    EdgeObserved,
    Finding,
    Observation,
    SinkObserved,
    SubtaskObserved,
    TaskObserved,
)

AT_MS = 1_700_000_000_000
MIB = 1 << 20
FACTS = Facts(
    operators={1: {"score": 0.9}}, sources=frozenset({"orders"}), sinks=frozenset({"out"})
)


def subtask(index: int, busy: float, backpressured: float = 0.0, rate: float = 10.0) -> Any:
    idle = 1.0 - busy - backpressured
    return SubtaskObserved(index, 0, rate, rate, busy, backpressured, idle, 0, 0, 0)


def task(
    index: int,
    name: str,
    *subtasks: SubtaskObserved,
    kind: Literal["source", "operator", "sink"] = "operator",
) -> TaskObserved:
    count = len(subtasks)
    return TaskObserved(
        index=index,
        name=name,
        operators=name.split(" -> "),
        kind=kind,
        parallelism=count,
        in_per_s=sum(s.in_per_s for s in subtasks),
        out_per_s=0,
        busy=sum(s.busy for s in subtasks) / count,
        backpressured=sum(s.backpressured for s in subtasks) / count,
        idle=sum(s.idle for s in subtasks) / count,
        queued_bytes=0,
        watermark_lag_s=None,
        state_bytes=None,
        call_p50_ms=None,
        call_p99_ms=None,
        late=0,
        failed=0,
        subtasks=list(subtasks),
    )


def observed(
    tasks: Sequence[TaskObserved],
    *,
    waiting: int = 41 * MIB,
    at_ms: int = AT_MS,
    finding: Finding | None = None,
    checkpoints: Sequence[CheckpointObserved] = (),
    phase: str = "running",
) -> Observation:
    return Observation(
        job="orders",
        phase=phase,
        at_ms=at_ms,
        started_ms=0,
        attempt=1,
        restarts=0,
        runner="threads",
        parallelism=2,
        mode="aligned",
        finding=finding or Finding("ok", "none", ""),
        tasks=list(tasks),
        edges=[EdgeObserved("orders->score/0", 0, 1, "rebalance", waiting, 64 * MIB)],
        checkpoints=list(checkpoints),
        sinks=[],
        workers=[],
    )


ORDERS = task(0, "orders", subtask(0, 0.1, 0.5, 50.0), kind="source")
SCORE = task(1, "score -> out", subtask(0, 0.92), subtask(1, 1.0), kind="sink")


def test_the_sentence_says_who_since_when_whether_it_gets_worse_and_what_would_help() -> None:
    since_ms = AT_MS - 200_000
    known = Finding("wrong", "slow_function", "", "score -> out", since_ms)
    before = [
        observed([ORDERS, SCORE], waiting=(41 - n) * MIB, at_ms=AT_MS - n * 1000, finding=known)
        for n in (8, 6, 4, 2, 1)
    ]
    finding = explain(observed([ORDERS, SCORE]), before, FACTS)
    assert finding.sentence == (
        "score (2 subtasks, 96 % busy; #1 100 %, #0 92 %) holds back orders for 3 min."
        " 41.0 MiB wait. Getting worse: +1.0 MiB/s. 4 subtasks would keep up."
    )
    assert (finding.severity, finding.cause, finding.task) == (
        "wrong",
        "slow_function",
        "score -> out",
    )
    assert (finding.since_ms, finding.trend, finding.parallelism) == (since_ms, "worse", 4)


def test_a_queue_that_shrinks_is_recovering() -> None:
    before = [
        observed([ORDERS, SCORE], waiting=(41 + n) * MIB, at_ms=AT_MS - n * 1000)
        for n in (8, 6, 4, 2)
    ]
    finding = explain(observed([ORDERS, SCORE]), before, FACTS)
    assert finding.trend == "recovering"
    assert "Recovering: -1.0 MiB/s." in finding.sentence


def test_a_queue_that_has_just_filled_up_is_no_trend() -> None:
    before = [
        observed([ORDERS, SCORE], waiting=w * MIB, at_ms=AT_MS - n * 1000)
        for n, w in ((8, 0), (6, 41), (4, 41), (2, 41))
    ]
    assert explain(observed([ORDERS, SCORE]), before, FACTS).trend == "steady"


def test_one_hot_subtask_is_skew_and_more_subtasks_are_not_promised() -> None:
    skewed = task(1, "score -> out", subtask(0, 0.08, rate=2.0), subtask(1, 1.0, rate=18.0))
    finding = explain(observed([ORDERS, skewed]), [], FACTS)
    assert (finding.cause, finding.parallelism) == ("skew", None)
    assert "#1 100 %, #0 8 %" in finding.sentence
    assert "#1 gets 90 % of the records" in finding.sentence


def test_a_sink_with_the_time_of_its_chain_is_slow() -> None:
    facts = Facts(operators={1: {"score": 0.1, "out": 0.8}}, sinks=FACTS.sinks)
    finding = explain(observed([ORDERS, SCORE]), [], facts)
    assert finding.cause == "slow_sink"
    assert finding.sentence.startswith("out (2 subtasks")


def test_a_busy_task_that_nobody_waits_for_is_only_noted() -> None:
    finding = explain(observed([task(0, "orders", subtask(0, 0.1)), SCORE]), [], FACTS)
    assert (finding.severity, finding.cause) == ("note", "slow_function")


def test_a_source_at_full_speed_holds_nobody_back() -> None:
    facts = Facts(operators={0: {"orders": 0.9}}, sources=FACTS.sources)
    quick = task(1, "score -> out", subtask(0, 0.2))
    source = task(0, "orders", subtask(0, 1.0), kind="source")
    finding = explain(observed([source, quick], waiting=0), [], facts)
    assert (finding.severity, finding.cause) == ("note", "slow_source")


def test_a_function_in_the_chain_of_its_source_crowds_the_source_out() -> None:
    facts = Facts(operators={0: {"orders": 0.01, "score": 0.95}}, sources=FACTS.sources)
    fused = task(0, "orders -> score", subtask(0, 1.0), kind="source")
    finding = explain(observed([fused, task(1, "out", subtask(0, 0.0))], waiting=0), [], facts)
    assert (finding.severity, finding.cause) == ("wrong", "slow_function")
    assert "score (1 subtask, 100 % busy) holds back orders" in finding.sentence


def test_the_gil_goes_before_whoever_else_is_busy() -> None:
    facts = Facts(operators=FACTS.operators, gil={0: 0.0, 1: 0.84})
    finding = explain(observed([ORDERS, SCORE]), [], facts)
    assert finding.cause == "gil"
    assert "score (2 subtasks) keeps the GIL for 84 % of the time" in finding.sentence


def test_windows_are_too_small_where_both_ends_wait() -> None:
    starved = task(1, "score -> out", subtask(0, 0.1))
    held = task(0, "orders", subtask(0, 0.1, 0.9), kind="source")
    facts = Facts(window_max_bytes=4096)
    finding = explain(observed([held, starved], waiting=0), [], facts)
    assert finding.cause == "small_window"
    assert "(4.0 KiB a channel)" in finding.sentence
    assert "score waits for records for 90 % of the time" in finding.sentence


@pytest.mark.parametrize(("every_ms", "severity"), [(4_000.0, "wrong"), (60_000.0, "note")])
def test_storage_is_slow_if_checkpoints_wait_for_it(every_ms: float, severity: str) -> None:
    facts = Facts(storage=StorageWait(7, 3_000.0, 3_100.0, every_ms))
    quiet = [task(0, "orders", subtask(0, 0.1)), task(1, "score", subtask(0, 0.1))]
    finding = explain(observed(quiet), [], facts)
    assert (finding.severity, finding.cause) == (severity, "slow_storage")
    assert "chk-7 waited 3.0 s of 3.1 s" in finding.sentence


def test_storage_is_not_blamed_for_the_wait_of_barriers() -> None:
    facts = Facts(storage=StorageWait(7, 3_000.0, 30_000.0, 4_000.0))
    quiet = [task(0, "orders", subtask(0, 0.1)), task(1, "score", subtask(0, 0.1))]
    assert explain(observed(quiet), [], facts).cause == "none"


def test_a_job_stands_still_when_nothing_has_moved_for_half_a_minute() -> None:
    held = task(0, "orders", subtask(0, 0.0, 1.0, 0.0), kind="source")
    still = task(1, "score", subtask(0, 0.0, 0.9, 0.0))
    before = [observed([held, still], at_ms=AT_MS - n * 1000) for n in range(40, 0, -1)]
    finding = explain(observed([held, still]), before)
    assert (finding.severity, finding.cause) == ("wrong", "standstill")
    assert "No record has moved for 40 s" in finding.sentence


def checkpoint(
    number: int, outcome: Literal["completed", "failed", "running"], reason: str | None = None
) -> CheckpointObserved:
    started_ms, unknown = AT_MS - 9_000, (None, None, None, None)
    return CheckpointObserved(number, outcome, "aligned", started_ms, *unknown, reason, False, [])


def test_a_late_checkpoint_is_told_with_what_it_waits_for() -> None:
    facts = Facts(operators=FACTS.operators, awaited="chk-8 has waited 9 s for score #1")
    finding = explain(observed([ORDERS, SCORE], checkpoints=[checkpoint(8, "running")]), [], facts)
    assert finding.sentence.endswith(" chk-8 has waited 9 s for score #1.")


def test_a_sink_that_does_not_commit_is_told() -> None:
    quiet = [task(0, "orders", subtask(0, 0.1)), task(1, "score", subtask(0, 0.1))]
    now = observed(quiet, checkpoints=[checkpoint(7, "completed"), checkpoint(8, "completed")])
    sink = SinkObserved("out", "exactly-once", AT_MS - 20_000, 7, 2, 20.0, 5)
    finding = explain(replace(now, sinks=[sink]), [])
    assert (finding.severity, finding.sentence) == (
        "wrong",
        "out has not committed chk-8: 2 transactions wait for the system behind it.",
    )
    done = replace(sink, last_commit_checkpoint=8, open_transactions=0)
    assert explain(replace(now, sinks=[done]), []).severity == "ok"


def test_failed_checkpoints_are_told_and_two_in_a_row_are_wrong() -> None:
    quiet = [task(0, "orders", subtask(0, 0.1)), task(1, "score", subtask(0, 0.1))]
    failed = [checkpoint(7, "completed"), checkpoint(8, "failed", "disk full")]
    finding = explain(observed(quiet, checkpoints=failed), [])
    assert (finding.severity, finding.sentence) == ("note", "chk-8 failed: disk full.")
    again = [*failed, checkpoint(9, "failed", "disk full")]
    assert explain(observed(quiet, checkpoints=again), []).severity == "wrong"


@pytest.mark.parametrize(
    ("phase", "cause"), [("deploying", "deploying"), ("restarting", "restarting")]
)
def test_a_job_that_does_not_run_yet_is_not_slow(phase: str, cause: str) -> None:
    assert explain(observed([ORDERS, SCORE], phase=phase), []).cause == cause


def test_a_job_that_has_ended_is_not_slow() -> None:
    finding = explain(observed([ORDERS, SCORE], phase="ended"), [], FACTS)
    assert (finding.severity, finding.cause) == ("ok", "none")


def test_a_finding_that_was_gone_for_long_begins_anew() -> None:
    known = Finding("wrong", "slow_function", "", "score -> out", AT_MS - 90_000)
    before = [observed([ORDERS, SCORE], at_ms=AT_MS - 10_000, finding=known)]
    now = observed([ORDERS, SCORE])
    assert explain(now, before, FACTS).since_ms == AT_MS
    soon = [replace(before[0], at_ms=AT_MS - 2_000)]
    assert explain(now, soon, FACTS).since_ms == AT_MS - 90_000
