"""Savepoints: in the checkpointing machine, and of running jobs."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.channels.events import CheckpointMode
from headrace.engine.contract import messages as m
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.coordinator.checkpoints import Checkpoints
from headrace.engine.coordinator.coordinator_events import CheckpointRequested, SavepointOrder
from headrace.engine.coordinator.retention import Retention
from headrace.engine.coordinator.rules import CheckpointRules
from headrace.engine.coordinator.transactions import Transactions
from headrace.engine.coordinator.workers import Workers
from headrace.engine.storage.checkpoint_storage import open_store
from headrace.recovery import catalog
from headrace.recovery.metadata import TransactionRecord
from headrace.recovery.registry import references

from ..coordinator import driven_coordinator as driven
from ..coordinator.driven_coordinator import PLAN, snapshots, texts

RULES = CheckpointRules(
    interval_ns=None,
    min_pause_ns=0,
    timeout_ns=500,
    tolerable_failures=0,
    retain=1,
    concurrent=1,
)
HERE = SavepointOrder()


class Subject:
    """Both workers are there, an attempt runs; effects as text."""

    def __init__(self, rules: CheckpointRules = RULES) -> None:
        workers = Workers([[0], [1]], driven.RULES)
        for worker in (0, 1):
            workers.register(worker, m.Register(worker, 0, "host", 1000, 1), 0)
        self.transactions = Transactions(None, driven.RULES.restarts)
        self.retention = Retention(None, retain=1)
        self.machine = Checkpoints(
            PLAN,
            CheckpointMode.ALIGNED,
            rules,
            None,
            1,
            workers=workers,
            transactions=self.transactions,
            retention=self.retention,
        )
        self.machine.begin(1, 0)
        self.messages: list[m.ToWorker] = []

    def wish(self, request: int, savepoint: SavepointOrder | None = None) -> list[str]:
        self.machine.requested(CheckpointRequested(request, savepoint))
        return self.advance()

    def advance(self, *, last: bool = False) -> list[str]:
        ready = self.machine.write_ready(0)
        return self.told([*ready, *self.machine.trigger_due(0, last=last)])

    def acknowledge(self, checkpoint: int, *transactions: str) -> list[str]:
        records = [TransactionRecord("out", id, {}) for id in transactions]
        for worker in (0, 1):
            message = m.Acknowledge(1, checkpoint, snapshots(worker), records if worker else [])
            assert self.machine.is_pending(checkpoint)
            self.machine.acknowledged(worker, message)
        return self.advance()

    def written(self, checkpoint: int) -> list[str]:
        return self.told(self.machine.written(checkpoint, 0, running=True))

    def told(self, effects: Sequence[d.PartEffect]) -> list[str]:
        self.machine.check(running=True)
        self.messages = [e.message for e in effects if isinstance(e, d.SendMessage)]
        told = texts(effects)
        assert not any(text.startswith("attempt broken") for text in told)
        return told


# --- the machine ----------------------------------------------------------------------------------


def test_a_savepoint_commits_nothing_and_takes_no_checkpoints_place() -> None:
    subject = Subject()
    subject.wish(1)
    subject.acknowledge(1)
    subject.written(1)
    assert subject.wish(2, HERE) == ["Trigger to 0", "Trigger to 1"]
    assert subject.messages[0] == m.Trigger(1, 2, "aligned", 0, "")
    assert subject.acknowledge(2) == ["write 2: []"]
    assert subject.written(2) == ["answer 2: 2"]
    newest = subject.machine.newest
    assert newest is not None
    assert newest.checkpoint == 1, "where an attempt starts"


def test_a_savepoint_waits_until_its_transactions_are_committed_by_a_checkpoint_after_it() -> None:
    """Otherwise a failure could abort what only the savepoint names."""
    subject = Subject()
    subject.wish(1, SavepointOrder(mode=CheckpointMode.UNALIGNED))
    assert subject.acknowledge(1, "a") == ["Trigger to 0", "Trigger to 1"]
    assert subject.messages[0] == m.Trigger(1, 2, "unaligned", 0, None), "it travels likewise"
    assert subject.acknowledge(2, "a", "b") == ["write 2: ['a', 'b']"]
    assert subject.written(2)[-1] == "commit 2: ['a', 'b']"
    assert subject.advance() == []
    subject.transactions.committed(2)
    assert subject.advance() == ["write 1: []"]
    # What is deleted is what may have been logged for a chk-1 that never was.
    assert subject.written(1) == ["answer 1: 1", "withdraw 1"]


def test_a_savepoint_waits_for_a_commit_that_is_under_way_and_that_no_worker_repeats() -> None:
    """A worker that has heard that a checkpoint is complete names its transactions no more; they
    may not be committed yet.
    """
    subject = Subject()
    subject.wish(1)
    subject.acknowledge(1, "a")
    subject.written(1)
    subject.wish(2, HERE)
    assert subject.acknowledge(2) == [], "and no other checkpoint is needed for that"
    subject.transactions.committed(1)
    assert subject.advance() == ["write 2: []"]


def test_a_checkpoint_that_was_to_commit_for_a_savepoint_and_was_given_up_is_repeated() -> None:
    subject = Subject(RULES.__class__(None, 0, 500, 5, 1, 1))
    subject.wish(1, HERE)
    subject.acknowledge(1, "a")
    subject.told(subject.machine.give_up(2, "a worker declined", 0))
    assert subject.advance() == ["Trigger to 0", "Trigger to 1"]
    subject.acknowledge(3, "a")
    subject.written(3)
    subject.transactions.committed(3)
    assert subject.advance() == ["write 1: []"]


def test_the_last_checkpoint_commits_for_a_savepoint_too() -> None:
    subject = Subject(RULES.__class__(None, 0, 500, 5, 1, 1))
    subject.wish(1, HERE)
    subject.acknowledge(1, "a")
    subject.told(subject.machine.give_up(2, "a worker declined", 0))
    assert subject.advance(last=True) == ["Trigger to 0", "Trigger to 1"]
    subject.acknowledge(3, "a")
    subject.written(3)
    assert subject.machine.leave("the job has ended", complete=True) == []
    subject.transactions.committed(3)
    assert subject.told(subject.machine.write_ready(0)) == ["write 1: []"]


def test_a_savepoint_that_overtakes_does_not_wait_for_a_checkpoint_that_stands_in_a_queue() -> None:
    subject = Subject()
    subject.wish(1)
    assert subject.wish(2, HERE) == [], "an aligned one would end the other"
    subject = Subject()
    subject.wish(1)
    overtaking = SavepointOrder(mode=CheckpointMode.UNALIGNED)
    assert subject.wish(2, overtaking) == ["Trigger to 0", "Trigger to 1"]


def test_a_checkpoint_that_completes_leaves_an_older_savepoint_under_way() -> None:
    subject = Subject(RULES.__class__(None, 0, 500, 0, 1, 2))
    subject.wish(1, HERE)
    subject.wish(2)
    subject.acknowledge(2)
    assert "Cancelled to 0" not in subject.written(2)
    assert subject.acknowledge(1) == ["write 1: []"]


def test_a_savepoint_that_is_given_up_is_no_failure_of_the_job_and_leaves_nothing() -> None:
    subject = Subject()
    subject.wish(1, SavepointOrder("memory://elsewhere", number_min=7))
    told = subject.told(subject.machine.expire(600))
    assert told[-1] == "answer 1: it took longer than the timeout"
    subject.wish(2)
    subject.acknowledge(8)
    assert subject.written(8)[-1] == "withdraw 1 7"
    withdrawn = subject.retention.withdrawn(d.CheckpointsWithdrawn((1, 7), (1, 7)))
    assert texts(withdrawn) == ["delete 1 7 7 of memory://elsewhere"]


def test_pieces_of_the_log_under_a_skipped_number_are_deleted() -> None:
    """The log writes under the next number until a checkpoint with a higher one is asked for."""
    subject = Subject()
    subject.wish(1)
    subject.acknowledge(1)
    subject.written(1)
    subject.wish(2, SavepointOrder("memory://elsewhere", number_min=50))
    subject.acknowledge(50)
    assert not any("withdraw 2" in told for told in subject.written(50)), "the log goes on there"
    subject.wish(3)
    subject.acknowledge(51)
    (withdraw,) = (told for told in subject.written(51) if told.startswith("withdraw"))
    assert withdraw == "withdraw 1 2 50"


# --- running jobs ---------------------------------------------------------------------------------


def counted(rows: int, *, slow: bool = False) -> hr.Stream:
    source = hr.read.sequence(rows, keys=7, name="numbers", rate=None if slow else 8_000.0)
    return source.key_by("key").aggregate(n=hr.count(), emit="final", name="counts")


@pytest.mark.parametrize(
    ("elsewhere", "mode", "backend"),
    [
        (False, "aligned", "heap"),
        (True, "unaligned", "heap"),
        (False, None, "rocksdb"),
        (True, None, "rocksdb"),
    ],
)
def test_a_job_goes_on_from_a_savepoint_when_all_checkpoints_are_gone(
    elsewhere: bool, mode: Any, backend: Any, tmp_path: Path
) -> None:
    rows = 20_000
    checkpoints = hr.Checkpoints(str(tmp_path / "ckpt"), interval="30ms", mode="unaligned")
    job = hr.Job("job", counted(rows).write.collect(name="out"), parallelism=2, max_parallelism=16)
    state = hr.State(backend)
    handle = job.start("threads", checkpoints=checkpoints, state=state)
    handle.checkpoint()
    target = str(tmp_path / "elsewhere") if elsewhere else None
    where = handle.savepoint(target, mode)
    handle.cancel()
    handle.wait(30.0)
    assert (
        Path(where).parent == (tmp_path / "elsewhere" if elsewhere else tmp_path / "ckpt") / "job"
    )
    assert Path(where).name.startswith("sav-")
    root = Path(where).parent.parent
    number = int(Path(where).name.removeprefix("sav-"))
    metadata = catalog.load(open_store(str(root)), "job", number)
    assert metadata.savepoint
    assert all(path.startswith(f"sav-{number}/") for path in references(metadata))
    for folder in [*root.glob("job/chk-*"), *root.glob("job/shared")]:
        shutil.rmtree(folder)
    result = job.run("threads", checkpoints=checkpoints, state=state, restore=where)
    collected = result.collected["out"]
    counts = dict(zip(collected["key"].to_pylist(), collected["n"].to_pylist(), strict=True))
    source = hr.read.sequence(rows, keys=7, name="numbers").write.collect(name="all")
    keys = hr.Job("reference", source, parallelism=1).run("threads").collected["all"]["key"]
    assert counts == dict(Counter(keys.to_pylist()))
    assert (Path(where) / "metadata").exists(), "it is the user's"


def test_a_savepoint_is_refused_before_it_begins_when_it_cannot_be(tmp_path: Path) -> None:
    job = hr.Job("job", counted(4_000).write.blackhole(name="out"), parallelism=1)
    handle = job.start("threads")
    with pytest.raises(hr.UserError, match="no checkpoint directory"):
        handle.savepoint()
    with pytest.raises(hr.UserError, match="'quickly' is neither 'aligned' nor 'unaligned'"):
        handle.savepoint(str(tmp_path), mode="quickly")
    handle.cancel()
    handle.wait(30.0)
