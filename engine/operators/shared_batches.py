"""Record batches between two processes of one machine, through memory that both map.

A batch is written once, by its sender, and read where it lies. The memory of a batch is taken again
when the receiver has dropped the batch's last reference, as the receiver tells in its next message.
A small batch travels in the message itself: a copy costs less than a page of memory kept.

    message   1 byte kind
              4 bytes region, -1: the batch is in the message or there is none
              8 bytes length, of the batch in the region or of the bytes that follow
              4 bytes how many regions the sender of the message no longer reads, 4 bytes each
              the bytes
              (a new region: its descriptor is attached, and the message begins with its size)

Numbers are in the machine's own order: both ends run the same code on it. Batches are Arrow IPC
streams of one batch.
"""

from __future__ import annotations

import array
import mmap
import os
import socket
import struct
import weakref
from typing import Final

import numpy as np
import pyarrow as pa

_HEAD: Final = struct.Struct("=cqiqi")
_NOWHERE: Final = -1
#: Smaller batches travel in the message.
_SMALL_BYTES: Final = 32 << 10
_REGION_BYTES_MIN: Final = 256 << 10


class Gone(Exception):
    """The other process has ended, or closed its end."""


class SharedBatches:
    """One end of the pair; one thread at a time uses it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        #: Regions that this end writes, and those among them that the other end does not read.
        self._written: list[mmap.mmap] = []
        self._free: list[int] = []
        #: Regions that this end reads, and those that it no longer reads, yet to be told.
        self._read: list[mmap.mmap] = []
        self._dropped: list[int] = []

    def send(self, kind: bytes, content: bytes = b"") -> None:
        """Send bytes. Raises: Gone."""
        self._send(kind, _NOWHERE, len(content), content)

    def send_batch(self, kind: bytes, batch: pa.RecordBatch) -> None:
        """Send a batch. Raises: Gone, and OSError when there is no memory to be shared."""
        size = _stream_bytes(batch)
        if size <= _SMALL_BYTES:
            sink = pa.BufferOutputStream()
            _write(sink, batch)
            self.send(kind, sink.getvalue().to_pybytes())
            return
        region, made = self._region(size)
        _write(pa.FixedSizeBufferWriter(pa.py_buffer(self._written[region])), batch)
        self._send(kind, region, size, b"", made)

    def receive(self) -> tuple[bytes, bytes | pa.RecordBatch]:
        """Wait for a message; return its kind, and its bytes or its batch. Raises: Gone."""
        head, descriptors = self._receive_head()
        kind, region_bytes, region, length, dropped = head
        if dropped:
            told = array.array("i", self._exactly(4 * dropped))
            self._free.extend(told)
        if region_bytes:
            self._map(descriptors[0], region_bytes)
        if region == _NOWHERE:
            return kind, self._exactly(length)
        return kind, _batch(self._lease(region, length))

    def close(self) -> None:
        """Close the connection. Memory stays as long as batches in it are referenced."""
        self._connection.close()

    # --- regions ----------------------------------------------------------------------------------

    def _region(self, size: int) -> tuple[int, int]:
        """Take a region with room. Returns also the descriptor of a new one, else -1."""
        for region in self._free:
            if len(self._written[region]) >= size:
                self._free.remove(region)
                return region, -1
        room = max(_REGION_BYTES_MIN, 1 << (size - 1).bit_length())
        descriptor = os.memfd_create("headrace-batches")
        os.ftruncate(descriptor, room)
        self._written.append(mmap.mmap(descriptor, room))
        return len(self._written) - 1, descriptor

    def _map(self, descriptor: int, size: int) -> None:
        try:
            # The reader's own: user code that writes to a batch must not reach the other process.
            self._read.append(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))
        finally:
            os.close(descriptor)

    def _lease(self, region: int, length: int) -> pa.Buffer:
        """The region as a buffer; with its last reference the region is dropped."""
        view = np.frombuffer(self._read[region], np.uint8, length)
        weakref.finalize(view, self._dropped.append, region).atexit = False
        return pa.py_buffer(view)

    # --- messages ---------------------------------------------------------------------------------

    def _send(self, kind: bytes, region: int, length: int, content: bytes, made: int = -1) -> None:
        dropped, self._dropped[:] = self._dropped[:], []
        region_bytes = len(self._written[region]) if made >= 0 else 0
        head = _HEAD.pack(kind, region_bytes, region, length, len(dropped))
        message = head + array.array("i", dropped).tobytes() + content
        try:
            if made >= 0:
                sent = socket.send_fds(self._connection, [message], [made])
                message = message[sent:]
            self._connection.sendall(message)
        except OSError as error:
            raise Gone from error
        finally:
            if made >= 0:
                os.close(made)

    def _receive_head(self) -> tuple[tuple[bytes, int, int, int, int], list[int]]:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._connection, _HEAD.size, 1)
        except OSError as error:
            raise Gone from error
        if not data:
            raise Gone
        data += self._exactly(_HEAD.size - len(data))
        kind, region_bytes, region, length, dropped = _HEAD.unpack(data)
        return (kind, region_bytes, region, length, dropped), descriptors

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            try:
                count = self._connection.recv_into(view)
            except OSError as error:
                raise Gone from error
            if not count:
                raise Gone
            view = view[count:]
        return bytes(data)


def _stream_bytes(batch: pa.RecordBatch) -> int:
    counted = pa.MockOutputStream()
    _write(counted, batch)
    size: int = counted.size()
    return size


def _write(sink: object, batch: pa.RecordBatch) -> None:
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _batch(stream: pa.Buffer) -> pa.RecordBatch:
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_next_batch()
