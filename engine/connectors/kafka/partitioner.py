"""Which partition a record goes to: by the hash of its key, as Kafka's own clients do.

A topic is often read by programs that count on this: equal keys lie in one partition, whichever
client wrote them. The hash is murmur2 of the key's bytes, over columns: a step for each four bytes
of the longest key, and no loop over records.

Source: org.apache.kafka.common.utils.Utils.murmur2.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint32]

_SEED = 0x9747B28C
_FACTOR = np.uint32(0x5BD1E995)
_SHIFT = np.uint32(24)


def by_key(keys: pa.Array, partitions: int) -> npt.NDArray[np.int64]:
    """Return the partition of each key; keys are binary and not null."""
    return (murmur2(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions


def murmur2(column: pa.Array) -> Hashes:
    """Hash each value of a binary column."""
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    begins, lengths = offsets[:-1].astype(np.int64), np.diff(offsets)
    content = column.buffers()[2]
    # Three bytes more, so that four can be read wherever a value ends.
    data = np.concatenate([np.frombuffer(content or b"", np.uint8), np.zeros(4, np.uint8)])
    hashes: Hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    for word in range(int(lengths.max(initial=0)) // 4):
        rows = np.flatnonzero(lengths >= 4 * word + 4)
        hashes[rows] = hashes[rows] * _FACTOR ^ _mixed(_words(data, begins[rows] + 4 * word))
    hashes = _with_tails(hashes, data, begins, lengths)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _FACTOR
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _words(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64]) -> Hashes:
    """Read a little-endian number of four bytes at each place."""
    everywhere = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    return everywhere[at].astype(np.uint32)


def _mixed(words: Hashes) -> Hashes:
    words = words * _FACTOR
    words ^= words >> _SHIFT
    return words * _FACTOR


def _with_tails(
    hashes: Hashes,
    data: npt.NDArray[np.uint8],
    begins: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
) -> Hashes:
    """Mix in the last one to three bytes of values whose length is no multiple of four."""
    tails = lengths % 4
    rows = np.flatnonzero(tails)
    last = _words(data, begins[rows] + (lengths[rows] - tails[rows]))
    mask = (np.uint32(1) << (8 * tails[rows]).astype(np.uint32)) - np.uint32(1)
    hashes[rows] = (hashes[rows] ^ (last & mask)) * _FACTOR
    return hashes
