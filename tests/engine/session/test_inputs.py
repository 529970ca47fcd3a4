"""Sources that the driver prepares: once for a run, and ended once, whoever waits."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.connectors.memory import BatchesSource
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.contract.connectors import PreparedSource, SourceRun
from headrace.engine.session import inputs
from headrace.engine.session.inputs import Inputs

BATCH = pa.record_batch({"n": [1, 2, 3]})


class Prepared:
    """A source that notes what the driver asks of it."""

    def __init__(self, source: hr.Source | None = None, *, fails: bool = False) -> None:
        self.notes: list[Any] = []
        self.source: hr.Source = source or BatchesSource([BATCH])
        self.fails = fails
        self.hear: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"source": self.source}

    @property
    def schema(self) -> pa.Schema:
        return self.source.schema

    def reader(self) -> Any:
        raise AssertionError("a run reads by what was prepared")

    def prepare(self, run: SourceRun) -> PreparedSource:
        self.notes.append(run)
        if self.fails:
            raise hr.HeadraceError("cannot be prepared")
        return PreparedSource(
            self.source.reader,
            begin=lambda: self.notes.append("begin"),
            end=lambda finished: self.notes.append(("end", finished)),
            kept=self.hear,
        )


def job_of(source: Prepared, **options: Any) -> hr.Job:
    rows = hr.from_source(source, name="rows")
    return hr.Job("prepared", rows.write.collect(name="out"), parallelism=1, **options)


def test_the_readers_of_a_run_are_those_that_were_prepared(tmp_path: Path) -> None:
    source = Prepared()
    job = job_of(source, checkpoints=str(tmp_path))
    assert source.notes == [], "a plan prepares nothing"
    assert job.run("threads").collected["out"]["n"].to_pylist() == [1, 2, 3]
    run, *rest = source.notes
    folder = f"{tmp_path}/prepared/staged/rows"
    assert run == SourceRun("prepared", "rows", folder, restored=False, fresh=False)
    assert rest == ["begin", ("end", True)]


def test_a_run_from_a_checkpoint_says_so(tmp_path: Path) -> None:
    endless = SequenceSource(rows=None, rate_per_s=1_000, key_count=1, payload_bytes=0)
    source = Prepared(endless)
    rows = hr.from_source(source, name="rows")
    for restored in (False, True):
        sink = rows.write.parquet(str(tmp_path / "out"), name="out")
        handle = hr.Job("endless", sink, checkpoints=str(tmp_path / "ckpt")).start("threads")
        handle.checkpoint()
        handle.stop()
        assert handle.wait().outcome == "stopped"
        run, *rest = source.notes
        assert run.restored is restored
        assert rest == ["begin", ("end", False)]
        source.notes.clear()


def test_a_job_that_fails_ends_its_sources_too() -> None:
    source = Prepared()

    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ValueError("planted")

    rows = hr.from_source(source, name="rows").map_batches(fail, schema=BATCH.schema, name="fail")
    job = hr.Job(
        "failing", rows.write.blackhole(name="out"), restart=hr.Restart(attempts=0), parallelism=1
    )
    with pytest.raises(hr.JobFailed, match="planted"):
        job.run("threads")
    assert source.notes[1:] == ["begin", ("end", False)]


def test_a_failing_preparation_is_told_before_anything_runs() -> None:
    source = Prepared(fails=True)
    with pytest.raises(hr.HeadraceError, match="cannot be prepared"):
        job_of(source).run("threads")
    assert len(source.notes) == 1


def test_sources_end_once() -> None:
    source = Prepared()
    inputs = Inputs("prepared", "", fresh=True)
    plan = job_of(source).plan()
    prepared = inputs.prepare(plan, lambda name: False)
    assert inputs.prepare(prepared, lambda name: False) is prepared
    inputs.end(finished=True)
    assert source.notes == [SourceRun("prepared", "rows", "", restored=False, fresh=True)]
    inputs.begin()
    ended = threading.Event()
    inputs.watch(ended, lambda: True)
    ended.set()
    inputs.await_end()
    inputs.end(finished=False)
    assert source.notes[1:] == ["begin", ("end", True)]


def test_a_source_hears_its_states_in_all_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "LOOK_EVERY_S", 0.01)
    source = Prepared(SequenceSource(rows=None, rate_per_s=100.0))
    heard: list[Any] = []
    answers = threading.Event()

    def hear(kept: Any) -> None:
        heard.append([state.name for states in kept for state in states])
        answers.set()
        raise OSError("which is tried again")

    source.hear = hear
    handle = job_of(source, checkpoints=str(tmp_path)).start("threads")
    handle.checkpoint()
    handle.savepoint()
    for _ in range(2):
        answers.clear()
        assert answers.wait(60)
    handle.cancel()
    handle.wait()
    assert len(heard[-1]) == 2, "the checkpoint and the savepoint"
