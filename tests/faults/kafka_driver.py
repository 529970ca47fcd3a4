"""A driver that tests can kill, of a job that writes to Kafka. It says on standard output what
happens, one JSON object per line.

kafka_driver.py FOLDER SERVERS TOPIC ROWS RATE PARALLELISM [STEP]

STEP: "before commit" or "after commit" (the driver kills itself there, at its third commit), or
"reply lost" (its third commit is applied, and fails).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from driver import say  # type: ignore[import-not-found]  # beside this file, as a script

import headrace as hr
from headrace.bench.audit import HurriedBy
from headrace.engine.connectors.kafka.committer import KafkaCommitter
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.contract.errors import JobFailed
from headrace.engine.coordinator.rules import Phase
from headrace.engine.session.handle import JobHandle

#: The commit at which a step is taken.
COMMIT = 3


def job(folder: Path, servers: str, topic: str, rows: int, rate: float, parallelism: int) -> hr.Job:
    source = SequenceSource(
        rows=rows, rate_per_s=rate, key_count=100, clock=HurriedBy(str(folder / "hurry"))
    )
    records = hr.from_source(source, name="numbers").rebalance()
    schema = pa.schema([("key", pa.int64()), ("sequence", pa.int64())])
    chosen = records.map_batches(
        lambda batch: batch.select(["key", "sequence"]), schema=schema, name="chosen"
    )
    sink = chosen.write.kafka(topic, servers=servers, key="key", name="out")
    checkpoints = hr.Checkpoints(str(folder / "checkpoints"), interval="300ms", mode="unaligned")
    return hr.Job("to-kafka", sink, parallelism=parallelism, checkpoints=checkpoints)


def prepare(step: str) -> None:
    """Let a commit end as the step says."""
    commit = KafkaCommitter.commit
    count = 0

    def committing(self: KafkaCommitter, checkpoint: int, transactions: Any) -> None:
        nonlocal count
        count += bool(transactions)
        due = bool(transactions) and count == COMMIT
        if due and step == "before commit":
            os.kill(os.getpid(), signal.SIGKILL)
        commit(self, checkpoint, transactions)
        if due and step == "after commit":
            os.kill(os.getpid(), signal.SIGKILL)
        if due and step == "reply lost":
            say(lost=checkpoint)
            raise OSError("the reply is lost")

    KafkaCommitter.commit = committing  # type: ignore[method-assign]


def watch(handle: JobHandle) -> None:
    """Tell of each attempt that runs, and of its checkpoints."""
    epoch = seen = 0
    while (status := handle.status()).phase is not Phase.ENDED:
        if status.phase is Phase.RUNNING and status.epoch > epoch:
            epoch, seen = status.epoch, status.completed
            say(running=list(status.workers.values()), epoch=epoch)
        if status.completed > seen and status.epoch == epoch:
            seen = status.completed
            say(checkpoint=status.checkpoints[-1].checkpoint)
        time.sleep(0.005)


def main(
    folder: str, servers: str, topic: str, rows: str, rate: str, parallelism: str, step: str = ""
) -> int:
    if step:
        prepare(step)
    made = job(Path(folder), servers, topic, int(rows), float(rate), int(parallelism))
    handle = made.start("processes", restore="auto")
    threading.Thread(target=watch, args=(handle,), daemon=True).start()
    try:
        result = handle.wait()
    except JobFailed as error:
        say(failed=f"{type(error).__name__}: {error}")
        return 1
    say(finished=result.checkpoints, restarts=result.restarts)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
