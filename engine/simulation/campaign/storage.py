"""Simulated storage, and calls to storage that take time.

`SimulatedStorage` holds objects durably. A call reaches storage after a delay; then the call works,
is rejected, has an open outcome (with or without effect), or finds the storage full. A write under
way at its process's death may have taken effect, may have left no object, or may have left half an
object.

The engine's storage functions are synchronous: they call a `Store` and go on. `Stepper` runs a
function call by call without threads. It runs the function from the start with the answers of
earlier calls until the next call, makes that call in virtual time, and runs the function again. So
any event may happen between two calls, a crash of the caller too. The method relies on a need of
every simulation: equal answers lead to an equal next call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.recovery.store import Content, StoreRejected, StoreUncertain, joined

from ..memory_store import MemoryStore
from ..scheduler import MICROSECOND_NS
from .audit import StorageAudit
from .faults import Faults


class SimulatedStorage(MemoryStore):
    """Durable named objects, at once and without faults; every change is audited."""

    def __init__(self) -> None:
        super().__init__()
        self.audit = StorageAudit(self.objects)

    def create(self, path: str, data: bytes) -> None:
        """See `Store.create`."""
        super().create(path, data)
        self.audit.created(path)

    def delete(self, path: str) -> None:
        """See `Store.delete`."""
        self.audit.gone(path)
        super().delete(path)

    def _write(self, path: str, data: bytes) -> None:
        self.audit.writes(path, data)
        super()._write(path, data)

    def _remove(self, path: str) -> None:
        if path in self.objects:
            self.audit.deletes(path)
            super()._remove(path)

    def tear(self, path: str, data: bytes) -> None:
        """Leave the first half of an object under creation."""
        if path not in self.objects:
            self.objects[path] = data[: len(data) // 2]


@dataclass(frozen=True, slots=True)
class Call:
    """A call: the method's name and its arguments."""

    method: str
    arguments: tuple[Any, ...]

    @property
    def writes(self) -> bool:
        """The call changes an object."""
        return self.method in ("put", "create", "delete", "commit", "abort")

    def __str__(self) -> str:
        shown = [str(a) for a in self.arguments if isinstance(a, str | int | float)]
        return f"{self.method} {' '.join(shown)}"


class _Pause(BaseException):
    """The function made an unanswered call.

    Not an Exception, so that no handler of the function sees it.
    """

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.call = call


class Replay:
    """Answers a function's calls from a record, and pauses at the first unrecorded call."""

    def __init__(self) -> None:
        #: (result, error) of the calls made so far.
        self.answers: list[tuple[Any, Exception | None]] = []
        self._next = 0

    def rewind(self) -> None:
        """The function starts again."""
        self._next = 0

    def call(self, method: str, *arguments: Any) -> Any:
        """Answer the call, or pause."""
        if self._next == len(self.answers):
            raise _Pause(Call(method, arguments))
        result, error = self.answers[self._next]
        self._next += 1
        if error is not None:
            raise error
        return result


class ReplayStore:
    """A `Store` over a `Replay`, which also lets virtual time pass."""

    def __init__(self, replay: Replay) -> None:
        self._replay = replay

    def put(self, path: str, data: Content) -> None:
        """See `Store.put`."""
        self._replay.call("put", path, joined(data))

    def create(self, path: str, data: bytes) -> None:
        """See `Store.create`."""
        self._replay.call("create", path, data)

    def get(
        self,
        path: str,
        offset: int = 0,
        length: int | None = None,
        bytes_max: int | None = None,
    ) -> bytes:
        """See `Store.get`."""
        data: bytes = self._replay.call("get", path, offset, length, bytes_max)
        return data

    def list(self, prefix: str) -> list[str]:
        """See `Store.list`."""
        paths: list[str] = self._replay.call("list", prefix)
        return paths

    def delete(self, path: str) -> None:
        """See `Store.delete`."""
        self._replay.call("delete", path)

    def sleep(self, seconds: float) -> None:
        """Let so much time pass before the next call."""
        self._replay.call("sleep", seconds)


class Caller(Protocol):
    """The process that makes the calls."""

    @property
    def alive(self) -> bool:
        """The process has not crashed."""
        ...

    def reached(self, point: str) -> bool:
        """The process reaches a crash point; True: dies here (before). See `Faults`."""
        ...

    def passed(self, point: str) -> bool:
        """The process leaves a crash point; True: dies here (after)."""
        ...

    def when_awake(self, action: Callable[[], None]) -> None:
        """Run `action` now, or, if frozen, on waking up."""
        ...


