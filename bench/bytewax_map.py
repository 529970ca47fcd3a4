"""The program `read -> map -> nowhere` in bytewax, as a peer of `headrace bench first`.

bytewax is no part of the project: without it in the environment the peer is left out. Its rows are
made as headrace makes them, so that reading costs both the same. Each process is a worker, as
bytewax wants it. The rate counts from the first read to the end of the last file.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headrace.engine.contract.user_code import Row, rows_of

#: The folder of Parquet files, and the one for notes about times.
_IN, _NOTES = "HEADRACE_BENCH_IN", "HEADRACE_BENCH_NOTES"
_BATCH_ROWS = 1024


def rate(path: Path, records: int, parallelism: int) -> float | None:
    """Run the program over the files in `path`. Returns records per second; None without bytewax.

    Raises: RuntimeError with bytewax's words when the program fails.
    """
    if find_spec("bytewax") is None:
        return None
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as notes:
        environment = os.environ | {_IN: str(path), _NOTES: notes}
        addresses = ";".join(f"127.0.0.1:{port}" for port in _free_ports(parallelism))
        command = [sys.executable, "-m", "bytewax.run", f"{__name__}:flow"]
        processes = [
            subprocess.Popen(
                [*command, *(["-i", str(index), "-a", addresses] if parallelism > 1 else [])],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for index in range(parallelism)
        ]
        said = [process.communicate()[1] for process in processes]
        if any(process.returncode for process in processes):
            raise RuntimeError(f"bytewax failed: {''.join(said)[-500:]}")
        times = [int(file.name.split("-")[0]) for file in Path(notes).iterdir()]
        return records / ((max(times) - min(times)) / 1e9)


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in held]
    for server in held:
        server.close()
    return ports


def _note(what: str) -> None:
    Path(os.environ[_NOTES], f"{time.monotonic_ns()}-{what}-{os.getpid()}").touch()


def _batches(file: str) -> Iterator[list[Row]]:
    for batch in pq.ParquetFile(file).iter_batches(_BATCH_ROWS):
        yield rows_of(batch)


def __getattr__(name: str) -> Any:
    """Build the dataflow when bytewax asks for it: nothing else here needs bytewax."""
    if name != "flow":
        raise AttributeError(name)
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    from .first import add_one_to_row

    class File(StatefulSourcePartition):  # type: ignore[misc, type-arg, unused-ignore]
        def __init__(self, file: str) -> None:
            _note("begin")
            self._batches = _batches(file)

        def next_batch(self) -> list[Row]:
            return next(self._batches)  # its StopIteration is the end of the partition

        def snapshot(self) -> None:
            return None

        def close(self) -> None:
            _note("end")

    class Files(FixedPartitionedSource):  # type: ignore[misc, type-arg, unused-ignore]
        def list_parts(self) -> list[str]:
            return sorted(str(file) for file in Path(os.environ[_IN]).iterdir())

        def build_part(self, step_id: str, for_part: str, resume_state: None) -> File:
            return File(for_part)

    class Nowhere(StatelessSinkPartition):  # type: ignore[misc, type-arg, unused-ignore]
        def write_batch(self, items: list[Row]) -> None:
            pass

        def close(self) -> None:
            _note("end")

    class NowhereSink(DynamicSink):  # type: ignore[misc, type-arg, unused-ignore]
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Nowhere:
            return Nowhere()

    flow = Dataflow("bench_first_map")
    mapped = op.map("map", op.input("in", flow, Files()), add_one_to_row)
    op.output("out", mapped, NowhereSink())
    return flow
