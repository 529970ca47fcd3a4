"""A driver that dies at a step of a sink's commit, or when a worker has died, or not at all.

sink_driver.py FOLDER PLACE KIND ROWS RATE PARALLELISM DEATH [NAMES]

PLACE holds the output, and the checkpoints if it is a URL; otherwise FOLDER does. The environment's
TEST_STORAGE_OPTIONS are the sink's `storage_options` as JSON. DEATH is one of `DEATHS`; the driver
prints it as it dies, or what has become of the job. NAMES, JSON of `Names`, are other names than
those of the first run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import headrace as hr
from headrace.engine.contract.options import Runner
from headrace.engine.coordinator.rules import Phase
from headrace.engine.session.handle import JobHandle

#: The driver dies before the third commit of new transactions; after it was applied; two seconds
#: after its start. Or the answer of the commit is lost, a worker dies, the parallelism changes, and
#: the driver dies two checkpoints later.
DEATHS = ("before", "after", "driver", "lost", "worker", "rescale", "none")


def catalog(folder: str, place: str) -> dict[str, str]:
    made = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
    if "://" not in place:
        return made | {"warehouse": f"file://{place}/warehouse"}
    return made | {
        "warehouse": f"{place}/warehouse",
        "s3.endpoint": os.environ["AWS_ENDPOINT_URL"],
        "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "s3.region": os.environ["AWS_DEFAULT_REGION"],
    }


@dataclass(frozen=True)
class Names:
    """What a run is called.

    Attributes:
        checkpoints: the folder of checkpoints, below the first run's place.
        restore: the checkpoint to start from.
        renamed: operators that the checkpoint calls otherwise.
        runner: threads begin sooner, and all die with the driver.
    """

    job: str = "sinks"
    sink: str = "out"
    checkpoints: str = "checkpoints"
    restore: str = "auto"
    renamed: str = ""
    runner: Runner = "processes"


def sink_of(stream: Any, kind: str, folder: str, place: str, name: str) -> Any:
    options: dict[str, Any] = {"partition_by": "part", "name": name}
    if given := os.environ.get("TEST_STORAGE_OPTIONS"):
        options["storage_options"] = json.loads(given)
    match kind:
        case "delta":
            return stream.write.delta(f"{place}/table", **options)
        case "iceberg":
            return stream.write.iceberg("shop.rows", catalog=catalog(folder, place), **options)
        case _:
            return getattr(stream.write, kind)(f"{place}/table", **options)


def committer_class(kind: str) -> Any:
    from headrace.engine.connectors.file_sink import FileCommitter
    from headrace.engine.connectors.tables.delta import DeltaCommitter
    from headrace.engine.connectors.tables.iceberg import IcebergCommitter

    return {"delta": DeltaCommitter, "iceberg": IcebergCommitter}.get(kind, FileCommitter)


def plant(kind: str, death: str) -> threading.Event:
    """Let the third commit of transactions die, or lose its answer, which is told."""
    committer = committer_class(kind)
    real = committer.commit
    calls = [0]
    lost = threading.Event()

    def commit(self: Any, checkpoint: int, transactions: Any) -> None:
        calls[0] += bool(transactions)
        if not transactions or calls[0] != 3:
            real(self, checkpoint, transactions)
            return
        if death == "before":
            die(death)
        real(self, checkpoint, transactions)
        if death == "after":
            die(death)
        lost.set()
        raise ConnectionError("the answer is lost")

    committer.commit = commit
    return lost


def die(death: str) -> None:
    print(f"died {death}", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def part(batch: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    thirds = pc.cast(pc.multiply(pc.divide(batch.column("sequence"), 1000), 1), pa.int64())
    return pa.record_batch(
        {"sequence": batch.column("sequence"), "part": pc.cast(pc.bit_wise_and(thirds, 1), "int32")}
    )


def harm(handle: JobHandle, death: str, lost: threading.Event) -> None:
    """Kill a worker, rescale, or wait for the lost answer; die when the job has gone on."""
    wait_for_checkpoints(handle, 2)
    if death == "lost":
        lost.wait()
    elif death == "worker":
        os.kill(max(handle.status().workers.values()), signal.SIGKILL)
    else:
        handle.rescale(5 - len(handle.status().workers))
    wait_for_checkpoints(handle, handle.status().completed + 2)
    die(death)


def wait_for_checkpoints(handle: JobHandle, count: int) -> None:
    while (status := handle.status()).completed < count:
        if status.phase is Phase.ENDED:
            sys.exit("the job ended before its driver could die")
        time.sleep(0.01)


def main(
    folder: str,
    place: str,
    kind: str,
    rows: str,
    rate: str,
    parallelism: str,
    death: str,
    named: str = "{}",
) -> int:
    import pyarrow as pa

    names = Names(**json.loads(named))
    lost = threading.Event()
    if death in ("before", "after", "lost"):
        lost = plant(kind, death)
    schema = pa.schema([("sequence", pa.int64()), ("part", pa.int32())])
    numbers = hr.read.sequence(int(rows), rate=float(rate) or None, name="numbers")
    parted = numbers.rebalance().map_batches(part, schema=schema, name="part")
    checkpoints = f"{place if '://' in place else folder}/{names.checkpoints}"
    job = hr.Job(
        names.job,
        sink_of(parted, kind, folder, place, names.sink),
        parallelism=int(parallelism),
        checkpoints=hr.Checkpoints(checkpoints, interval="150ms"),
    )
    handle = job.start(names.runner, restore=names.restore, renamed=names.renamed)
    if death in ("lost", "worker", "rescale"):
        threading.Thread(target=harm, args=(handle, death, lost), daemon=True).start()
    if death == "driver":
        threading.Timer(2.0, die, (death,)).start()
    result = handle.wait()
    print(f"finished {result.checkpoints}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
