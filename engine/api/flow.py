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

from ..contract.errors import UserError
from ..contract.execution import BatchRule, Output
from ..contract.numbers import counted
from ..contract.suggestion import did_you_mean
from ..operators.failures import ON_ERROR, OnError, letter_schema
from ..plan.graph import Input, Node, Partitioning, Role
from ..plan.validate import (
    check_name,
    check_parallelism,
    check_plain,
    check_schema,
    require_event_time,
)
from .call_site import call_site

#: The class of streams that a flow's methods make: `Stream`.
S = TypeVar("S", bound="Flow[Any]")

#: Why some operators have no `on_error`.
_NO_ON_ERROR = {
    "filter": (
        "filter: on_error={} needs a function of one row, for Arrow evaluates an expression over"
        " whole batches; write a function, or leave on_error out"
    ),
    "process": (
        "process has no on_error={}, for what a failed call has written to its state cannot be"
        " undone; check the records before key_by with map(..., on_error=...), or catch the"
        " exception in the processor"
    ),
}

#: Columns of a wide stream that its repr names.
_COLUMNS_SHOWN = 12

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

    def __repr__(self) -> str:
        """Name the operators whose records these are, and the columns with their types."""
        nodes = dict.fromkeys(edge.node for edge in self.inputs)
        origin = ", ".join(node.kind if node.name is None else repr(node.name) for node in nodes)
        columns = [f"{column.name}: {column.type}" for column in self.schema]
        if len(columns) > _COLUMNS_SHOWN:
            more = len(columns) - _COLUMNS_SHOWN
            columns[_COLUMNS_SHOWN:] = [f"and {counted(more, 'more column')}"]
        time = "" if self.event_time is None else f"; event time {self.event_time!r}"
        return f"<{type(self).__name__} of {origin}: {', '.join(columns)}{time}>"

    @abstractmethod
    def over(
        self, inputs: tuple[Input, ...], schema: pa.Schema, event_time: str | None = None
    ) -> S:
        """Return a stream of other inputs, of this stream's class."""

    def partitioned(self, partitioning: Partitioning) -> S:
        """This stream under `partitioning`, which replaces an earlier partitioning."""
        inputs = tuple(edge.partitioned(partitioning) for edge in self.inputs)
        return self.over(inputs, self.schema, self.event_time)

    def _declared(
        self, kind: str, function: object, schema: pa.Schema | None, on_error: object = "fail"
    ) -> pa.Schema:
        """Check a function, the schema of its results and its `on_error`; return the schema."""
        if not callable(function):
            raise UserError(f"{kind} takes a function, got {function!r}")
        check_plain(function, where=kind)
        check_on_error(on_error, kind=kind)
        if schema is None:
            return self.schema
        return check_schema(schema, where=kind)

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
        errors: pa.Schema | None = None,
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
            errors: schema of the dead letters that it hands out (`take_errors`), which then need a
                consumer.
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
            errors=errors,
            built_at=call_site(),
        )
        return self.over((Input(node),), schema, _kept(self.event_time, schema))


def called(
    stream: Flow[S],
    kind: str,
    operator: Callable[..., Any],
    schema: pa.Schema,
    on_error: OnError,
    name: str | None,
    parallelism: int | None,
    batch: BatchRule | None = None,
    *,
    stateful: bool = False,
) -> S:
    """Add an operator around a user's function."""
    return stream.then(
        kind,
        operator,
        schema,
        name=name,
        parallelism=parallelism,
        runs_user_code=True,
        stateful=stateful,
        errors=letter_schema(stream.schema) if on_error == "route" else None,
        batch=batch,
    )


def errors_of(stream: Flow[S]) -> S:
    """Return the dead letters of a stream's operator. Raises: UserError when it routes none."""
    node = stream.inputs[0].node
    if len(stream.inputs) > 1 or node.errors is None:
        what = "a union" if len(stream.inputs) > 1 else node.label
        raise UserError(
            f'{what} has no errors to take; give on_error="route" to the operator, and take errors'
            " from its result"
        )
    return stream.over((Input(node, output=Output.ERRORS),), node.errors)


def check_on_error(on_error: object, *, kind: str) -> None:
    """Refuse a word that `on_error` does not know."""
    if on_error not in ON_ERROR:
        hint = did_you_mean(str(on_error), ON_ERROR)
        raise UserError(f"{kind}: there is no on_error={on_error!r}; {hint}")


def refuse_on_error(on_error: object, *, kind: str) -> None:
    """Refuse any other `on_error` than "fail" for an operator that has none."""
    if on_error != "fail":
        raise UserError(_NO_ON_ERROR[kind].format(repr(on_error)))


def event_time_of(stream: Flow[Any], *, where: str) -> tuple[str, pa.DataType]:
    """Return a stream's event-time column and its type. Raises: UserError when it has none."""
    column = require_event_time(stream.event_time, stream.schema, where=where)
    return column, stream.schema.field(column).type


def _kept(event_time: str | None, schema: pa.Schema) -> str | None:
    """The event-time column, if it is still a column of timestamps."""
    if event_time is None or schema.names.count(event_time) != 1:
        return None
    return event_time if pa.types.is_timestamp(schema.field(event_time).type) else None
