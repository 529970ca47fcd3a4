"""Streams of fewer records: each key once, or the first records, as the user writes them."""

from __future__ import annotations

from functools import partial

from ..contract.errors import UserError
from ..contract.options import State
from ..operators.distinct import DistinctOperator
from ..operators.limit import LimitOperator
from ..plan.graph import Keyed
from ..plan.validate import check_keys, require_name
from .backend import stated_backend
from .flow import STATE, Flow, S


def distinct(
    stream: Flow[S],
    columns: tuple[str, ...],
    *,
    name: str | None,
    parallelism: int | None,
    state: State | None,
) -> S:
    """Keep the first record of each key; see `Stream.distinct`. Raises: UserError."""
    keys = columns or tuple(stream.schema.names)
    proposal = f"distinct-{'-'.join(columns)}" if columns else "distinct"
    name = require_name(name, kind="distinct", proposal=proposal, why=STATE)
    check_keys(keys, stream.schema, where="distinct")
    backend = stated_backend(state, kind="distinct")
    partitioned: Flow[S] = stream.partitioned(Keyed(keys))
    return partitioned.then(
        "distinct",
        partial(DistinctOperator, keys, stream.schema, backend=backend),
        stream.schema,
        name=name,
        parallelism=parallelism,
        stateful=True,
    )


def limited(stream: Flow[S], rows: object, *, name: str | None) -> S:
    """Keep the first records; see `Stream.limit`. Raises: UserError."""
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 0:
        raise UserError(f"limit takes a number of records, as in limit(10), got {rows!r}")
    name = require_name(name, kind="limit", proposal=f"first-{rows}", why=STATE)
    return stream.then(
        "limit",
        partial(LimitOperator, rows),
        stream.schema,
        name=name,
        parallelism=1,
        stateful=True,
    )
