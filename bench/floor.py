"""The physical floor of a checkpoint on this machine, measured: a message, a durable write, a
metadata commit.

Nothing that crosses `hops` messages and makes `bytes` durable can be faster than `hops x t_hop +
bytes / W + t_meta`.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

import pyarrow as pa

from headrace.channels.handshake import Identity
from headrace.channels.wire import ControlFrame
from headrace.engine.network.network import Connected, Network, NetworkEvent, Received
from headrace.engine.storage.checkpoint_storage import FsspecStore

_METADATA_BYTES = 20_000
_ROUNDS = 5
_PINGS = 200


@dataclass(frozen=True, slots=True)
class Floor:
    """What one message, one byte and one commit take here, in seconds."""

    hop_s: float
    byte_s: float
    commit_s: float

    def checkpoint_ms(self, hops: int, size_bytes: int) -> float:
        """The floor of a checkpoint that crosses `hops` and writes `size_bytes`, in
        milliseconds.
        """
        return (hops * self.hop_s + size_bytes * self.byte_s + self.commit_s) * 1e3


def measure_floor(folder: str, size_bytes: int, writers: int = 1) -> Floor:
    """Measure in `folder`; medians of a few rounds.

    Args:
        size_bytes: what is written to measure the bandwidth, by so many `writers` at once, to a
            file each.
    """
    store = FsspecStore(folder)
    commit_s = median(_timed_puts(store, [os.urandom(_METADATA_BYTES)]) for _ in range(_ROUNDS))
    byte_s = 0.0
    if size_bytes:
        shares = [os.urandom(-(-size_bytes // writers))] * writers
        byte_s = median(_timed_puts(store, shares) for _ in range(_ROUNDS)) / size_bytes
    return Floor(_hop_s(), byte_s, commit_s)


def _timed_puts(store: FsspecStore, files: Sequence[bytes]) -> float:
    with ThreadPoolExecutor(len(files)) as pool:
        list(pool.map(store.put, [f"warm-{i}" for i in range(len(files))], [b""] * len(files)))
        began = time.perf_counter()
        list(pool.map(store.put, [f"floor-{i}" for i in range(len(files))], files))
        return time.perf_counter() - began


def _hop_s() -> float:
    """Half a round trip between two network threads of this process, waking a third thread each
    time.
    """
    inboxes: list[queue.SimpleQueue[list[NetworkEvent]]] = [
        queue.SimpleQueue(),
        queue.SimpleQueue(),
    ]
    networks = [
        Network(
            b"k" * 32,
            Identity("floor", "worker", number, 0, 0),
            deliver=inboxes[number].put,
            schemas=lambda edge: pa.schema([]),
            accept=lambda peer: True,
        )
        for number in range(2)
    ]
    for network in networks:
        network.start()
    try:
        address = networks[1].listen("127.0.0.1")
        near = networks[0].connect(address, 0)
        far = next(e.connection for e in inboxes[1].get() if isinstance(e, Connected))
        times = []
        for _ in range(_PINGS):
            began = time.perf_counter()
            networks[0].send(near, ControlFrame(b"ping"))
            _await_frame(inboxes[1])
            networks[1].send(far, ControlFrame(b"pong"))
            _await_frame(inboxes[0])
            times.append(time.perf_counter() - began)
        return median(times) / 2
    finally:
        for network in networks:
            network.stop()


def _await_frame(inbox: queue.SimpleQueue[list[NetworkEvent]]) -> None:
    while not any(isinstance(event, Received) for event in inbox.get()):
        pass
