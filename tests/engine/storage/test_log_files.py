"""Pieces of the log in storage: written where their checkpoint's files are, lost without harm,
deleted with the attempt.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.channels.buffer import Buffer, ChannelId
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.engine.storage.log_files import LogFiles, PieceWritten
from headrace.engine.storage.snapshots import read_buffer
from headrace.inflight.writer import Piece
from headrace.recovery.store import Content, Store, StoreRejected

CHANNEL = ChannelId(0, 1, 2)
PATH = "job/chk-7/worker-2-e3-log-5.segment"
PIECE = Piece(
    7,
    5,
    ((CHANNEL, tuple(Buffer.of(i, pa.record_batch({"x": pa.array([i])})) for i in (4, 5))),),
)


class Full(FsspecStore):
    """Takes nothing."""

    def put(self, path: str, data: Content) -> None:
        raise StoreRejected(path, "no space left")

    def delete(self, path: str) -> None:
        raise StoreRejected(path, "no")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def written(store: Store | None, threads: ThreadPoolExecutor) -> tuple[LogFiles, PieceWritten]:
    inbox: queue.SimpleQueue[PieceWritten] = queue.SimpleQueue()
    files = LogFiles(store, "job", 2, threads, inbox.put)
    files.write(3, PIECE)
    return files, inbox.get(timeout=300)


def test_a_piece_lies_beside_its_checkpoint_and_comes_back(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    store = FsspecStore(str(tmp_path))
    _, event = written(store, threads)
    assert store.list("") == [PATH]
    assert (event.epoch, event.piece) == (3, PIECE)
    (handle,) = event.handles
    assert (handle.edge, handle.producer, handle.consumer) == CHANNEL
    assert (handle.first, handle.end, handle.ended) == (4, 6, False)
    (buffer,) = handle.buffers
    found = read_buffer(store, "job", buffer, lambda batch, *_: pa.array([True] * len(batch)))
    assert found["x"].to_pylist() == [4, 5]


def test_a_piece_that_cannot_be_written_is_told_as_lost(
    tmp_path: Path, threads: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    _, event = written(Full(str(tmp_path)), threads)
    assert (event.piece, event.handles) == (PIECE, [])
    assert "no space left" in caplog.text


def test_deleted_pieces_leave_nothing(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    store = FsspecStore(str(tmp_path))
    files, _ = written(store, threads)
    files.delete(3, [PIECE])
    files.wait(10)
    assert store.list("") == []


def test_what_cannot_be_deleted_harms_nobody(
    tmp_path: Path, threads: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    files, _ = written(Full(str(tmp_path)), threads)
    files.delete(3, [PIECE])
    files.wait(10)
    assert f"{PATH} could not be deleted" in caplog.text


def test_without_a_store_every_piece_is_lost(threads: ThreadPoolExecutor) -> None:
    _, event = written(None, threads)
    assert event.handles == []
