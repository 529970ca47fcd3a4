"""A user's job under drawn faults: planted bugs are found, and right jobs pass."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.testing.simulated_program import SimulatedProgram
from headrace.testing import SimulationFailed, simulate

from .small_jobs import (
    TOTALS,
    InInstance,
    InModule,
    LastThree,
    Lost,
    Raising,
    Silent,
    Totals,
    job_of,
    rows_of,
)

#: `make test` runs few seeds; the page says what 1,000 take.
FEW = 8


@pytest.mark.parametrize("processor", [InInstance, InModule])
def test_state_outside_of_checkpoints_is_found_and_can_be_repeated(processor: Any) -> None:
    job = job_of(processor)
    with pytest.raises(SimulationFailed) as found:
        simulate(job, seeds=1000)
    seed = found.value.seed
    assert seed < 20
    story = str(found.value).splitlines()
    assert story[0].startswith(f"seed {seed}: sink 'out' lacks ")
    assert "without faults as well" not in story[0]
    assert story[1].startswith("faults: ")
    assert story[2] == f"repeat: hr.testing.simulate(job, seeds=[{seed}])"
    with pytest.raises(SimulationFailed) as again:
        simulate(job, seeds=[seed])
    assert str(again.value) == str(found.value)


def test_a_right_job_passes_and_runs_were_restored() -> None:
    report = simulate(lambda: job_of(Totals), seeds=FEW, ordered={"out": "key"})
    assert report.seeds == FEW
    assert report.restores > 2
    assert report.restarts > 2
    assert report.rescales > 0


def test_timers_fire_once_whatever_happens() -> None:
    records = [{"key": f"k{n % 3}", "at": n * 1_000_000} for n in range(60)]
    schema = pa.schema([("key", pa.string()), ("at", pa.timestamp("ns"))])
    batch = pa.RecordBatch.from_pylist(records, schema=schema)
    timed = hr.read.batches([batch], name="rows").with_watermark("at", delay="1ms", name="times")
    silent = timed.key_by("key").process(Silent, schema=TOTALS, name="silent")
    report = simulate(hr.Job("silent", silent.write.collect(name="out")), seeds=FEW)
    assert report.restores > 2


def test_records_in_another_order_are_told() -> None:
    # Dealt out among subtasks, a key's records overtake each other.
    rows = hr.read.batches(
        [pa.RecordBatch.from_pylist([{"key": "a", "n": n} for n in range(60)])],
        name="rows",
        parallelism=1,
    )
    job = hr.Job("mixed", rows.rebalance().write.collect(name="out"), parallelism=3)
    with pytest.raises(SimulationFailed, match="shows the records of key='a' in another order"):
        simulate(job, seeds=FEW, ordered={"out": "key"})
    assert simulate(job, seeds=FEW).seeds == FEW


def test_an_output_that_depends_on_the_order_is_told_from_a_bug() -> None:
    rows = [
        pa.RecordBatch.from_pylist([{"key": "a", "n": 10 * b + n} for n in range(20)])
        for b in range(3)
    ]
    source = hr.read.batches(rows, name="rows", parallelism=3)
    out = source.key_by("key").process(Totals, schema=TOTALS, name="totals")
    job = hr.Job("races", out.write.collect(name="out"))
    with pytest.raises(SimulationFailed, match=r"differs without faults as well.*check="):
        simulate(job, seeds=FEW)

    def last(output: Any) -> bool:
        due = sum(n for batch in rows for n in batch.column("n").to_pylist())
        return bool(max(row["total"] for row in output["out"]) == due)

    assert simulate(job, seeds=FEW, check=last).seeds == FEW
    with pytest.raises(SimulationFailed, match="seed 0: check returned False"):
        simulate(job, seeds=FEW, check=lambda output: False)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_lists_that_lose_elements_survive(backend: Any) -> None:
    keyed = rows_of().key_by("key")
    state = hr.State(backend=backend)
    out = keyed.process(LastThree, schema=TOTALS, name="last", state=state)
    job = hr.Job("last", out.write.collect(name="out"), parallelism=2)
    assert simulate(job, seeds=FEW, ordered={"out": "key"}).restores > 2


def test_errors_name_their_seed() -> None:
    with pytest.raises(hr.UserCodeError, match="thirty-three"):
        simulate(job_of(Raising), seeds=3)
    with pytest.raises(hr.UserCodeError, match="KeyError") as lost:
        simulate(job_of(Lost), seeds=1000)
    first, repeat = lost.value.__notes__
    assert "crash" in first or "rescaled" in first
    assert repeat.startswith("repeat: hr.testing.simulate(job, seeds=[")


def test_a_job_that_is_too_short_to_be_tested_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engine.testing.simulate._SUSPICIOUS", 3)
    with pytest.raises(hr.UserError, match="none of 3 runs was restored from a checkpoint"):
        simulate(job_of(Totals), sources={"rows": []}, seeds=3)


def test_other_things_are_refused() -> None:
    wrong: Any = lambda: "job"
    with pytest.raises(hr.UserError, match="a Job is due"):
        simulate(wrong)
    with pytest.raises(hr.UserError, match="no sink 'on'"):
        simulate(job_of(Totals), ordered={"on": "key"})


def test_rescales_leave_alone_where_records_are_exchanged() -> None:
    # At a parallelism of 1 source and function would be one task.
    same = rows_of().map(dict, schema=rows_of().schema, name="same")
    job = hr.Job("fused", same.write.collect(name="out"), parallelism=2)
    program = SimulatedProgram(job)
    assert [n for n in range(1, 5) if program.rescales_to(n)] == [2, 3, 4]
    assert simulate(job, seeds=2 * FEW).rescales > 0
