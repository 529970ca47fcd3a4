"""`headrace bench`: what is typed reaches the benchmark, and a wrong answer is the exit code."""

from __future__ import annotations

import sys
import time

import pytest

import headrace as hr
from headrace.bench.measure import run_and_measure
from headrace.bench.peers.environments import Unavailable

from .conftest import Command


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["bench", "flip76", "--mode", "at_least_once"], "Invalid value"),
        (["bench", "flip76", "--seconds", "0"], "Invalid value"),
        (["bench", "recovery", "--kills", "0"], "Invalid value"),
        (["bench", "recovery", "--state", "much"], "--state"),
        (["bench", "flip76", "--sleep-ms", "-1"], "Invalid value"),
        (["bench", "calls", "--longest", "0"], "Invalid value"),
        (["bench", "calls", "--kind", "waiting"], "Invalid value"),
        (["bench", "flip76", "--storage", "remote"], "Invalid value"),
        (["bench", "count", "--records", "0"], "Invalid value"),
        (["bench", "page", "--turns", "6"], "Invalid value"),
        (["bench", "shuffle", "-p", "0"], "Invalid value"),
        (["bench", "light", "--rate", "-1"], "Invalid value"),
        (["bench", "slow-network", "--bandwidth", "0B"], "lets nothing through"),
        (["bench", "slow-network", "--bandwidth", "fast"], "is not a size"),
        (["bench", "flip76", "--slow-network", "0B"], "--slow-network='0B' lets nothing through"),
        (["bench", "nexmark", "--queries", "2,6"], "--queries: '6' is unknown"),
        (["bench", "nexmark", "--queries", ","], "--queries names none"),
        (["bench", "nexmark", "--peers", "flnk"], "did you mean 'flink'?"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    words: list[str], sentence: str, headrace: Command
) -> None:
    ended = headrace(*words)
    assert ended.code == 2
    assert sentence in ended.sentence


@pytest.mark.usefixtures("only_long")
def test_a_page_has_a_price(headrace: Command) -> None:
    ended = headrace("bench", "page", "--turns", "4", "--seconds", "0.5", "--json")
    assert ended.code == 0, ended.err
    assert ended.objects[0]["blocks"] == 1
    assert ended.objects[0]["driver_cpu_ms_per_s_with"] > 0


@pytest.mark.parametrize("bench", ["count", "shuffle"])
def test_benches_check_their_answer(bench: str, headrace: Command) -> None:
    ended = headrace(
        *("bench", bench, "--records", "20000", "--runner", "threads", "--json"),
        *("--checkpoint-interval", "none"),
    )
    assert ended.code == 0
    assert ended.objects[0]["correct"] is True
    assert ended.objects[0]["records_per_s"] > 0


@pytest.mark.parametrize("keys", ["numbers", "text"])
@pytest.mark.parametrize("emit", ["final", "changes"])
def test_the_arms_of_the_count_check_their_answer(keys: str, emit: str, headrace: Command) -> None:
    ended = headrace(
        *("bench", "count", "--records", "300000", "--runner", "threads", "--json"),
        *("--checkpoint-interval", "none", "--keys", keys, "--emit", emit, "--skew"),
    )
    assert ended.code == 0
    (found,) = ended.objects
    assert (found["keys"], found["emit"], found["skew"]) == (keys, emit, True)
    assert found["correct"] is True


def test_records_per_second_do_not_count_the_end_of_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait = hr.JobHandle.wait

    def wait_for_long(handle: hr.JobHandle, timeout_s: float | None = None) -> hr.JobResult:
        result = wait(handle, timeout_s)
        time.sleep(2.0)
        return result

    monkeypatch.setattr(hr.JobHandle, "wait", wait_for_long)
    numbers = hr.read.sequence(10, name="in").write.blackhole(name="out")
    assert run_and_measure(hr.Job("short", numbers, parallelism=1), "threads").running_s < 2.0


def test_light_load_is_measured_by_the_record_and_by_the_worker(headrace: Command) -> None:
    ended = headrace(
        *("bench", "light", "--rate", "200", "--seconds", "1", "--runner", "processes", "--json"),
        *("--checkpoint-interval", "none"),
    )
    assert ended.code == 0
    (found,) = ended.objects
    assert 100 <= found["records"] <= 300
    assert 0 < found["latency_p50_ms"] <= found["latency_p99_ms"]
    assert found["worker_percent"] > 0
    assert found["processor_us"] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel must pace sockets")
def test_barriers_of_a_slow_network_are_timed(headrace: Command) -> None:
    ended = headrace(
        *("bench", "slow-network", "--records", "300000", "--bandwidth", "10MB", "--json"),
        *("--checkpoint-interval", "200ms"),
    )
    assert ended.code == 0
    (found,) = ended.objects
    assert found["correct"] is True
    # 300,000 records of 104 bytes cross three exchanges, each with half of them.
    assert found["records_per_s"] < 300_000, "the network was not slow"
    assert found["barrier_p50_ms"] > 0
    # A queue in front of the barrier held 250 ms of data and more.
    assert found["barrier_p50_ms"] < 200


def test_the_first_programs_are_measured_one_by_one(headrace: Command) -> None:
    ended = headrace(
        *("bench", "first", "--records", "20000", "--slow-calls", "3"),
        *("--runner", "threads", "--json"),
    )
    assert ended.code == 0
    programs = [found["program"] for found in ended.objects]
    assert len(programs) == len(set(programs)) == 10
    for found in ended.objects:
        assert found.get("skipped", "").startswith("bytewax is not") or found["records_per_s"] > 0
    assert [found["ratio"] > 0 for found in ended.objects[-2:]] == [True, True]