class Stepper:
    """Runs functions of store calls, one call at a time, for one process.

    Args:
        target: receiver of the calls: the storage, or the sinks' system.
        point: returns the name of a call's crash point.
        rested: called when the last function is done.
    """

    def __init__(
        self,
        caller: Caller,
        faults: Faults,
        target: Any,
        point: str,
        rested: Callable[[], None],
    ) -> None:
        self._rested = rested
        self._caller = caller
        self._faults = faults
        self._target = target
        self._point = point
        self._waiting: list[tuple[Callable[[Replay], Any], Callable[[Any], None]]] = []
        self._busy = False

    def submit(self, function: Callable[[Replay], Any], done: Callable[[Any], None]) -> None:
        """Run `function` after all earlier functions, and give its result to `done`."""
        self._waiting.append((function, done))
        if not self._busy:
            self._begin()

    @property
    def idle(self) -> bool:
        """No function runs or waits."""
        return not self._busy

    def _begin(self) -> None:
        self._busy = bool(self._waiting)
        if self._busy:
            function, done = self._waiting.pop(0)
            self._run(function, done, Replay())
        else:
            self._rested()

    def _run(
        self, function: Callable[[Replay], Any], done: Callable[[Any], None], replay: Replay
    ) -> None:
        replay.rewind()
        try:
            result = function(replay)
        except _Pause as pause:
            call = pause.call
            scheduler = self._faults.scheduler
            if call.method == "sleep":
                replay.answers.append((None, None))
                delay_ns = int(call.arguments[0] * 1e9)
                scheduler.after(delay_ns, lambda: self._resume(function, done, replay))
                return
            if self._caller.reached(self._point):
                self._crashed(call)
                return
            self._caller.when_awake(lambda: self._call_later(call, function, done, replay))
            return
        done(result)
        self._begin()

    def _call_later(
        self,
        call: Call,
        function: Callable[[Replay], Any],
        done: Callable[[Any], None],
        replay: Replay,
    ) -> None:
        delay_ns = self._latency_ns()
        self._faults.scheduler.after(delay_ns, lambda: self._make(call, function, done, replay))

    def _resume(
        self, function: Callable[[Replay], Any], done: Callable[[Any], None], replay: Replay
    ) -> None:
        if self._caller.alive:
            self._caller.when_awake(lambda: self._run(function, done, replay))

    def _latency_ns(self) -> int:
        scheduler = self._faults.scheduler
        faults = self._faults
        high_ns = faults.sink_delay_ns if self._point == "sink call" else faults.storage_delay_ns
        delay_ns = scheduler.delay_ns(20 * MICROSECOND_NS, high_ns)
        if delay_ns > 30_000 * MICROSECOND_NS:
            self._faults.coverage.count("storage slow")
        return delay_ns

    def _make(
        self,
        call: Call,
        function: Callable[[Replay], Any],
        done: Callable[[Any], None],
        replay: Replay,
    ) -> None:
        if not self._caller.alive:
            self._crashed(call)
            return
        answer = answer_call(self._faults, self._target, call)
        self._faults.scheduler.trace(f"{self._point} {call} {_outcome(answer)}")
        if self._caller.passed(self._point):
            return
        replay.answers.append(answer)
        self._caller.when_awake(lambda: self._run(function, done, replay))

    def _crashed(self, call: Call) -> None:
        """The caller died before or during the call: the call took full, half or no effect."""
        crash_during(self._faults, self._target, call)


def _outcome(answer: tuple[Any, Exception | None]) -> str:
    return "ok" if answer[1] is None else type(answer[1]).__name__


def answer_call(faults: Faults, target: Any, call: Call) -> tuple[Any, Exception | None]:
    """Make the call with a possible fault; returns (result, error)."""
    where = str(call.arguments[0]) if call.arguments else ""
    if call.method in ("commit", "abort", "open"):
        return _answer_sink(faults, target, call, where)
    profile, coverage = faults.profile, faults.coverage
    if call.method == "delete" and faults.happens(profile.deletions_refused):
        coverage.count("deletion refused")
        return None, StoreRejected(where, "deletion is not permitted")
    if call.writes and call.method != "delete" and faults.storage_is_full:
        coverage.count("storage full")
        return None, StoreRejected(where, "no space left on the device")
    if faults.happens(profile.storage_rejects):
        coverage.count("storage rejected")
        return None, StoreRejected(where, "input/output error")
    if faults.happens(profile.storage_uncertain):
        if call.writes and faults.scheduler.rng.random() < 0.5:
            coverage.count("storage uncertain, applied")
            _apply(target, call)
        else:
            coverage.count("storage uncertain, not applied")
        return None, StoreUncertain(where, "the storage did not answer in time")
    return _apply(target, call)


def crash_during(faults: Faults, target: Any, call: Call) -> None:
    """Settle the begun write of a dead caller."""
    if not call.writes:
        return
    draw = faults.scheduler.rng.random()
    if call.method in ("put", "create") and draw < faults.profile.torn_writes and faults.active:
        faults.coverage.count("write torn by a crash")
        target.tear(*call.arguments)
    elif draw < 0.75:
        _apply(target, call)
    faults.scheduler.trace(f"{call} cut off by a crash ({draw:.2f})")


def _answer_sink(
    faults: Faults, target: Any, call: Call, where: str
) -> tuple[Any, Exception | None]:
    if faults.happens(faults.profile.commit_fails):
        if call.writes and faults.scheduler.rng.random() < 0.5:
            faults.coverage.count("commit applied, reply lost")
            _apply(target, call)
        else:
            faults.coverage.count("commit failed")
        return None, ConnectionError(f"{where}: the sink's system does not answer")
    return _apply(target, call)


def _apply(target: Any, call: Call) -> tuple[Any, Exception | None]:
    try:
        return getattr(target, call.method)(*call.arguments), None
    except Exception as error:
        return None, error


class PutCatcher:
    """Records writes, to be made later."""

    def __init__(self) -> None:
        self.puts: list[Call] = []

    def put(self, path: str, data: Content) -> None:
        """See `Store.put`."""
        self.puts.append(Call("put", (path, joined(data))))


class FaultyReads:
    """Reads at once; each may fail."""

    def __init__(self, faults: Faults, storage: SimulatedStorage) -> None:
        self._faults = faults
        self._storage = storage

    def get(
        self,
        path: str,
        offset: int = 0,
        length: int | None = None,
        bytes_max: int | None = None,
    ) -> bytes:
        """See `Store.get`."""
        call = Call("get", (path, offset, length, bytes_max))
        result, error = answer_call(self._faults, self._storage, call)
        if error is not None:
            raise error
        data: bytes = result
        return data
