"""A slow network: how long the barriers of unaligned checkpoints take through a full connection.

Question: time from the trigger of a checkpoint to the arrival of its last barrier at any subtask,
in milliseconds, p50 and highest, of `sequence -> shuffle -> map -> shuffle -> map -> shuffle ->
sink`, while each worker sends at most `network_bytes_per_s` and every connection is full. A barrier
crosses the network three times.

The kernel paces the sockets (SO_MAX_PACING_RATE), so data waits where it waits behind a slow card:
in the subpartitions, in the outbox of the connection and in the socket. Workers are threads of this
process, since the sockets of other processes cannot be reached, and use TCP as between hosts. Linux
only.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

import pyarrow.compute as pc

import headrace as hr
from headrace.engine.connectors.sequence import SequenceSource
from headrace.engine.contract.launcher import WorkerLauncher
from headrace.engine.contract.options import RunOptions
from headrace.engine.local.threads import ThreadLauncher
from headrace.engine.network import connection, network, reactor
from headrace.engine.session import launchers
from headrace.recovery.metadata import CheckpointMetadata

from .measure import percentile, run_and_measure
from .shuffle import PAYLOAD_BYTES, SUMMED, passed_on, summed

#: Of Linux; Python 3.11 has no name for it.
_SO_MAX_PACING_RATE: Final = 47


def _thread_for_each_slot(job: str, options: RunOptions, slots: int) -> WorkerLauncher:
    return ThreadLauncher(workers=slots, entry=launchers.worker)


@contextmanager
def slow_network(bytes_per_s: int) -> Iterator[None]:
    """Pace every connection that this process opens meanwhile, each way, and use TCP alone.

    A job's workers are threads of this process, one for each slot.
    """

    def prepare(sock: socket.socket) -> None:
        connection.prepare(sock)
        sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, bytes_per_s)

    with (
        mock.patch.object(reactor, "prepare", prepare),
        mock.patch.object(network, "listen_beside", lambda *_: None),
        mock.patch.object(launchers, "make_launcher", _thread_for_each_slot),
    ):
        yield


def barrier_ms(checkpoint: CheckpointMetadata) -> float:
    """From the trigger to the last barrier of the slowest subtask."""
    taken_ns = (s.start_delay_ns + s.alignment_ns for s in checkpoint.subtasks)
    return max(taken_ns, default=0) / 1e6


def run(
    *,
    records: int = 2_000_000,
    network_bytes_per_s: int = 20_000_000,
    parallelism: int = 2,
    checkpoint_interval: str = "500ms",
) -> dict[str, Any]:
    """Run once. Returns one flat object; `correct`: no record was lost or doubled."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        slow_network(network_bytes_per_s // max(1, parallelism - 1)),
    ):
        source = SequenceSource(rows=records, payload_bytes=PAYLOAD_BYTES, batch_rows=32768)
        stream = hr.from_source(source, name="sequence")
        for hop in range(2):
            stream = stream.shuffle().map_batches(passed_on, name=f"hop{hop}")
        sums = stream.shuffle().map_batches(summed, schema=SUMMED, name="sums")
        checkpoints = hr.Checkpoints(folder, interval=checkpoint_interval, mode="unaligned")
        sink = sums.write.collect(name="out")
        job = hr.Job("bench-network", sink, parallelism=parallelism, checkpoints=checkpoints)
        measured = run_and_measure(job, "threads")
    out = measured.result.collected["out"]
    found = (pc.sum(out["n"]).as_py(), pc.sum(out["total"]).as_py())
    barriers_ms = sorted(barrier_ms(checkpoint) for checkpoint in measured.completed[:-1])
    return {
        "bench": "slow-network",
        "network_bytes_per_s": network_bytes_per_s,
        "records": records,
        "records_per_s": round(records / measured.running_s),
        "correct": found == (records, records * (records - 1) // 2),
        "parallelism": parallelism,
        "barrier_p50_ms": percentile(barriers_ms, 50),
        "barrier_max_ms": percentile(barriers_ms, 100),
        **measured.checkpoints(checkpoint_interval),
    }
