"""A function that waits for an answer, called for each record; see `Stream.map_async`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pyarrow as pa

from ..contract.errors import UserError
from ..contract.suggestion import name_of_class
from ..contract.units import Duration, duration_ns
from ..contract.user_code import Row
from ..operators.async_calls import CallLimits
from ..operators.async_map import AsyncMapOperator
from ..operators.failures import OnError
from ..plan.validate import check_parallelism, check_schema, require_name
from .flow import STATE, Flow, S, called, check_on_error

AsyncFunction = Callable[..., Awaitable[Row]] | Callable[..., Row]

_CAPACITY_MAX = 1 << 16
_RETRIES_MAX = 1000


def async_mapped(
    stream: Flow[S],
    function: AsyncFunction | type,
    schema: pa.Schema | None,
    *,
    keys: tuple[str, ...] = (),
    ordered: bool,
    capacity: int,
    timeout: Duration,
    retries: int,
    backoff: Duration,
    rate: float | None,
    on_error: OnError,
    name: str | None,
    parallelism: int | None,
) -> S:
    """Call a function for each record, many calls at a time. Raises: UserError.

    Args:
        keys: of a stream by key; then records of calls under way stay with their key.
    """
    where = "map_async"
    _check_function(function)
    check_on_error(on_error, kind=where)
    proposal = name_of_class(function) if isinstance(function, type) else where
    name = require_name(name, kind=where, proposal=proposal, why=STATE)
    out = stream.schema if schema is None else schema
    out = check_schema(out, where=where)
    limits = _limits(capacity, timeout, retries, backoff, rate)
    operator = partial(
        AsyncMapOperator,
        function,
        stream.schema,
        out,
        limits,
        ordered=ordered,
        keys=keys,
        on_error=on_error,
    )
    return called(stream, where, operator, out, on_error, name, parallelism, stateful=True)


def _check_function(function: Any) -> None:
    if not callable(function):
        raise UserError(
            f"map_async takes a function, a coroutine function or a class, got {function!r}"
        )
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise UserError(
            f"map_async: {getattr(function, '__name__', function)!r} is a generator, and map_async"
            " needs one row for each record; return the row instead of yielding it"
        )


def _limits(
    capacity: int, timeout: Duration, retries: int, backoff: Duration, rate: float | None
) -> CallLimits:
    check_parallelism(capacity, where="map_async: capacity", limit=_CAPACITY_MAX)
    if (
        isinstance(retries, bool)
        or not isinstance(retries, int)
        or not 0 <= retries <= _RETRIES_MAX
    ):
        raise UserError(
            f"map_async: retries={retries!r} is not a number of further attempts, 0 to"
            f" {_RETRIES_MAX}"
        )
    if rate is not None and (isinstance(rate, bool) or not 0 < rate < float("inf")):
        raise UserError(f"map_async: rate={rate!r} is not a number of calls a second above 0")
    timeout_ns = duration_ns(timeout, option="map_async: timeout")
    if timeout_ns == 0:
        raise UserError("map_async: timeout=0 lets no call end; leave it out for 60 s")
    backoff_ns = duration_ns(backoff, option="map_async: backoff")
    return CallLimits(capacity, timeout_ns, retries, backoff_ns, rate)
