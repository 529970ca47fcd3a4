"""Stop with a savepoint: the job ends exactly there, committed up to it, whoever dies on the
way.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.channels.events import CheckpointMode
from headrace.engine.contract import messages as m
from headrace.engine.contract.errors import HeadraceError
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.coordinator.coordinator_events import SavepointOrder
from headrace.engine.coordinator.rules import Phase
from headrace.engine.drivers.coordinator_performer import Sinks, write_metadata
from headrace.engine.drivers.restore import resolve
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery import catalog, links
from headrace.recovery.history import EpochStart
from headrace.recovery.metadata import CheckpointMetadata, TransactionRecord
from headrace.recovery.store import Store, StoreRejected

from ..coordinator.driven_coordinator import (
    MS,
    Driven,
    a_checkpoint,
    failed,
    finished,
    running,
    with_checkpoint_under_way,
)

HERE = SavepointOrder()


def stop(
    order: SavepointOrder = HERE, kind: d.StopKind = d.StopKind.WITH_CHECKPOINT
) -> d.StopRequested:
    return d.StopRequested(kind, savepoint=order, request=7)


def again(subject: Driven, epoch: int) -> list[str]:
    """The next attempt runs."""
    subject.at(subject.now_ns + 80 * MS)
    subject.step(d.EpochClaimed(epoch))
    subject.step(d.SinksRecovered(epoch))
    return subject.both(m.Deployed(epoch))


# --- the machine ----------------------------------------------------------------------------------


def test_it_commits_what_the_savepoint_covers_and_ends() -> None:
    subject = running()
    assert subject.step(stop()) == ["Trigger to 0", "Trigger to 1"]
    trigger = subject.messages[-1]
    assert isinstance(trigger, m.Trigger)
    assert trigger.savepoint == ""
    assert subject.acknowledge(1, "a") == ["write 1: ['a']"]
    assert subject.metadata[1].savepoint
    assert subject.step(d.MetadataWritten(1))[:2] == ["commit 1: ['a']", "answer 7: 1"]
    effects = subject.step(d.TransactionsCommitted(1))
    assert "recover sinks in 1: []" in effects, "what came after the cut is aborted"
    assert effects[-1] == "stopped: savepoint 1 covers everything"


def test_it_waits_for_a_checkpoint_under_way_unless_it_has_a_mode_of_its_own() -> None:
    subject = with_checkpoint_under_way()
    assert subject.step(stop()) == []
    subject.acknowledge(1)
    assert subject.step(d.MetadataWritten(1))[-2:] == ["Trigger to 0", "Trigger to 1"]
    subject = with_checkpoint_under_way()
    effects = subject.step(stop(SavepointOrder(mode=CheckpointMode.UNALIGNED)))
    assert effects == ["Cancelled to 0", "Cancelled to 1", "Trigger to 0", "Trigger to 1"]


def test_a_savepoint_that_waits_for_a_commit_is_complete_when_the_last_one_has_committed() -> None:
    subject = running()
    subject.step(d.CheckpointRequested(5, HERE))
    subject.acknowledge(1, "a")
    subject.step(stop(SavepointOrder(mode=CheckpointMode.UNALIGNED)))
    subject.acknowledge(3, "a", "b")
    subject.step(d.MetadataWritten(3))
    assert subject.step(d.TransactionsCommitted(3)) == ["write 1: []"]
    assert "answer 5: 1" in subject.step(d.MetadataWritten(1))


def test_an_attempt_that_fails_before_the_savepoint_takes_it_again() -> None:
    subject = running()
    subject.step(stop())
    failed(subject)
    assert again(subject, 2)[-2:] == ["Trigger to 0", "Trigger to 1"]
    subject.acknowledge(2)
    assert "answer 7: 2" in subject.step(d.MetadataWritten(2))


def test_an_attempt_that_fails_while_the_savepoint_is_written_ends_the_job_all_the_same() -> None:
    subject = running()
    subject.step(stop())
    subject.acknowledge(1, "a")
    failed(subject)
    effects = subject.step(d.MetadataWritten(1))
    assert effects[:2] == ["commit 1: ['a']", "answer 7: 1"]
    assert subject.step(d.TransactionsCommitted(1))[-1] == "stopped: savepoint 1 covers everything"


def test_a_commit_that_fails_is_repeated() -> None:
    subject = running()
    subject.step(stop())
    subject.acknowledge(1, "a")
    subject.step(d.MetadataWritten(1))
    subject.step(d.SinkFailed(1, "not now"))
    assert subject.at(subject.now_ns + 80 * MS) == ["commit 1: ['a']"]
    assert subject.step(d.TransactionsCommitted(1))[-1].startswith("stopped: savepoint 1")


@pytest.mark.parametrize("how", ["declined", "not written", "late"])
def test_a_savepoint_that_fails_is_told_and_the_job_goes_on(how: str) -> None:
    subject = running()
    subject.step(stop())
    if how == "declined":
        effects = subject.said(1, m.Decline(1, 1, "no space"))
    elif how == "late":
        effects = subject.at(501 * MS)
    else:
        subject.acknowledge(1)
        effects = subject.step(d.MetadataDiscarded(1, "no space"))
    (answer,) = [e for e in effects if e.startswith("answer")]
    assert answer.startswith("answer 7: ")
    assert not answer.endswith(": 1")
    assert subject.machine.phase is Phase.RUNNING
    effects += subject.at(subject.now_ns + 200 * MS)
    assert effects[-2:] == ["Trigger to 0", "Trigger to 1"], "an ordinary checkpoint"
    subject.acknowledge(2)
    subject.step(d.MetadataWritten(2))
    assert subject.machine.phase is Phase.RUNNING


def test_a_drained_job_whose_savepoint_fails_goes_back_and_is_drained_no_more() -> None:
    """Nothing has been committed since the checkpoint that it goes back to."""
    subject = running()
    assert subject.step(stop(kind=d.StopKind.DRAIN)) == ["Drain to 0", "Drain to 1"]
    assert finished(subject) == ["Trigger to 0", "Trigger to 1"]
    effects = subject.said(1, m.Decline(1, 1, "no space"))
    assert "answer 7: no space" in effects
    assert subject.machine.phase is Phase.RESTARTING
    assert again(subject, 2) == ["Start to 0", "Start to 1"]


def test_a_drained_job_ends_with_the_savepoint_of_its_end() -> None:
    subject = running()
    subject.step(stop(kind=d.StopKind.DRAIN))
    finished(subject)
    subject.acknowledge(1, "a", finished=True)
    subject.step(d.MetadataWritten(1))
    assert subject.step(d.TransactionsCommitted(1))[-1] == "finished: savepoint 1 covers everything"


def test_who_comes_second_is_told() -> None:
    subject = running()
    subject.step(d.StopRequested(d.StopKind.DRAIN))
    assert subject.step(stop()) == ["answer 7: the job is ending already"]


def test_a_job_that_ends_before_its_savepoint_says_so() -> None:
    subject = running()
    assert finished(subject) == ["Trigger to 0", "Trigger to 1"]
    subject.step(stop())
    subject.acknowledge(1, finished=True)
    subject.step(d.MetadataWritten(1))
    effects = subject.step(d.TransactionsCommitted(1))
    assert "answer 7: the job ended without it: chk-1 covers everything" in effects
    subject = running()
    subject.step(stop())
    effects = subject.step(d.StopRequested(d.StopKind.NOW))
    assert "answer 7: the job ended without it: stopped at once" in effects


# --- storage --------------------------------------------------------------------------------------


def a_savepoint(number: int, epoch: int = 1) -> CheckpointMetadata:
    checkpoint = a_checkpoint(number)
    return CheckpointMetadata(
        job=checkpoint.job,
        checkpoint=number,
        epoch=epoch,
        mode="aligned",
        savepoint=True,
        created_ms=0,
        duration_ns=0,
        max_parallelism=128,
        tasks=[],
        edges=[],
        subtasks=[],
        transactions=[],
    )


def latest(store: FsspecStore, directory: Path) -> Any:
    found = resolve(store, "job", "latest", str(directory))
    return found.metadata, found.origin, found.checkpoint_next


class Refusing(FsspecStore):
    """Takes no metadata of a savepoint."""

    def create(self, path: str, data: bytes) -> None:
        if "/sav-" in path:
            raise StoreRejected(path, "no space")
        super().create(path, data)


@pytest.mark.parametrize("target", ["", "there"])
def test_the_savepoint_is_the_newest_point_of_the_history_once_it_is_there(
    tmp_path: Path, target: str
) -> None:
    here = tmp_path / "here"
    store = FsspecStore(str(here))
    catalog.publish(store, a_checkpoint(3))
    there = str(tmp_path / target) if target else ""
    refusing = Refusing(str(here))
    if not target:
        (discarded,) = write_metadata(refusing, a_savepoint(4), last=True)
        assert isinstance(discarded, d.MetadataDiscarded)
        assert latest(store, here) == (a_checkpoint(3), "", 5), "it never came"
    answers = write_metadata(store, a_savepoint(5), target=there, last=True)
    assert answers == [d.MetadataWritten(5)]
    assert latest(store, here) == (a_savepoint(5), there or str(here), 6)
    catalog.publish(store, a_checkpoint(6))
    assert latest(store, here)[0] == a_checkpoint(6)


def test_a_savepoint_of_one_who_is_superseded_is_no_point_of_the_history(tmp_path: Path) -> None:
    """The record is forgotten by the next driver, so that what still comes means nothing."""
    store = FsspecStore(str(tmp_path))
    catalog.claim_epoch(store, "job")
    catalog.claim_epoch(store, "job")
    first, second = write_metadata(store, a_savepoint(1), last=True)
    assert isinstance(first, d.Superseded)
    assert isinstance(second, d.MetadataDiscarded)
    assert links.numbers(store, "job") == []


def test_a_savepoint_that_comes_after_the_next_driver_has_started_is_no_point_of_the_history(
    tmp_path: Path,
) -> None:
    store = FsspecStore(str(tmp_path))
    catalog.publish(store, a_checkpoint(3))
    assert write_metadata(store, a_savepoint(4), last=True) == [d.MetadataWritten(4)]
    assert latest(store, tmp_path)[0] == a_savepoint(4)
    catalog.note_start(store, "job", EpochStart(a_savepoint(4).epoch + 1, 3, a_checkpoint(3).epoch))
    assert latest(store, tmp_path)[0] == a_checkpoint(3)


# --- running jobs ---------------------------------------------------------------------------------

ROWS = 20_000


def job_of(tmp_path: Path) -> hr.Job:
    source = hr.read.sequence(ROWS, keys=7, name="numbers", rate=8_000.0)
    counts = source.key_by("key").aggregate(n=hr.count(), emit="final", name="counts")
    return hr.Job(
        "job",
        counts.write.collect(name="counts out"),
        source.rebalance().write.json(str(tmp_path / "out"), name="files"),
        parallelism=2,
        max_parallelism=16,
    )


def options_of(tmp_path: Path) -> dict[str, Any]:
    checkpoints = hr.Checkpoints(str(tmp_path / "ckpt"), interval="40ms", mode="unaligned")
    return {"runner": "threads", "checkpoints": checkpoints}


def written(tmp_path: Path) -> Counter[int]:
    """How often each record is visible."""
    files = [path for path in (tmp_path / "out").glob("*.json*") if path.is_file()]
    lines = [line for path in files for line in path.read_text().splitlines()]
    return Counter(json.loads(line)["sequence"] for line in lines)


ALL = Counter(range(ROWS))


@pytest.mark.parametrize("restore", ["latest", "path"])
def test_what_is_started_from_it_goes_on_exactly_there(tmp_path: Path, restore: str) -> None:
    job = job_of(tmp_path)
    handle = job.start(**options_of(tmp_path))
    handle.checkpoint()
    where = handle.stop_with_savepoint(str(tmp_path / "saved"))
    assert handle.wait(30.0).outcome == "stopped"
    assert Path(where).parent == tmp_path / "saved" / "job"
    before = written(tmp_path)
    assert set(before.values()) <= {1}
    assert len(before) < ROWS, "the job was stopped in its midst"
    chosen = where if restore == "path" else "latest"
    result = job.run(**options_of(tmp_path), restore=chosen)
    assert written(tmp_path) == ALL
    assert sum(result.collected["counts out"]["n"].to_pylist()) == ROWS
    assert (Path(where) / "metadata").exists(), "it is the user's"


def test_a_driver_that_dies_before_the_commit_leaves_it_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The savepoint is there, the sinks have committed nothing of it: whoever goes on from it
    commits it.
    """
    job, commit = job_of(tmp_path), Sinks.commit
    handle = job.start(**options_of(tmp_path), restart=hr.Restart(attempts=0))
    handle.checkpoint()

    def dying(self: Sinks, checkpoint: int, records: Sequence[TransactionRecord]) -> Any:
        if (tmp_path / "saved" / "job").is_dir() and records:
            return d.SinkFailed(checkpoint, "the driver is dead")
        return commit(self, checkpoint, records)

    monkeypatch.setattr(Sinks, "commit", dying)
    handle.stop_with_savepoint(str(tmp_path / "saved"))
    with pytest.raises(hr.JobFailed, match="the driver is dead"):
        handle.wait(30.0)
    monkeypatch.undo()
    result = job.run(**options_of(tmp_path), restore="latest")
    assert written(tmp_path) == ALL
    assert sum(result.collected["counts out"]["n"].to_pylist()) == ROWS


