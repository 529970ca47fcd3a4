"""Orders to a running job that come over HTTP: decoded strictly, carried out one at a time."""

from __future__ import annotations

import threading
from typing import Any, Protocol

import msgspec

from ..contract.errors import HeadraceError, UserError
from ..contract.outcomes import Rescaled

#: An order's body holds at most so many bytes.
BODY_BYTES_MAX = 16 * 1024


class Controlled(Protocol):
    """What orders go to: a `JobHandle`."""

    def checkpoint(self) -> int: ...
    def savepoint(self, path: str | None = None, mode: str | None = None) -> str: ...
    def rescale(self, parallelism: int) -> Rescaled: ...
    def stop(self) -> None: ...
    def drain(self) -> None: ...
    def cancel(self) -> None: ...
    def stop_with_savepoint(
        self, path: str | None = None, mode: str | None = None, *, drain: bool = False
    ) -> str: ...


class Checkpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Take a checkpoint now."""

    def carry_out(self, job: Controlled) -> dict[str, Any]:
        """Return its number."""
        return {"checkpoint": job.checkpoint()}


class Savepoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Take a savepoint, in the directory `path` or the job's own."""

    path: str | None = None
    mode: str | None = None

    def carry_out(self, job: Controlled) -> dict[str, Any]:
        """Return its path."""
        return {"savepoint": job.savepoint(self.path or None, self.mode)}


class Rescale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Go on at another parallelism."""

    parallelism: int

    def carry_out(self, job: Controlled) -> dict[str, Any]:
        """Return the parallelism, and how long the job stood still."""
        done = job.rescale(self.parallelism)
        return {
            "parallelism": done.parallelism,
            "checkpoint": done.checkpoint,
            "standstill_ms": round(done.standstill_ns / 1e6, 3),
        }


class Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """End the job: after a last checkpoint, drained, with a savepoint in a directory, or now."""

    now: bool = False
    drain: bool = False
    savepoint: str | None = None

    def carry_out(self, job: Controlled) -> dict[str, Any]:
        """Return at once, or with the path of the savepoint."""
        if self.now:
            job.cancel()
        elif self.savepoint is not None:
            path = job.stop_with_savepoint(self.savepoint, drain=self.drain)
            return {"stopping": True, "savepoint": path}
        elif self.drain:
            job.drain()
        else:
            job.stop()
        return {"stopping": True}


Order = Checkpoint | Savepoint | Rescale | Stop
#: By the last part of the address.
ORDERS: dict[str, type[Order]] = {
    "checkpoint": Checkpoint,
    "savepoint": Savepoint,
    "rescale": Rescale,
    "stop": Stop,
}


class Desk:
    """Takes orders for one job. Thread-safe."""

    def __init__(self, job: Controlled) -> None:
        self._job = job
        self._busy = threading.Lock()

    def take(self, kind: str, body: bytes) -> dict[str, Any]:
        """Carry an order out, and return its outcome.

        Raises: UserError, HeadraceError, with a sentence for the user.
        """
        try:
            order = msgspec.json.decode(body or b"{}", type=ORDERS[kind])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UserError(f"{kind}: {error}") from error
        # To stop at once must be possible while something else takes long.
        if isinstance(order, Stop) and order.now:
            return order.carry_out(self._job)
        if not self._busy.acquire(blocking=False):
            raise HeadraceError("another order is being carried out; ask again")
        try:
            return order.carry_out(self._job)
        finally:
            self._busy.release()