def test_the_sink_is_measured_in_each_pipeline(headrace: Command) -> None:
    ended = headrace(
        *("bench", "sink", "--records", "40000", "--rounds", "1", "--runner", "threads", "--json")
    )
    assert ended.code == 0
    assert [found["pipeline"] for found in ended.objects] == ["read", "count", "map"]
    assert [found["correct"] for found in ended.objects] == [True] * 3


MODES = ("aligned", "unaligned", "continuous", "none")
ALL_ARMS = [(m, s) for s in (0.0, 0.01, 0.1, 1.0) for m in MODES]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], [(*arm, 2, 15.0) for arm in ALL_ARMS]),
        (["--mode", "aligned"], [(m, s, 2, 15.0) for m, s in ALL_ARMS if m == "aligned"]),
        (["--sleep-ms", "0.1"], [(m, s, 2, 15.0) for m, s in ALL_ARMS if s == 0.1]),
        (
            ["--sleep-ms", "5", "--mode", "none", "-p", "3", "--seconds", "1.5"],
            [("none", 5.0, 3, 1.5)],
        ),
    ],
)
def test_the_experiment_of_flip_76_runs_the_arms_that_are_asked_for(
    words: list[str],
    expected: list[tuple[object, ...]],
    headrace: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(**arm: object) -> dict[str, object]:
        return {"bench": "flip76", **arm}

    monkeypatch.setattr("headrace.bench.flip76.run", run)
    ended = headrace("bench", "flip76", *words, "--json")
    assert ended.code == 0
    keys = ("mode", "sleep_ms", "parallelism", "seconds")
    assert [tuple(arm[key] for key in keys) for arm in ended.objects] == expected


def test_the_experiment_runs_elsewhere_on_slow_storage_and_network_and_with_skew(
    headrace: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**arm: object) -> dict[str, object]:
        return {"bench": "flip76", **arm}

    monkeypatch.setattr("headrace.bench.flip76.run", run)
    words = ("--mode", "none", "--sleep-ms", "1", "--runner", "threads", "--storage", "slowed")
    ended = headrace("bench", "flip76", *words, "--skew", "--slow-network", "20MB", "--json")
    (found,) = ended.objects
    assert (found["runner"], found["storage"], found["skewed"]) == ("threads", "slowed", True)
    assert found["network_bytes_per_s"] == 20_000_000


def test_calls_are_measured_up_to_the_longest_that_is_asked_for(
    headrace: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**arm: object) -> dict[str, object]:
        return {"bench": "calls", **arm}

    monkeypatch.setattr("headrace.bench.calls.run", run)
    words = ("--longest", "0.01", "--kind", "holding", "--mode", "aligned", "-p", "3")
    ended = headrace("bench", "calls", *words, "--seconds", "2", "--json")
    assert ended.code == 0
    keys = ("kind", "call_s", "mode", "parallelism", "seconds", "runner")
    assert [tuple(arm[key] for key in keys) for arm in ended.objects] == [
        ("holding", length_s, "aligned", 3, 2.0, "processes") for length_s in (0.001, 0.01)
    ]


def test_several_rounds_of_the_experiment_give_one_result_an_arm(
    headrace: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = iter([10, 1, 30, 3, 20, 2])

    def run(**arm: object) -> dict[str, object]:
        return {"bench": "flip76", **arm, "records_per_s": next(rates)}

    monkeypatch.setattr("headrace.bench.flip76.run", run)
    monkeypatch.setattr("headrace.bench.flip76.MODES", ("unaligned", "none"))
    ended = headrace("bench", "flip76", "--sleep-ms", "1", "--rounds", "3", "--json")
    found = [(arm["mode"], arm["records_per_s"], arm["rounds"]) for arm in ended.objects]
    assert found == [("unaligned", 20, 3), ("none", 2, 3)]


@pytest.mark.parametrize(
    ("words", "correct", "code"),
    [
        ([], True, 3),
        (["--only", "spark", "bytewax"], True, 0),
        (["--only", "spark", "bytewax"], False, 3),
        (["--only", "spark", "bytewax", "flink"], True, 3),
        (["--only", "storm"], True, 2),
    ],
)
def test_engines_that_did_not_run_or_answered_wrongly_are_the_exit_code(
    words: list[str], correct: bool, code: int, headrace: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(**_: object) -> list[dict[str, object]]:
        return [{"peer": peer, "correct": correct} for peer in ("spark", "bytewax")]

    monkeypatch.setattr("headrace.bench.peers.suite.run", run)
    assert headrace("bench", "peers", *words, "--json").code == code


def test_nexmark_runs_the_queries_asked_for_and_a_wrong_answer_is_its_exit_code(
    headrace: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        *("bench", "nexmark", "--queries", "2,3", "--events", "5000"),
        *("--runner", "threads", "--json"),
    ]
    ended = headrace(*words)
    assert ended.code == 0
    assert [(each["query"], each["correct"]) for each in ended.objects] == [(2, True), (3, True)]
    monkeypatch.setattr("headrace.bench.nexmark.suite.expected", lambda query, count: {})
    ended = headrace(*words)
    assert ended.code == 3
    assert [each["correct"] for each in ended.objects] == [False, False]


def test_an_engine_that_cannot_run_nexmark_is_named_and_is_the_exit_code(
    headrace: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(project: str) -> list[str]:
        raise Unavailable("mvn is not on PATH: install Maven")

    monkeypatch.setattr("headrace.bench.nexmark.suite.java_of", missing)
    ended = headrace(
        *("bench", "nexmark", "--queries", "2", "--events", "5000", "--peers", "flink"),
        *("--runner", "threads", "--json"),
    )
    assert ended.code == 3
    assert [each["engine"] for each in ended.objects] == ["headrace"]
    assert "flink is skipped: mvn is not on PATH" in ended.err
