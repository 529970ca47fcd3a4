"""The physical floor of a checkpoint on this machine, measured: a message, a durable write, a
metadata commit.

Nothing that crosses `hops` messages and makes `bytes` durable can be faster than `hops x t_hop +
bytes / W + t_meta`. A message is a few bytes over a raw TCP socket to another process, a write is
`write` and `fsync` of a new file: nothing of the engine is in the floor.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_METADATA_BYTES = 20_000
_ROUNDS = 5
_PINGS = 500
#: Sends back what it gets on the socket that is its standard input.
_ECHO = """
import socket
peer = socket.socket(fileno=0)
while got := peer.recv(64):
    peer.sendall(got)
"""


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
    commit_s = median(_timed_writes(folder, [os.urandom(_METADATA_BYTES)]) for _ in range(_ROUNDS))
    byte_s = 0.0
    if size_bytes:
        shares = [os.urandom(-(-size_bytes // writers))] * writers
        byte_s = median(_timed_writes(folder, shares) for _ in range(_ROUNDS)) / size_bytes
    return Floor(_hop_s(), byte_s, commit_s)


def _timed_writes(folder: str, files: Sequence[bytes]) -> float:
    """Seconds to write so many new files at once and make them durable."""
    paths = [Path(folder, f"floor-{number}") for number in range(len(files))]
    with ThreadPoolExecutor(len(files)) as pool:
        list(pool.map(time.sleep, [0.0] * len(files)))  # starts the threads
        began = time.perf_counter()
        list(pool.map(_write, paths, files))
        took_s = time.perf_counter() - began
    for path in paths:
        path.unlink()
    return took_s


def _write(path: Path, content: bytes) -> None:
    with path.open("xb", buffering=0) as file:
        left = memoryview(content)
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())


def _hop_s() -> float:
    """Half a round trip to another process over TCP on this machine."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    with far:
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        echo = subprocess.Popen([sys.executable, "-I", "-S", "-c", _ECHO], stdin=far.fileno())
    with near:
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        times = [_round_trip_s(near) for _ in range(_PINGS)]
    echo.wait()
    return median(times) / 2


def _round_trip_s(near: socket.socket) -> float:
    began = time.perf_counter()
    near.sendall(b"ping")
    assert near.recv(64) == b"ping", "the echo has ended"
    return time.perf_counter() - began
