"""Does compression of in-flight data pay? Ratio and speed of lz4 by kind of payload, and the
storage below which it is faster than none.

    python -m headrace.bench.compression [--json]

Question: how long does a GB of in-flight data take to storage, compressed or not? It is compressed
and then written by one storage thread, so with c bytes/s of compression, ratio r and w bytes/s of
storage: none takes 1/w, lz4 1/c + 1/(r w), and lz4 pays where w < c (1 - 1/r). Units: GB/s of
uncompressed bytes, one thread, best of some rounds (what else runs on the machine can only slow a
round down).

Blobs are what the engine writes: Arrow IPC streams of about 1 MiB.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa

from headrace.inflight.segment import inflate, table_to_ipc

BLOB_BYTES = 1 << 20
STORAGE_GB_S = (0.1, 0.5, 1.0, 2.0)
_ROUNDS = 25
_CITIES = ("Amsterdam", "Berlin", "Lisbon", "Oslo", "Warsaw")


@dataclass(frozen=True, slots=True)
class Measured:
    """One kind of payload under lz4. Speeds in GB/s of uncompressed bytes.

    Attributes:
        decompress_gb_s: by the package lz4, as the engine reads.
        arrow_decompress_gb_s: by Arrow's stream, which it stands in for.
    """

    payload: str
    ratio: float
    compress_gb_s: float
    decompress_gb_s: float
    arrow_decompress_gb_s: float

    @property
    def pays_below_gb_s(self) -> float:
        """Storage that is slower than this takes compressed data sooner."""
        return self.compress_gb_s * (1 - 1 / self.ratio)

    def gain(self, storage_gb_s: float) -> float:
        """How many times as fast a GB is stored with lz4 as without."""
        return (1 / storage_gb_s) / (1 / self.compress_gb_s + 1 / (self.ratio * storage_gb_s))


def payloads() -> dict[str, pa.Table]:
    """The same for every run; about a blob each."""
    rng = np.random.default_rng(76)
    rows = BLOB_BYTES // 100
    noise = [rng.bytes(92) for _ in range(rows)]
    documents = [
        json.dumps(
            {"order": 10_000_000 + i, "customer": int(rng.integers(50_000)), "city": _CITIES[i % 5]}
            | {"amount": round(float(rng.exponential(40)), 2), "currency": "EUR"}
        )
        for i in range(rows)
    ]
    integers = BLOB_BYTES // 32
    columns = {"sequence": np.arange(integers), "key": rng.integers(100_000, size=integers)}
    columns |= {"time": 1_700_000_000_000 + np.arange(integers) * 3 // 2}
    return {
        "random bytes": pa.table({"payload": pa.array(noise, pa.binary())}),
        "random doubles": pa.table({"x": rng.random(BLOB_BYTES // 8)}),
        "sequence, key, time": pa.table(columns),
        "JSON": pa.table({"payload": documents}),
    }


def measure(payload: str, table: pa.Table) -> Measured:
    """Compress and decompress the blob of one table."""
    blob = b"".join(table_to_ipc(table))
    packed = pa.compress(blob, "lz4", asbytes=True)
    speeds = _gb_s(
        len(blob),
        lambda: pa.compress(blob, "lz4"),
        lambda: inflate(packed, len(blob)),
        lambda: _read_by_arrow(packed, len(blob)),
    )
    return Measured(payload, len(blob) / len(packed), *speeds)


def _read_by_arrow(packed: bytes, size_bytes: int) -> None:
    with pa.CompressedInputStream(pa.BufferReader(packed), "lz4") as stream:
        stream.read(size_bytes)


def _gb_s(size_bytes: int, *works: Callable[[], object]) -> list[float]:
    """Measure in turns: alone, one would find its memory mapped and another would not."""
    best_s = [float("inf")] * len(works)
    for _ in range(_ROUNDS):
        for index, work in enumerate(works):
            began = time.perf_counter()
            work()
            best_s[index] = min(best_s[index], time.perf_counter() - began)
    return [size_bytes / best / 1e9 for best in best_s]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a row a payload."""
    parser = argparse.ArgumentParser(prog="python -m headrace.bench.compression")
    parser.add_argument("--json", action="store_true", help="an object a payload")
    as_json = parser.parse_args(arguments).json
    for payload, table in payloads().items():
        found = measure(payload, table)
        gains = {storage: round(found.gain(storage), 2) for storage in STORAGE_GB_S}
        if as_json:
            rows = {f"gain_at_{storage}_gb_s": gain for storage, gain in gains.items()}
            print(json.dumps(asdict(found) | {"pays_below_gb_s": found.pays_below_gb_s} | rows))
            continue
        print(
            f"{payload:20} ratio {found.ratio:5.2f}  compress {found.compress_gb_s:5.2f} GB/s"
            f"  decompress {found.decompress_gb_s:5.2f} GB/s"
            f"  by Arrow {found.arrow_decompress_gb_s:5.2f} GB/s"
            f"  pays below {found.pays_below_gb_s:5.2f} GB/s  gain at storage GB/s {gains}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
