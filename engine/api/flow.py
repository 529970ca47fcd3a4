"""Flows: the outputs that a consumer of a stream reads, apart from the methods of streams.

`Stream` is a `Flow` with methods. Modules that combine flows into an operator (`joined.py`,
`windowed.py` and the like) need no more of a stream than its flow, so `stream.py` builds on them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa

from ..contract.execution import BatchRule
from ..plan.graph import Input, Node, Partitioning, Role
from ..plan.validate import check_name, check_parallelism, require_event_time
from .call_site import call_site

#: The class of streams that a flow's methods make: `Stream`.
S = TypeVar("S", bound="Flow[Any]")

#: Why an operator that keeps state needs a name.
STATE = "by which its state is found again"


@dataclass(frozen=True, slots=True)
class Flow(ABC, Generic[S]):
    """Outputs that a consumer reads, and their schema.

    Attributes:
        inputs: the outputs; several after `union`.
        schema: of every batch.
        event_time: the column of event times, as long as operators keep the column.
    """

    inputs: tuple[Input, ...]
    schema: pa.Schema
    event_time: str | None = None

    @abstractmethod
    def over(
        self, inputs: tuple[Input, ...], schema: pa.Schema, event_time: str | None = None
    ) -> S:
        """Return a stream of other inputs, of this stream's class."""

    def partitioned(self, partitioning: Partitioning) -> S:
        """This stream under `partitioning`, which replaces an earlier partitioning."""
        inputs = tuple(edge.partitioned(partitioning) for edge in self.inputs)
        return self.over(inputs, self.schema, self.event_time)

    def then(
        self,
        kind: str,
        operator: Callable[..., Any],
        schema: pa.Schema,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        runs_user_code: bool = False,
        stateful: bool = False,
        idle_after_ns: int | None = None,
        late: pa.Schema | None = None,
        batch: BatchRule | None = None,
    ) -> S:
        """Add an operator of one's own: what all other methods come down to.

        Args:
            kind: the word for it, from which an unnamed operator gets its name.
            operator: makes an `Operator`; called in each subtask with the keyword `operator`, the
                operator's name.
            schema: of the results.
            runs_user_code: a call may take long; then a sink behind it becomes a task of its own.
            stateful: keeps state; then `name` is required.
            idle_after_ns: for an operator that makes watermarks: without records for so long it
                counts as idle.
            late: schema of the records that it may hand out as late (`take_late`).
            batch: the batches that it asks for; None: it takes records as they come.
        """
        if name is not None:
            check_name(name, kind=kind)
        if parallelism is not None:
            check_parallelism(parallelism, where=f"{kind}: parallelism")
        node = Node(
            kind=kind,
            role=Role.OPERATOR,
            name=name,
            inputs=self.inputs,
            schema=schema,
            operator=operator,
            parallelism=parallelism,
            stateful=stateful,
            runs_user_code=runs_user_code,
            idle_after_ns=idle_after_ns,
            late=late,
            batch=batch,
            built_at=call_site(),
        )
        return self.over((Input(node),), schema, _kept(self.event_time, schema))


def event_time_of(stream: Flow[Any], *, where: str) -> tuple[str, pa.DataType]:
    """Return a stream's event-time column and its type. Raises: UserError when it has none."""
    column = require_event_time(stream.event_time, stream.schema, where=where)
    return column, stream.schema.field(column).type


def _kept(event_time: str | None, schema: pa.Schema) -> str | None:
    """The event-time column, if it is still a column of timestamps."""
    if event_time is None or schema.names.count(event_time) != 1:
        return None
    return event_time if pa.types.is_timestamp(schema.field(event_time).type) else None
