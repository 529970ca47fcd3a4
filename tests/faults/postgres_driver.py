"""A driver that writes numbers and totals to PostgreSQL, and may fail at a step of a commit.

postgres_driver.py FOLDER URL ROWS RATE PARALLELISM FAULT [CHECKPOINT]

FAULT: "none"; "before" (killed with SIGKILL between pre-commit and commit), "after" (killed when
the server has committed and nobody has noted it) or "answer" (the answer of a commit is lost),
each at the second checkpoint's or so. With CHECKPOINT, a path, the job and its sinks have other
names, and go on from that checkpoint in a directory of their own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import headrace as hr
from headrace.bench.audit import HurriedBy
from headrace.engine.connectors.postgres.connection import Connection, Unavailable
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.contract.errors import JobFailed
from headrace.engine.coordinator.rules import Phase

from driver import say  # type: ignore[import-not-found]  # isort: skip  # beside this file

KEYS = 50
#: Statements that commit: of prepared transactions and of staged rows, two of each a checkpoint.
_FAULTY_COMMIT = 4


def build(folder: Path, url: str, rows: int, rate: float, other: str = "") -> hr.Job:
    """Each number goes to `numbers`, and each key's count and sum to `totals`."""
    clock = HurriedBy(str(folder / "hurry"))
    source = SequenceSource(rows=rows, rate_per_s=rate, key_count=KEYS, clock=clock)
    numbers = hr.from_source(source, name="source").select("sequence", "key")
    totals = numbers.key_by("key").aggregate(n=hr.count(), sum=hr.sum("sequence"), name="totals")
    return hr.Job(
        f"{other}audited",
        numbers.write.postgres("numbers", url=url, name=f"{other}inserts"),
        totals.write.postgres(
            "totals", url=url, mode="upsert", key=["key"], name=f"{other}upserts"
        ),
        checkpoints=hr.Checkpoints(str(folder / f"{other}checkpoints"), interval="0.2s"),
    )


def plant(fault: str) -> None:
    """Let one commit of this process fail."""
    execute, commits, done = Connection.execute, 0, False

    def faulty(self: Connection, statement: str) -> None:
        nonlocal commits, done
        is_commit = statement.startswith("COMMIT")
        commits += is_commit
        hit = is_commit and commits >= _FAULTY_COMMIT and not done
        if hit and fault == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        # A repeated one may be refused: then the next is the faulty one.
        execute(self, statement)
        done = done or hit
        if hit and fault == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        if hit and fault == "answer":
            raise Unavailable("the answer is lost")

    Connection.execute = faulty  # type: ignore[method-assign]


def watch(handle: hr.JobHandle) -> None:
    """Say which workers run in each attempt, and which checkpoints complete; for ever, since a job
    ends and begins anew in a rescale.
    """
    seen, epoch = 0, 0
    while True:
        status = handle.status()
        if status.phase is Phase.RUNNING and status.epoch > epoch:
            epoch = status.epoch
            say(running=list(status.workers.values()))
        if status.completed != seen:
            seen = status.completed
            say(checkpoint=seen)
        time.sleep(0.005)


def rescale(handle: hr.JobHandle) -> None:
    """Rescale to each number that comes in."""
    for line in sys.stdin:
        say(rescaled=handle.rescale(int(line)).parallelism)


def main(
    folder: str,
    url: str,
    rows: str,
    rate: str,
    parallelism: str,
    fault: str,
    checkpoint: str = "auto",
) -> int:
    other = "" if checkpoint == "auto" else "other-"
    renamed = {name: f"{other}{name}" for name in ("inserts", "upserts")} if other else {}
    job = build(Path(folder), url, int(rows), float(rate), other)
    handle = job.start(
        "processes", parallelism=int(parallelism), restore=checkpoint, renamed=renamed
    )
    if fault != "none":
        # Workers are other processes, which have begun without it.
        plant(fault)
    threading.Thread(target=watch, args=(handle,), daemon=True).start()
    threading.Thread(target=rescale, args=(handle,), daemon=True).start()
    try:
        result = handle.wait()
    except JobFailed as error:
        say(failed=str(error))
        return 1
    say(finished=result.checkpoints, restarts=result.restarts)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
