"""Workers whose user code holds the GIL for longer than the heartbeat timeout live on; frozen and
dead ones do not.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

import headrace as hr
from headrace.engine.coordinator.coordinator_events import NoticeKind

from .conftest import WAIT_S, is_alive, wait_for

ROWS = 3_000
QUICK = hr.Network(heartbeat="0.2s", heartbeat_timeout="3s", debloat_target="0s")


def notices(handle: hr.JobHandle, kind: NoticeKind) -> list[str]:
    return [notice.text for _, notice in handle.status().notices if notice.kind is kind]


def held_once(hold_s: float, *, payload_bytes: int = 0, rows: int = ROWS) -> hr.Job:
    """A job of two workers; one record makes its worker's function hold the GIL for so long."""

    def score(batch: pa.RecordBatch) -> pa.RecordBatch:
        import ctypes

        if 1_000 in batch["sequence"].to_pylist():
            # PyDLL, unlike CDLL, keeps the GIL during the call.
            ctypes.PyDLL(None).usleep(int(hold_s * 1e6))
        return batch

    source = hr.read.sequence(rows, name="numbers", payload=payload_bytes, rate=rows / 4)
    scored = source.shuffle().map_batches(score, name="score").rebalance()
    kept = scored.map_batches(
        lambda batch: batch.select(["sequence"]), pa.schema([("sequence", pa.int64())])
    )
    return hr.Job("held", kept.write.collect(name="out"), parallelism=2, max_parallelism=16)


@contextlib.contextmanager
def running(job: hr.Job) -> Iterator[hr.JobHandle]:
    handle = job.start("processes", network=QUICK, restart=hr.Restart(backoff="0.1s"))
    try:
        wait_for(lambda: notices(handle, NoticeKind.RUNNING), "the first attempt")
        yield handle
    finally:
        handle.cancel()


def is_exact(result: hr.JobResult, rows: int = ROWS) -> bool:
    return sorted(result.collected["out"]["sequence"].to_pylist()) == list(range(rows))


def test_a_call_that_holds_the_gil_for_longer_than_the_timeout_is_named_and_survived(
    long: bool,
) -> None:
    hold_s = 60 if long else 9
    # Enough bytes to fill every queue, so that peers of the holder wait for it, too.
    payload, rows = (20_000, 4_000) if long else (0, ROWS)
    job = held_once(hold_s, payload_bytes=payload, rows=rows)
    with running(job) as handle:
        result = handle.wait(WAIT_S)
    assert is_exact(result, rows)
    assert result.restarts == 0
    (told,) = notices(handle, NoticeKind.WARNING)
    assert re.fullmatch(
        r"worker [01] has not answered for \d s: score \(test_gil_holders\.py:\d+\) holds the GIL;"
        r" isolate=True runs its function in a process of its own",
        told,
    )


def test_workers_in_threads_are_not_lost_for_a_call_that_stops_their_driver_too() -> None:
    job = held_once(5)
    handle = job.start("threads", network=hr.Network(heartbeat="0.2s", heartbeat_timeout="1s"))
    result = handle.wait(WAIT_S)
    assert is_exact(result)
    assert result.restarts == 0
    assert not notices(handle, NoticeKind.WARNING)


def test_a_frozen_worker_is_lost_within_the_timeout() -> None:
    with running(held_once(0)) as handle:
        frozen = handle.status().workers[1]
        os.kill(frozen, signal.SIGSTOP)
        began_s = time.monotonic()
        wait_for(lambda: notices(handle, NoticeKind.WORKER_LOST), "its loss")
        assert 2.5 < time.monotonic() - began_s < 4.5
        assert notices(handle, NoticeKind.WORKER_LOST) == ["worker 1: no heartbeat"]
        assert is_exact(handle.wait(WAIT_S))


def test_a_killed_worker_is_lost_at_once_even_while_it_holds_the_gil() -> None:
    with running(held_once(6)) as handle:
        told = wait_for(lambda: notices(handle, NoticeKind.WARNING), "the notice")[0]
        worker = int(told.split()[1])
        killed = handle.status().workers[worker]
        os.kill(killed, signal.SIGKILL)
        began_s = time.monotonic()
        wait_for(lambda: notices(handle, NoticeKind.WORKER_LOST), "its loss")
        assert time.monotonic() - began_s < 1.0


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def test_nothing_outlives_a_worker() -> None:
    with running(held_once(0)) as handle:
        pid = handle.status().workers[0]
        companions = children(pid)
        assert companions, "a worker has a companion"
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not any(map(is_alive, companions)), "their end")
        handle.wait(WAIT_S)
    last = handle.status().workers.values()
    wait_for(lambda: not any(map(is_alive, last)), "the end of the workers")
