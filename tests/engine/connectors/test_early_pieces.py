"""Pieces that are written as records come."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from headrace.engine.connectors.early_pieces import EarlyPieces
from headrace.recovery.edge_log import Piece
from headrace.recovery.store import StoreRejected


class Writing:
    """Writes pieces, when it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.began = threading.Event()
        self.reason = ""

    def __call__(self, first: int, table: pa.Table, watermark: int) -> Piece:
        self.began.set()
        assert self.may.wait(10)
        if self.reason:
            raise StoreRejected("p", self.reason)
        return Piece(0, 1, first, first + table.num_rows, 1, "", watermark)


def rows(count: int) -> list[pa.RecordBatch]:
    return [pa.record_batch({"n": list(range(count))})]


def test_what_comes_while_a_piece_is_written_is_the_next_piece() -> None:
    writing = Writing()
    pieces = EarlyPieces(writing, ThreadPoolExecutor(1), first=5)
    pieces.offer(rows(1), 1)
    assert writing.began.wait(10)
    pieces.offer(rows(2), 2)
    pieces.offer(rows(3), 3)
    writing.may.set()
    assert [(p.first, p.end, p.watermark) for p in pieces.take()] == [(5, 6, 1), (6, 11, 3)]
    assert pieces.take() == []
    pieces.offer(rows(1), 4)
    assert [(p.first, p.end) for p in pieces.take()] == [(11, 12)]


def test_a_writer_ahead_of_storage_waits() -> None:
    writing = Writing()
    pieces = EarlyPieces(writing, ThreadPoolExecutor(1), first=0, waiting_bytes_max=100)
    pieces.offer(rows(1), 0)
    assert writing.began.wait(10)
    pieces.offer(rows(100), 0)
    through = threading.Event()

    def go_on() -> None:
        pieces.make_room()
        through.set()

    thread = threading.Thread(target=go_on)
    thread.start()
    assert not through.wait(0.1), "800 bytes wait"
    writing.may.set()
    assert through.wait(10)
    thread.join()


def test_a_refused_piece_is_told_to_whoever_comes_next() -> None:
    writing = Writing()
    writing.reason = "no space left"
    writing.may.set()
    pieces = EarlyPieces(writing, ThreadPoolExecutor(1), first=0, waiting_bytes_max=100)
    pieces.offer(rows(1), 0)
    with pytest.raises(StoreRejected, match="no space left"):
        pieces.take()
    pieces.offer(rows(100), 0)
    with pytest.raises(StoreRejected, match="no space left"):
        pieces.make_room()
