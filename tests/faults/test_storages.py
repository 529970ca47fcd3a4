"""Checkpoint storage that fills up, fails, vanishes or is damaged (faults F8, F9): the checkpoint
fails, the job goes on.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.bench.audit import AuditedJob
from headrace.engine.coordinator.coordinator_events import NoticeKind
from headrace.engine.coordinator.rules import Phase
from headrace.engine.drivers import worker_process as worker_main
from headrace.engine.session import session
from headrace.engine.storage import checkpoint_storage as storage
from headrace.recovery.store import Content, Store, StoreError, StoreRejected, StoreUncertain

from .conftest import WAIT_S, assert_prefix, wait_for

pytestmark = pytest.mark.slow

RATE_PER_S = 5000.0

Fault = Callable[[str], StoreError]


def disk_full(path: str) -> StoreError:
    return StoreRejected(path, "no space left on device")


def io_error(path: str) -> StoreError:
    return StoreUncertain(path, "input/output error")


class Failing:
    """A store whose calls fail from the `first`-th write to the `last`-th."""

    def __init__(self, store: Store, writes: Writes) -> None:
        self._store = store
        self._writes = writes

    def put(self, path: str, data: Content) -> None:
        self._writes.count(path)
        self._store.put(path, data)

    def create(self, path: str, data: bytes) -> None:
        self._writes.count(path)
        self._store.create(path, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Writes:
    """Counts writes of all stores, and fails those in `failing`."""

    def __init__(self, failing: range, fault: Fault) -> None:
        self._lock = threading.Lock()
        self._fault = fault
        self.failing = failing
        self.made = 0
        self.failed: list[str] = []

    def count(self, path: str) -> None:
        with self._lock:
            number, self.made = self.made, self.made + 1
            if number in self.failing:
                self.failed.append(path)
                raise self._fault(path)


@pytest.fixture
def fail_writes(monkeypatch: pytest.MonkeyPatch) -> Callable[[range, Fault], Writes]:
    """Makes writes to checkpoint storage fail, in coordinator and workers of runner="threads"."""

    def install(failing: range, fault: Fault) -> Writes:
        writes = Writes(failing, fault)
        for module in (session, worker_main):
            monkeypatch.setattr(
                module, "open_store", lambda url: Failing(storage.open_store(url), writes)
            )
        return writes

    return install


def failures(handle: hr.JobHandle) -> list[str]:
    return [n.text for _, n in handle.status().notices if n.kind is NoticeKind.CHECKPOINT_FAILED]


@pytest.mark.parametrize("fault", [disk_full, io_error])
def test_a_storage_that_fails_for_a_while_costs_checkpoints_but_not_the_job(
    tmp_path: Path, fail_writes: Callable[[range, Fault], Writes], fault: Fault
) -> None:
    writes = fail_writes(range(0), fault)
    audited = AuditedJob(tmp_path, int(RATE_PER_S * 20), RATE_PER_S)
    checkpoints = hr.Checkpoints(str(audited.checkpoints), interval="0.1s", tolerable_failures=1000)
    handle = audited.build(checkpoints=checkpoints).start("threads")
    try:
        wait_for(lambda: handle.status().completed >= 2, "two checkpoints")
        writes.failing = range(10**9)
        wait_for(lambda: len(failures(handle)) >= 3, "failed checkpoints")
        done = handle.status().completed
        writes.failing = range(0)
        wait_for(lambda: handle.status().completed > done, "a checkpoint once storage is back")
        audited.hurry()
        result = handle.wait(WAIT_S)
    finally:
        handle.cancel()
    assert result.restarts == 0
    assert writes.failed
    assert fault("x").reason in failures(handle)[0]
    assert audited.verdict().exact, audited.verdict()


@pytest.mark.parametrize("fault", [disk_full, io_error])
def test_one_failed_write_is_survived_whichever_it_is(
    tmp_path: Path, fail_writes: Callable[[range, Fault], Writes], fault: Fault, long: bool
) -> None:
    # Writes 0 and 1 claim the epoch and name the owner of the sinks' files, before anything runs;
    # the test below is about that.
    for number in range(2, 41 if long else 7):
        folder = tmp_path / str(number)
        writes = fail_writes(range(number, number + 1), fault)
        audited = AuditedJob(folder, 1500, RATE_PER_S, interval="0.05s")
        audited.build(restart=hr.Restart(backoff="1ms")).run("threads")
        assert audited.verdict().exact, (number, writes.failed, audited.verdict())
        assert not list(audited.output.rglob("*.tmp")), writes.failed


def test_a_disk_that_is_full_at_the_start_is_said_before_anything_runs(
    tmp_path: Path, fail_writes: Callable[[range, Fault], Writes]
) -> None:
    fail_writes(range(1), disk_full)
    audited = AuditedJob(tmp_path, 1500, RATE_PER_S)
    with pytest.raises(hr.HeadraceError, match="no space left on device"):
        audited.build().run("threads")
    assert not audited.visible().num_rows


def test_a_checkpoint_directory_that_vanishes_is_made_again(tmp_path: Path) -> None:
    audited = AuditedJob(tmp_path, int(RATE_PER_S * 20), RATE_PER_S, interval="0.1s")
    handle = audited.build().start("processes")
    try:
        wait_for(lambda: handle.status().completed >= 2, "two checkpoints")
        # Renamed first: the job writes while files are deleted one by one.
        audited.checkpoints.rename(tmp_path / "gone")
        shutil.rmtree(tmp_path / "gone")
        done = handle.status().completed
        wait_for(lambda: handle.status().completed >= done + 3, "checkpoints in a new directory")
        os.kill(handle.status().workers[0], signal.SIGKILL)
        wait_for(lambda: handle.status().restarts >= 1, "the restart")
        wait_for(lambda: handle.status().phase is Phase.RUNNING, "the next attempt")
        audited.hurry()
        handle.wait(WAIT_S)
    finally:
        handle.cancel()
    assert audited.verdict().exact, audited.verdict()


def checkpoints_of(audited: AuditedJob) -> list[Path]:
    return sorted(audited.checkpoints.glob("*/chk-*"), key=lambda p: int(p.name.partition("-")[2]))


def halted(audited: AuditedJob) -> None:
    """Run the job for some checkpoints, then end it at once; several checkpoints are kept."""
    kept = hr.Checkpoints(str(audited.checkpoints), interval="0.1s", retain=3)
    handle = audited.build(checkpoints=kept).start("threads")
    wait_for(lambda: handle.status().completed >= 5, "five checkpoints")
    handle.cancel()
    handle.wait(WAIT_S)
    assert_prefix(audited)


@pytest.mark.parametrize(
    ("what", "damage"),
    [
        ("metadata", "truncated"),
        ("metadata", "flipped"),
        ("segment", "truncated"),
        ("segment", "flipped"),
    ],
)
def test_a_damaged_newest_checkpoint_is_never_used(
    tmp_path: Path, what: str, damage: str, caplog: pytest.LogCaptureFixture, long: bool
) -> None:
    # Metadata is looked at when the run begins; a bit of a segment only when it is read by a
    # worker.
    if (what, damage) not in {("metadata", "truncated"), ("segment", "flipped")} and not long:
        pytest.skip("long: run `make faults LONG=1`")
    audited = AuditedJob(tmp_path, int(RATE_PER_S * 20), RATE_PER_S, interval="0.1s")
    halted(audited)
    newest = checkpoints_of(audited)[-1]
    files = [
        f
        for f in newest.iterdir()
        if f.is_file() and (f.name == "metadata") == (what == "metadata")
    ]
    victim = max(files, key=lambda f: f.stat().st_size)
    data = bytearray(victim.read_bytes())
    if damage == "flipped":
        data[len(data) // 2] ^= 1
    else:
        del data[len(data) // 2 :]
    victim.chmod(0o644)
    victim.write_bytes(data)
    with caplog.at_level("WARNING"):
        handle = audited.build().start("threads", restore="latest")
        try:
            audited.hurry()
            handle.wait(WAIT_S)
        finally:
            handle.cancel()
    warned = [n.text for _, n in handle.status().notices if n.kind is NoticeKind.WARNING]
    told = [*warned, *caplog.messages]
    assert any(newest.name in text for text in told), told
    verdict = audited.verdict()
    # What the damaged checkpoint had committed comes again: that is what the notice says.
    assert verdict.lost == 0, verdict