def test_a_drained_job_ends_with_all_that_it_had_read(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    handle = job.start(**options_of(tmp_path))
    handle.checkpoint()
    where = handle.stop_with_savepoint(drain=True)
    result = handle.wait(30.0)
    assert (result.outcome, result.savepoint) == ("finished", where)
    assert Path(where).parent == tmp_path / "ckpt" / "job"
    out = written(tmp_path)
    assert set(out.values()) == {1}
    assert sum(result.collected["counts out"]["n"].to_pylist()) == len(out) < ROWS
    job.run(**options_of(tmp_path), restore="latest")
    assert written(tmp_path) == out, "there is nothing left to do"


def test_a_savepoint_that_cannot_be_written_leaves_the_job_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path)
    handle = job.start(**options_of(tmp_path))
    handle.checkpoint()
    publish = catalog.publish

    def refusing(store: Store, metadata: CheckpointMetadata) -> None:
        if metadata.savepoint:
            raise StoreRejected("job/sav", "no space left on the device")
        publish(store, metadata)

    monkeypatch.setattr(catalog, "publish", refusing)
    with pytest.raises(HeadraceError, match=r"the savepoint failed: .*no space left"):
        handle.stop_with_savepoint()
    handle.checkpoint()
    handle.stop()
    assert handle.wait(30.0).outcome == "stopped"


def test_it_is_refused_before_it_begins_when_it_cannot_be(tmp_path: Path) -> None:
    handle = job_of(tmp_path).start("threads")
    with pytest.raises(hr.UserError, match="no checkpoint directory"):
        handle.stop_with_savepoint(str(tmp_path / "saved"))
    with pytest.raises(hr.UserError, match="'quickly' is neither 'aligned' nor 'unaligned'"):
        handle.stop_with_savepoint(mode="quickly")
    handle.cancel()
    handle.wait(30.0)
