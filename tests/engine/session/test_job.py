"""Jobs: what they state, plan and hand to the session."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from headrace.channels.events import CheckpointMode
from headrace.engine.api.read import batches
from headrace.engine.api.write import SinkHandle
from headrace.engine.connectors.memory import CollectSink
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.execution import ExecutionPlan
from headrace.engine.contract.launcher import LauncherMaker
from headrace.engine.contract.operators import Transaction
from headrace.engine.contract.options import Checkpoints, Network, RunOptions
from headrace.engine.contract.outcomes import JobResult
from headrace.engine.coordinator.rules import Phase
from headrace.engine.drivers.status import Status
from headrace.engine.observation.observer import Observer
from headrace.engine.session.handle import Session, Successor
from headrace.engine.session.job import Job
from headrace.engine.session.launchers import make_launcher

#: The same class, to be called with arguments that a type checker refuses too.
loose: Any = Job


def sink(name: str = "out") -> SinkHandle:
    return batches([pa.record_batch({"id": [1]})], name="rows").write.collect(name=name)


class EndedSession:
    """A job that has already ended, with checkpoint 7."""

    def __init__(self, launches: Launches) -> None:
        self._launches = launches

    def successor(self, plan: ExecutionPlan, options: RunOptions) -> Successor:
        return PreparedSession(self._launches, plan, options)

    def checkpoint(self) -> int:
        return 7

    def savepoint(self, path: str | None, mode: CheckpointMode | None) -> str:
        return "/d/job/sav-7"

    def stop(self) -> None:
        """There is nothing to stop."""

    def stop_with_savepoint(
        self, path: str | None, mode: CheckpointMode | None, *, drain: bool
    ) -> str:
        return "/d/job/sav-7"

    def drain(self) -> None:
        """There is nothing to drain."""

    def suspend(self) -> None:
        """There is nothing to stop."""

    def await_start(self) -> None:
        """It has ended well."""

    def rescaled(self, text: str) -> None:
        """Nobody reads it."""

    def cancel(self) -> None:
        """There is nothing to stop."""

    def wait(self, timeout_s: float | None) -> JobResult:
        return JobResult("job", last_checkpoint=7)

    def settled(self) -> JobResult:
        return self.wait(None)

    def status(self) -> Status:
        return Status(Phase.ENDED, 1, 0, {}, (), (), 0)

    def observer(self, deliveries: Mapping[str, str]) -> Observer:
        return Observer(Job("job", sink()).plan())

    def metrics(self) -> Mapping[str, float]:
        return {}


class PreparedSession:
    """What takes its place."""

    def __init__(self, launches: Launches, plan: ExecutionPlan, options: RunOptions) -> None:
        self._launches, self._plan, self._options = launches, plan, options

    def await_workers(self) -> None:
        """They are there."""

    def fetch_ahead(self) -> int:
        return 0

    def begin(self, restore: int) -> Session:
        options = replace(self._options, restore=restore)
        return self._launches.start_job(self._plan, options, make_launcher)

    def discard(self) -> None:
        """Nothing is there."""


class Launches:
    """Stands in for the coordination room; notes what it is asked to start."""

    def __init__(self) -> None:
        self.plans: list[ExecutionPlan] = []
        self.options: list[RunOptions] = []

    def start_job(
        self, plan: ExecutionPlan, options: RunOptions, make_launcher: LauncherMaker
    ) -> Session:
        self.plans.append(plan)
        self.options.append(options)
        return EndedSession(self)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Launches:
    found = Launches()
    module = ModuleType("headrace.engine.session.session")
    module.__dict__["start_job"] = found.start_job
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    return found


def test_a_job_states_options_and_deliveries() -> None:
    job = Job("orders", sink(), parallelism=2, checkpoints="/ckpt", network=Network(buffer="1KiB"))
    assert job.options == RunOptions(
        parallelism=2, checkpoints=Checkpoints("/ckpt"), network=Network(buffer="1KiB")
    )
    assert job.deliveries == {"out": "exactly-once"}


def test_a_plan_takes_the_jobs_parallelism_unless_told_otherwise() -> None:
    job = Job("orders", sink(), parallelism=2, max_parallelism=16)
    assert [job.plan().slots, job.plan(3).slots] == [2, 3]
    assert job.plan().max_parallelism == 16


def test_a_job_describes_itself() -> None:
    job = Job("orders", sink(), parallelism=2)
    assert job.describe() == 'flowchart LR\n    t0(["rows -> out x2"])'


def test_a_notebook_draws_a_job_or_says_why_not() -> None:
    job = Job("orders", sink(), parallelism=2)
    assert repr(job) == "<Job 'orders': out>"
    drawn = loose._repr_svg_(job)
    assert "rows -&gt; out" in drawn
    assert loose._repr_html_(job) == f'<div class="headrace-embedded">{drawn}</div>'
    empty = Job("orders")
    assert loose._repr_svg_(empty) is None
    assert loose._repr_html_(empty).startswith("<pre>&lt;Job &#x27;orders&#x27;: no sink&gt;: ")


def test_a_run_replaces_what_the_job_states(launches: Launches) -> None:
    job = Job("orders", sink(), parallelism=1, checkpoints="/a")
    job.run("threads", restore="latest", parallelism=3, checkpoints="/b")
    assert launches.options == [
        RunOptions("threads", restore="latest", parallelism=3, checkpoints=Checkpoints("/b"))
    ]
    assert launches.plans[0].slots == 3


def test_the_environment_and_a_settings_file_win_over_the_program(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "headrace.toml").write_text("parallelism = 4\n[checkpoints]\nretain = 2\n")
    monkeypatch.setenv("HEADRACE_CHECKPOINTS_INTERVAL", "500ms")
    Job("orders", sink(), parallelism=1, checkpoints="/a").start("threads")
    (options,) = launches.options
    assert options.parallelism == 4
    assert options.checkpoints == Checkpoints("/a", interval="500ms", retain=2)
    assert launches.plans[0].slots == 4


def test_a_rescale_starts_another_plan_from_the_last_checkpoint(launches: Launches) -> None:
    job = Job("orders", sink(), parallelism=2, checkpoints="/a")
    job.start("threads").rescale(3)
    assert [plan.slots for plan in launches.plans] == [2, 3]
    assert launches.options[1] == RunOptions(
        "threads", restore=7, parallelism=3, checkpoints=Checkpoints("/a")
    )


def test_a_rescale_without_checkpoints_is_refused(launches: Launches) -> None:
    handle = Job("orders", sink(), parallelism=2).start("threads")
    with pytest.raises(UserError) as caught:
        handle.rescale(3)
    assert str(caught.value) == "job 'orders' keeps no checkpoints; give it checkpoints=DIR"
    assert len(launches.plans) == 1


def commit(handle: SinkHandle, batch: pa.RecordBatch) -> None:
    """Let the sink collect one batch, as the coordinator would."""
    writer, committer = handle.sink.writer(), handle.sink.committer("job", "out")
    assert committer is not None
    writer.write(batch)
    transactions: list[Transaction] = list(writer.precommit(1))
    committer.commit(7, transactions)


def test_a_result_holds_what_was_collected_in_this_run(launches: Launches) -> None:
    handle = sink()
    assert isinstance(handle.sink, CollectSink)
    commit(handle, pa.record_batch({"id": [99]}))
    job = Job("orders", handle)
    assert job.run("threads", restore="latest").collected["out"].to_pydict() == {"id": [99]}
    nothing = Job("orders", sink())
    empty = nothing.run("threads").collected["out"]
    assert (empty.num_rows, empty.schema) == (0, handle.node.schema)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: Job("orders").plan(),
            "the job has no sink; pass at least one, such as stream.write.collect(...)",
        ),
        (
            lambda: loose("orders", 3),
            "Job takes sinks such as stream.write.parquet(...), got 3",
        ),
        (
            lambda: loose("orders", sink(), checkpoint="/a"),
            "Job has no option 'checkpoint'; did you mean 'checkpoints'?",
        ),
        (
            lambda: Job("a/b", sink()),
            "Job: name='a/b' may not hold '/', '->', line breaks or outer spaces",
        ),
        (
            lambda: Job("orders", sink(), max_parallelism=0),
            "max_parallelism=0 is not a whole number from 1 to 32768",
        ),
        (
            lambda: loose("orders", sink()).run("threads", paralelism=2),
            "a run has no option 'paralelism'; did you mean 'parallelism'?",
        ),
        (
            lambda: loose("orders", sink()).run("spork"),
            "runner='spork' is unknown; did you mean 'spark'?",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        call()
    assert str(caught.value) == sentence
