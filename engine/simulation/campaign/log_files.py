"""The in-flight log of a simulated worker: pieces reach the storage after a delay, or never.

Does the work of `storage/log_files.py`, in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.inflight.writer import Piece
from headrace.recovery.layout import log_path

from ...storage.log_files import PieceWritten
from ...storage.snapshots import write_piece
from ..scheduler import MICROSECOND_NS
from .environment import Environment, Process
from .storage import Call, PutCatcher, answer_call, crash_during


class SimulatedLogFiles:
    """The pieces of worker `number`, now `process`.

    `deliver` gets each settled piece while the process lives.
    """

    def __init__(
        self,
        env: Environment,
        process: Process,
        number: int,
        deliver: Callable[[PieceWritten], None],
    ) -> None:
        self._env = env
        self._process = process
        self._number = number
        self._deliver = deliver

    def write(self, epoch: int, piece: Piece) -> None:
        """Write a piece after a delay; ends in PieceWritten."""
        catcher = PutCatcher()
        handles = write_piece(
            catcher,  # type: ignore[arg-type]  # only `put` is asked for
            self._env.plan.job,
            self._number,
            epoch,
            piece,
            compresses=self._env.settings.limits.compresses,
        )
        (put,) = catcher.puts
        delay_ns = self._env.scheduler.delay_ns(
            50 * MICROSECOND_NS, 2 * self._env.faults.storage_delay_ns
        )
        self._env.scheduler.after(
            delay_ns, lambda: self._put(put, PieceWritten(epoch, piece, handles))
        )

    def _put(self, put: Call, written: PieceWritten) -> None:
        faults, storage = self._env.faults, self._env.storage
        if not self._process.alive:
            crash_during(faults, storage, put)
            return
        _, error = answer_call(faults, storage, put)
        self._env.coverage.count("log pieces written" if error is None else "log pieces lost")
        if error is not None:
            written = PieceWritten(written.epoch, written.piece, ())
        self._deliver(written)

    def delete(self, epoch: int, pieces: Iterable[Piece]) -> None:
        """Delete pieces."""
        for piece in pieces:
            path = log_path(self._env.plan.job, piece.checkpoint, self._number, epoch, piece.number)
            answer_call(self._env.faults, self._env.storage, Call("delete", (path,)))
            self._env.coverage.count("log pieces deleted")
