"""Running aggregates per key, as the user writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..contract.errors import UserError
from ..contract.operators import Operator, StateBackend
from ..contract.options import State
from ..contract.suggestion import did_you_mean
from ..contract.units import Duration
from ..operators.aggregate import AggregateOperator, Emit
from ..operators.aggregations import Aggregation, aggregate_schema
from ..operators.expiring_aggregate import ExpiringAggregate
from ..plan.validate import check_aggregations, require_event_time, require_name
from ..state.keyed import checked_ttl_ns
from .backend import stated_backend
from .flow import STATE, Flow, S

EMITS: tuple[str, ...] = ("changes", "final")


def aggregated(
    stream: Flow[S],
    keys: tuple[str, ...],
    aggregations: Mapping[str, Aggregation],
    *,
    name: str | None,
    emit: Emit,
    ttl: Duration | None,
    parallelism: int | None,
    state: State | None,
) -> S:
    """Aggregate per key; see `KeyedStream.aggregate`. Raises: UserError."""
    proposal = f"{'-'.join(keys)}-totals"
    name = require_name(name, kind="aggregate", proposal=proposal, why=STATE)
    if emit not in EMITS:
        raise UserError(f"aggregate: emit={emit!r} is unknown; {did_you_mean(str(emit), EMITS)}")
    check_aggregations(aggregations, stream.schema)
    schema = stream.schema
    out = aggregate_schema(keys, aggregations, schema)
    backend = stated_backend(state, kind="aggregate")
    operator: Callable[..., Operator]
    if ttl is None:
        operator = partial(AggregateOperator, keys, aggregations, schema, emit, backend=backend)
    else:
        operator = _expiring(stream, keys, ttl, emit, aggregations, backend)
    return stream.then(
        "aggregate", operator, out, name=name, parallelism=parallelism, stateful=True
    )


def _expiring(
    stream: Flow[Any],
    keys: tuple[str, ...],
    ttl: Duration,
    emit: Emit,
    aggregations: Mapping[str, Aggregation],
    backend: StateBackend | None,
) -> Callable[..., ExpiringAggregate]:
    if emit == "final":
        raise UserError(
            'aggregate: emit="final" gives every key when the input ends, but ttl= forgets'
            " keys before; use one of them"
        )
    schema = stream.schema
    event_time = require_event_time(stream.event_time, schema, where="aggregate: state with a ttl")
    given = (keys, event_time, checked_ttl_ns(ttl), aggregations, schema)
    # Made once here, since that finds the user's mistakes.
    ExpiringAggregate(*given, operator="aggregate")
    return partial(ExpiringAggregate, *given, backend=backend)
