"""A user's whole job in virtual time: its steps, its faults, and what is refused."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.testing import Simulated

from .small_jobs import (
    TOTALS,
    Calls,
    InInstance,
    InModule,
    Raising,
    Totals,
    job_of,
    rows_of,
    totals_due,
)


def shown(run: Simulated) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in run.output("out"))


def test_a_job_comes_to_its_end_through_crashes_and_rescales() -> None:
    with Simulated(job_of(Totals), seed=7) as run:
        run.until(lambda: run.read >= 20)
        assert run.output("out") == []
        assert run.checkpoint() == 1
        committed = run.output("out")
        assert len(committed) >= 10
        run.crash(worker=1)
        run.rescale(3)
        assert run.parallelism == 3
        run.crash_driver()
        run.until()
        assert shown(run) == totals_due()
        assert run.output("out")[: len(committed)] == committed
        assert (run.finished, run.restarts > 0, run.read > 60) == (True, True, True)


@pytest.mark.parametrize("processor", [InInstance, InModule])
def test_state_outside_of_a_checkpoint_dies_with_a_worker(processor: Any) -> None:
    with Simulated(job_of(processor), seed=7) as run:
        run.until(lambda: run.read >= 30)
        run.checkpoint()
        run.crash()
        run.until()
        assert len(run.output("out")) == 60
        assert shown(run) != totals_due()


@pytest.mark.parametrize("workers", [1, 2])
def test_the_subtasks_of_a_worker_share_its_modules(workers: int) -> None:
    for _ in range(2):
        with Simulated(job_of(Calls), workers=workers) as run:
            run.until()
            counts = [row["total"] for row in run.output("out")]
            assert counts.count(1) == workers


def test_one_seed_is_one_run() -> None:
    def traced(seed: int) -> list[str]:
        lines: list[str] = []
        with Simulated(job_of(Totals), seed=seed, show=lines.append) as run:
            run.until(lambda: run.read >= 20)
            run.crash()
            run.until()
        return lines

    first = traced(5)
    assert first == traced(5)
    assert first != traced(6)


def test_time_is_virtual() -> None:
    begun = time.process_time()
    with Simulated(job_of(Totals, checkpoints=None)) as run:
        run.until("4ms")
        assert 0.004 <= run.seconds < 0.1
        run.until(1000)
        assert run.finished
    assert time.process_time() - begun < 100


def test_a_source_reads_the_records_of_the_test() -> None:
    records = [{"key": "a", "n": 1}, {"key": "a", "n": 2}]
    for given in (records, pa.Table.from_pylist(records), pa.RecordBatch.from_pylist(records)):
        with Simulated(job_of(Totals), sources={"rows": given}) as run:
            run.until()
            assert shown(run) == [("a", 1), ("a", 3)]


def test_records_that_do_not_fit_are_refused() -> None:
    with pytest.raises(hr.UserError, match="no source 'row'; did you mean 'rows'"):
        Simulated(job_of(Totals), sources={"row": []})
    with pytest.raises(hr.UserError, match="source 'rows' do not fit its columns"):
        Simulated(job_of(Totals), sources={"rows": [{"key": "a", "n": "many"}]})


def test_sinks_of_files_write_into_memory(tmp_path: Any) -> None:
    sink = rows_of().write.parquet(str(tmp_path / "out"), name="out")
    with Simulated(hr.Job("files", sink)) as run:
        run.until()
        assert len(run.output("out")) == 60
    assert list(tmp_path.rglob("*.parquet")) == []
    with pytest.raises(hr.UserError, match="no sink 'in'; it has out"):
        run.output("in")


def test_isolated_functions_and_databases_run_in_place() -> None:
    def doubled(row: dict[str, Any]) -> dict[str, Any]:
        return {"key": row["key"], "n": row["n"] * 2}

    twice = rows_of().map(
        doubled, schema=rows_of().schema, isolate=True, name="twice", parallelism=1
    )
    state = hr.State(backend="rocksdb")
    out = twice.key_by("key").process(Totals, schema=TOTALS, name="totals", state=state)
    with Simulated(hr.Job("in_place", out.write.collect(name="out"))) as run:
        run.until(lambda: run.read >= 30)
        run.checkpoint()
        run.crash()
        run.until()
        assert shown(run) == [(key, 2 * total) for key, total in totals_due()]


def test_an_error_of_the_users_code_ends_the_run() -> None:
    with (
        pytest.raises(hr.UserCodeError, match=r"'totals'.*ValueError: thirty-three for record"),
        Simulated(job_of(Raising)) as run,
    ):
        run.until()


def test_what_comes_too_late_or_not_at_all_is_told() -> None:
    with Simulated(job_of(Totals)) as run:
        with pytest.raises(hr.UserError, match="2 workers, from 0; there is no 2"):
            run.crash(worker=2)
        with pytest.raises(hr.UserError, match="finished before until: what it waits for"):
            run.until(lambda: False)
        for call in (run.crash, run.crash_driver, run.checkpoint, lambda: run.rescale(3)):
            with pytest.raises(hr.UserError, match=r"the job finished before .*; begin it earlier"):
                call()
    with pytest.raises(hr.UserError, match="context manager"):
        Simulated(job_of(Totals)).until()


def test_jobs_with_logged_edges_are_refused(tmp_path: Any) -> None:
    logged = rows_of().logged(name="log").write.collect(name="out")
    job = hr.Job("regions", logged, checkpoints=str(tmp_path))
    with pytest.raises(hr.UserError, match="has logged edges"):
        Simulated(job)


def test_a_job_that_never_ends_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.testing.job_world._STEPS_MAX", 3000)
    endless = hr.read.sequence(None, name="numbers").write.collect(name="out")
    with (
        Simulated(hr.Job("endless", endless)) as run,
        pytest.raises(hr.JobFailed, match=r"has not ended after .* sources="),
    ):
        run.until()
