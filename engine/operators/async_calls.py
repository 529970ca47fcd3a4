"""Calls of a user's function that wait for something else: a service, a database, a model server.

An event loop in a thread of its own makes the calls: coroutine functions run in the loop, plain
functions in a pool of threads. Each call has a time limit for an attempt, further attempts after a
growing pause, and a share of a rate. Whatever way a call ends, it ends in one `Answer`.

Not here: how many calls are under way, the order of results, and what a checkpoint holds
(`async_map.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import random
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ..contract.user_code import Row

# Here and below not at the top: every job imports this module, and few make calls.
if TYPE_CHECKING:
    import asyncio

#: The keyword by which a function asks for the key of its record.
IDEMPOTENCY_KEY = "idempotency_key"

_PAUSE_MAX_S = 60.0
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How calls are made.

    Attributes:
        capacity: calls under way at most.
        timeout_ns: of one attempt.
        retries: further attempts after a failed one.
        backoff_ns: pause before the second attempt; it doubles with each further one, up to a
            minute, and half of it is random.
        rate: attempts a second at most, in each subtask; None: no limit.
    """

    capacity: int
    timeout_ns: int
    retries: int
    backoff_ns: int
    rate: float | None


@dataclass(frozen=True, slots=True)
class Call:
    """A call to make: its number, and the record."""

    number: int
    row: Row


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended: with a result, or with the last attempt's error after `attempts`."""

    number: int
    result: Any = None
    error: BaseException | None = None
    attempts: int = 1


class Calls(Protocol):
    """Makes calls; all methods belong to the subtask's thread."""

    def start(self, calls: Sequence[Call]) -> None:
        """Begin these calls, in this order."""
        ...

    def take(self) -> list[Answer]:
        """Return the answers since the last time; never waits."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until there is an answer to take, but no longer than `timeout_s`."""
        ...

    def close(self) -> None:
        """Give up the calls under way."""
        ...


class LoopCalls:
    """See `Calls`: an event loop in a thread.

    Args:
        function: called with a row, and with its key if it has a parameter `idempotency_key`. Or a
            class: an instance is made and called. Its `open` and `close`, where it has them, are
            called first and last, in the loop; both may be coroutine functions.
        scope: JOB/OPERATOR; tells equal records of two operators apart.

    Raises: what the class or its `open` raises.
    """

    def __init__(
        self,
        function: Callable[..., Any] | type,
        limits: CallLimits,
        scope: str,
        operator: str = "",
    ) -> None:
        #: Names the speaker of text that calls print.
        self.operator = scope.partition("/")[2]
        self._is_ours = isinstance(function, type)
        self._function = function = function() if isinstance(function, type) else function
        self._is_coroutine = is_coroutine_function(function)
        self._wants_key = wants_key(function)
        self._limits = limits
        self._scope = scope
        self._answers: deque[Answer] = deque()
        self._answered = threading.Event()
        #: Tasks of the loop; it keeps weak references only.
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._next_attempt_s = 0.0
        self._pool: ThreadPoolExecutor | None = None
        if not self._is_coroutine:
            self._pool = ThreadPoolExecutor(limits.capacity, thread_name_prefix="map_async")
        import asyncio

        self._loop = asyncio.new_event_loop()
        # In the subtask's context, by which prints find their speaker.
        run = partial(copy_context().run, self._run)
        self._thread = threading.Thread(target=run, name="map_async", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._told("open"), self._loop).result()
        except BaseException:
            self._is_ours = False
            self.close()
            raise

    def start(self, calls: Sequence[Call]) -> None:
        """See `Calls`."""
        self._loop.call_soon_threadsafe(self._begin, calls)

    def take(self) -> list[Answer]:
        """See `Calls`."""
        self._answered.clear()
        found: list[Answer] = []
        while self._answers:
            found.append(self._answers.popleft())
        return found

    def wait(self, timeout_s: float) -> None:
        """See `Calls`."""
        self._answered.wait(timeout_s)

    def close(self) -> None:
        """See `Calls`. A plain function that runs is left to end by itself."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    # --- the loop's thread ------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._given_up())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    async def _told(self, method: str) -> None:
        """Call a method of the instance that was made here, if it has one."""
        call = getattr(self._function, method, None) if self._is_ours else None
        if call is not None:
            returned = call()
            if inspect.isawaitable(returned):
                await returned

    async def _given_up(self) -> None:
        """Cancel the calls under way, then close the instance."""
        import asyncio

        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # The job is over, or failed for another reason: there is nobody to tell.
        with contextlib.suppress(Exception):
            await self._told("close")

    def _begin(self, calls: Sequence[Call]) -> None:
        for call in calls:
            task = self._loop.create_task(self._answer(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: Call) -> None:
        """Make attempts until one succeeds or no more are left."""
        import asyncio

        limits = self._limits
        for attempt in range(limits.retries + 1):
            await self._turn()
            try:
                async with asyncio.timeout(limits.timeout_ns / _NS_PER_S):
                    result = await self._attempt(call)
            except TimeoutError as error:
                failure: BaseException = error if str(error) else self._timed_out()
            except BaseException as error:  # `sys.exit` in a call would end the loop, and all calls
                if self._is_closing:
                    raise
                failure = error
            else:
                self._put(Answer(call.number, result, attempts=attempt + 1))
                return
            if attempt < limits.retries:
                await asyncio.sleep(self._pause_s(attempt))
        self._put(Answer(call.number, error=failure, attempts=limits.retries + 1))

    def _attempt(self, call: Call) -> Awaitable[Any]:
        # A copy: the function may change its record, and is called again with it after a failure.
        row = dict(call.row)
        keywords = {IDEMPOTENCY_KEY: idempotency_key(self._scope, row)} if self._wants_key else {}
        if self._pool is None:
            found: Awaitable[Any] = self._function(row, **keywords)
            return found
        spoken = partial(copy_context().run, lambda: self._function(row, **keywords))
        return self._loop.run_in_executor(self._pool, spoken)

    async def _turn(self) -> None:
        """Wait until the rate allows an attempt."""
        if self._limits.rate is None:
            return
        import asyncio

        now_s = self._loop.time()
        at_s = max(now_s, self._next_attempt_s)
        self._next_attempt_s = at_s + 1 / self._limits.rate
        if at_s > now_s:
            await asyncio.sleep(at_s - now_s)

    def _pause_s(self, attempt: int) -> float:
        doubled_s: float = self._limits.backoff_ns / _NS_PER_S * 2.0 ** min(attempt, 60)
        return min(doubled_s, _PAUSE_MAX_S) * random.uniform(0.5, 1)

    def _timed_out(self) -> TimeoutError:
        return TimeoutError(f"no answer within {self._limits.timeout_ns / _NS_PER_S:g} s")

    def _put(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._answered.set()


def idempotency_key(scope: str, row: Row) -> str:
    """Return the key of a record's call: equal for equal records of an operator, in every attempt,
    after every failure and rescale.

    A hash of the content, not a number: after a failure records may come in another order, and a
    number would then be another record's. Records that are equal in all columns share a key.
    """
    content = msgspec.msgpack.encode([scope, row], enc_hook=repr)
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def is_coroutine_function(function: Callable[..., Any]) -> bool:
    """Whether a call returns a coroutine; `function` may be an object with `__call__`."""
    call = getattr(function, "__call__", None)  # noqa: B004  # of the object, not of its class
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def wants_key(function: Callable[..., Any]) -> bool:
    """Whether a function has a parameter for the key; one without a signature has none."""
    try:
        return IDEMPOTENCY_KEY in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
