"""Workers that die, freeze and wake up, or are busy while others die (faults F1, F5, F18): exactly
once, whoever it is.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.bench.audit import AuditedJob
from headrace.engine.coordinator.coordinator_events import NoticeKind
from headrace.engine.coordinator.rules import Phase
from headrace.engine.local.forks import Forked
from headrace.recovery.metadata import CheckpointMetadata

from .conftest import WAIT_S, assert_prefix, is_alive, wait_for, wait_until_dead

pytestmark = pytest.mark.slow

# Workers cannot import the tests: what is defined here travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

RATE_PER_S = 1000.0


@contextlib.contextmanager
def running(job: hr.Job) -> Iterator[hr.JobHandle]:
    """Start a job in processes, wait until it runs, and see that it ends whatever the test does."""
    handle = job.start("processes")
    try:
        wait_for(lambda: handle.status().phase is Phase.RUNNING, "the job's start")
        yield handle
    finally:
        handle.cancel()
        with contextlib.suppress(hr.JobFailed):
            handle.wait(WAIT_S)


def attempts(handle: hr.JobHandle) -> int:
    """How many attempts have begun to run."""
    return sum(notice.kind is NoticeKind.RUNNING for _, notice in handle.status().notices)


def newest(handle: hr.JobHandle) -> CheckpointMetadata:
    return handle.status().checkpoints[-1]


def lost(handle: hr.JobHandle) -> list[str]:
    return [n.text for _, n in handle.status().notices if n.kind is NoticeKind.WORKER_LOST]


def test_records_count_once_through_kills_at_random_moments(tmp_path: Path, long: bool) -> None:
    kills = 25 if long else 4
    rng = random.Random(20 if long else 2)
    audited = AuditedJob(tmp_path, int(RATE_PER_S * (6 + 4 * kills)), RATE_PER_S, interval="0.3s")
    with running(audited.build(restart=hr.Restart(attempts=100))) as handle:
        for _ in range(kills):
            # Also in the midst of a recovery: the next kill does not wait for the job to run again.
            time.sleep(rng.uniform(0.0, 1.5))
            pids = sorted(handle.status().workers.values())
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(pids), signal.SIGKILL)
        audited.hurry()
        result = handle.wait(WAIT_S)
    assert result.restarts >= 1
    assert audited.verdict().exact, audited.verdict()


def wait_for_a_checkpoint(handle: hr.JobHandle) -> None:
    before = handle.status().completed
    wait_for(lambda: handle.status().completed > before, "a checkpoint")


def test_records_count_once_through_kills_with_their_state_on_disk(
    tmp_path: Path, long: bool
) -> None:
    kills = 25 if long else 2
    rng = random.Random(7)
    audited = AuditedJob(tmp_path, int(RATE_PER_S * (6 + 4 * kills)), RATE_PER_S, interval="0.3s")
    state = hr.State("rocksdb", directory=str(tmp_path / "state"))
    with running(audited.build(restart=hr.Restart(attempts=100), state=state)) as handle:
        for _ in range(kills):
            wait_for_a_checkpoint(handle)
            pids = sorted(handle.status().workers.values())
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(pids), signal.SIGKILL)
        audited.hurry()
        result = handle.wait(WAIT_S)
    assert result.restarts >= 1
    assert audited.verdict().exact, audited.verdict()
    assert any(s.databases for s in newest(handle).subtasks)


def test_a_frozen_worker_is_replaced_and_what_it_does_when_it_wakes_stays_invisible(
    tmp_path: Path,
) -> None:
    """The launcher would kill it at once; this one only starts the replacement, as a lost machine
    would have it.
    """
    audited = AuditedJob(tmp_path, int(RATE_PER_S * 20), RATE_PER_S, interval="0.3s")
    quick = hr.Network(heartbeat="0.1s", heartbeat_timeout="3s")
    with surviving_zombies() as zombies, running(audited.build(network=quick)) as handle:
        wait_for(lambda: handle.status().completed >= 1, "a checkpoint")
        frozen = handle.status().workers[1]
        os.kill(frozen, signal.SIGSTOP)
        zombies.append(frozen)
        wait_for(lambda: attempts(handle) >= 2, "the next attempt")
        assert any("no heartbeat" in text for text in lost(handle)), lost(handle)
        assert handle.status().workers[1] != frozen
        done = handle.status().completed
        os.kill(frozen, signal.SIGCONT)
        wait_for(lambda: handle.status().completed >= done + 2, "two more checkpoints")
        wait_until_dead([frozen])
        assert attempts(handle) == 2, "the zombie disturbed its successor"
        audited.hurry()
        handle.wait(WAIT_S)
    assert audited.verdict().exact, audited.verdict()


@contextlib.contextmanager
def surviving_zombies() -> Iterator[list[int]]:
    """Keep the launcher from killing the one that the test lists, which is the next that it wants
    to; it is killed at the end.
    """
    zombies: list[int] = []
    spared: list[Forked] = []
    kill = Forked.kill

    def kill_others(process: Forked) -> None:
        if len(spared) < len(zombies):
            spared.append(process)
        if process not in spared:
            kill(process)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Forked, "kill", kill_others)
        yield zombies
    for pid in zombies:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


class Blocked:
    """Blocks 5 s in one batch, once; in its subtask nothing can interrupt it."""

    def __init__(self, folder: Path, index: int) -> None:
        self._begun = folder / "blocking"
        self._over = folder / "over"
        self._index = index

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        mine = batch["sequence"][0].as_py() % 2 == self._index
        if mine and batch["sequence"][0].as_py() > 2000 and not self._begun.exists():
            # Renamed into place: whoever sees the file must find the pid in it.
            draft = self._begun.with_suffix(".draft")
            draft.write_text(str(os.getpid()))
            draft.rename(self._begun)
            time.sleep(5.0)
            self._over.touch()
        return batch


def test_a_worker_busy_in_a_user_s_function_rolls_back_in_place(tmp_path: Path) -> None:
    blocked = Blocked(tmp_path, 0)
    numbers = hr.read.sequence(15_000, name="numbers", rate=5000)
    sink = numbers.map_batches(lambda batch: blocked(batch), name="blocks").write.parquet(
        str(tmp_path / "out"), name="out"
    )
    job = hr.Job(
        "blocked", sink, parallelism=2, checkpoints=hr.Checkpoints(str(tmp_path / "c"), "0.2s")
    )
    with running(job) as handle:
        wait_for((tmp_path / "blocking").exists, "the long call")
        busy = int((tmp_path / "blocking").read_text())
        before = handle.status().workers
        assert busy in before.values()
        other = next(worker for worker, pid in before.items() if pid != busy)
        os.kill(before[other], signal.SIGKILL)
        wait_for(lambda: attempts(handle) >= 2, "the next attempt")
        assert not (tmp_path / "over").exists(), "the recovery waited for the user's function"
        after = handle.status().workers
        assert after[1 - other] == busy
        assert after[other] != before[other]
        handle.wait(WAIT_S)
    sequences = pq.read_table(tmp_path / "out")["sequence"].to_pylist()
    assert sorted(sequences) == list(range(15_000))


@pytest.mark.parametrize("what", ["sleeps", "computes"])
def test_a_kill_amid_a_long_call_is_exact_from_a_checkpoint_that_was_cut_during_the_call(
    tmp_path: Path, what: str
) -> None:
    called = tmp_path / "called"

    def five_seconds(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["sequence"][0].as_py() > 1000 and not called.exists():
            draft = called.with_suffix(f".{os.getpid()}")
            draft.write_text(str(os.getpid()))
            draft.rename(called)
            ends = time.monotonic() + 5.0
            while time.monotonic() < ends:
                time.sleep(5.0) if what == "sleeps" else sum(range(1000))
        return batch

    numbers = hr.read.sequence(30_000, name="numbers", rate=10_000)
    sink = numbers.shuffle().map_batches(five_seconds, name="slow").rebalance()
    job = hr.Job(
        "amid-a-call",
        sink.write.parquet(str(tmp_path / "out"), name="out"),
        parallelism=2,
        checkpoints=hr.Checkpoints(str(tmp_path / "c"), interval="0.1s", mode="unaligned"),
    )
    with running(job) as handle:
        wait_for(called.exists, "the long call")
        before = handle.status().completed
        wait_for(lambda: handle.status().completed >= before + 3, "checkpoints during the call")
        kept = sum(h.end - h.first for s in newest(handle).subtasks for h in s.inflight)
        assert kept, "the call's own input is in flight"
        os.kill(int(called.read_text()), signal.SIGKILL)
        handle.wait(WAIT_S)
    sequences = pq.read_table(tmp_path / "out")["sequence"].to_pylist()
    assert sorted(sequences) == list(range(30_000))


def test_cancelling_leaves_no_process_and_no_half_visible_output(tmp_path: Path) -> None:
    audited = AuditedJob(tmp_path, int(RATE_PER_S * 20), RATE_PER_S, interval="0.3s")
    with running(audited.build()) as handle:
        wait_for(lambda: handle.status().completed >= 2, "two checkpoints")
        pids = sorted(handle.status().workers.values())
        handle.cancel()
        handle.wait(WAIT_S)
        assert not any(map(is_alive, pids))
    assert_prefix(audited)
    assert not list(audited.output.rglob("*.tmp"))


def test_a_worker_that_keeps_dying_ends_the_job_with_the_reason(tmp_path: Path) -> None:
    def die(batch: pa.RecordBatch) -> pa.RecordBatch:
        os._exit(9)

    sink = (
        hr.read.sequence(100, name="numbers")
        .map_batches(die, name="die")
        .write.blackhole(name="out")
    )
    restart = hr.Restart(attempts=2, backoff="10ms")
    with pytest.raises(hr.JobFailed, match=r"worker 0 was lost: .*gave up after 2 restarts"):
        hr.Job("dying", sink, parallelism=1, restart=restart).run("processes")
