"""`logged`: an edge that is kept as a durable log, and parts a job into regions."""

from __future__ import annotations

from typing import Literal, get_args

from headrace.inflight.segment import InvalidTable, refuse_extensions

from ..contract.errors import UserError
from ..contract.suggestion import did_you_mean
from ..plan.graph import Input, Node, Role
from ..plan.validate import require_name
from .call_site import call_site
from .flow import Flow, S

#: When readers see a record: once its checkpoint is complete, or before.
Read = Literal["committed", "at_once"]


def logged(stream: Flow[S], *, name: str | None, read: str) -> S:
    """Cut the stream: see `Stream.logged`. Raises: UserError."""
    name = require_name(
        name, kind="logged", proposal="orders-log", why="by which its records are found again"
    )
    if read not in get_args(Read):
        raise UserError(f"logged: there is no read={read!r}; {did_you_mean(read, get_args(Read))}")
    try:
        refuse_extensions(stream.schema)
    except InvalidTable as reason:
        raise UserError(f"logged {name!r}: {reason}") from None
    node = Node(
        kind="logged",
        role=Role.LOG,
        name=name,
        inputs=stream.inputs,
        schema=stream.schema,
        stateful=True,
        takes_event_time=stream.event_time is not None,
        reads_early=read == "at_once",
        built_at=call_site(),
    )
    return stream.over((Input(node),), stream.schema, stream.event_time)
