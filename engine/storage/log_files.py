"""The files of the in-flight log: storage threads of a worker write and delete them.

A piece that could not be written is lost to the log and not to the job: the checkpoint writes its
records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from functools import partial

from headrace.inflight.handle import ChannelStateHandle
from headrace.inflight.writer import Piece
from headrace.recovery.layout import log_path
from headrace.recovery.store import Store

from .snapshots import write_piece

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PieceWritten:
    """A piece of the log of attempt `epoch` is durable under `handles`; without any, it is lost."""

    epoch: int
    piece: Piece
    handles: Sequence[ChannelStateHandle]


class LogFiles:
    """The pieces of a worker in storage; a storage thread calls `deliver` for each."""

    def __init__(
        self,
        store: Store | None,
        job: str,
        worker: int,
        threads: Executor,
        deliver: Callable[[PieceWritten], None],
        *,
        compresses: bool = False,
    ) -> None:
        self._store = store
        self._job = job
        self._worker = worker
        self._threads = threads
        self._deliver = deliver
        self._compresses = compresses
        self._under_way: set[Future[None]] = set()

    def write(self, epoch: int, piece: Piece) -> None:
        """Write a piece soon; ends in PieceWritten."""
        self._submit(lambda: self._deliver(PieceWritten(epoch, piece, self._written(epoch, piece))))

    def delete(self, epoch: int, pieces: Iterable[Piece]) -> None:
        """Delete pieces soon; a piece that stays ends with its checkpoint's folder."""
        for piece in pieces:
            self._submit(partial(self._deleted, epoch, piece))

    def wait(self, timeout_s: float) -> None:
        """Wait for the calls under way."""
        wait(self._under_way, timeout_s)

    def _submit(self, work: Callable[[], None]) -> None:
        future = self._threads.submit(work)
        self._under_way = {f for f in self._under_way if not f.done()} | {future}

    def _written(self, epoch: int, piece: Piece) -> Sequence[ChannelStateHandle]:
        try:
            if self._store is None:
                return []
            return write_piece(
                self._store, self._job, self._worker, epoch, piece, compresses=self._compresses
            )
        except Exception as error:
            _log.warning("a piece of the in-flight log could not be written: %s", error)
            return []

    def _deleted(self, epoch: int, piece: Piece) -> None:
        path = log_path(self._job, piece.checkpoint, self._worker, epoch, piece.number)
        try:
            if self._store is not None:
                self._store.delete(path)
        except Exception as error:
            _log.warning("%s could not be deleted: %s", path, error)
