"""Aggregations of a user's own, over state in columns of NumPy.

The user's class sees *groups*: the keys, or windows, that a call is about, numbered from 0. What is
held for all other groups stays where it is; the class never sees it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from ..contract.errors import UserError
from ..state.arrays import Values, from_values, values
from ..state.columns import StateColumn
from ..state.slots import Slots

_TYPES: dict[type, pa.DataType] = {int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
_State = dict[str, Values]


class CustomAggregate(ABC):
    """Base of users' aggregations; `hr.custom(Spread, "amount")` is the aggregation.

    An instance keeps no state of its own: state is in columns, which checkpoints hold.

    Example:
        class Spread(hr.CustomAggregate):
            state = {"low": math.inf, "high": -math.inf}
            result = pa.float64()

            def accumulate(self, state, groups, amounts):
                np.minimum.at(state["low"], groups, amounts.to_numpy())
                np.maximum.at(state["high"], groups, amounts.to_numpy())

            def merge(self, state, groups, other):
                np.minimum.at(state["low"], groups, other["low"])
                np.maximum.at(state["high"], groups, other["high"])

            def finish(self, state):
                return state["high"] - state["low"]

    Attributes:
        state: {column of state: its value before the first record}; an int, a float or a bool,
            and the column is of int64, float64 or bool.
        result: type of the result.
    """

    state: ClassVar[Mapping[str, float]]
    result: ClassVar[pa.DataType]

    @abstractmethod
    def accumulate(self, state: dict[str, Any], groups: Any, *columns: pa.Array) -> None:
        """Take records into `state`, in place.

        Args:
            state: {column: a NumPy array with a value for each group}.
            groups: a NumPy array with the group of each record.
            columns: the columns that `hr.custom` names, nulls included.
        """

    @abstractmethod
    def merge(self, state: dict[str, Any], groups: Any, other: dict[str, Any]) -> None:
        """Take other states into `state`, in place: row k of `other` belongs to group `groups[k]`.

        Session windows that grow together are merged.
        """

    @abstractmethod
    def finish(self, state: dict[str, Any]) -> Any:
        """Return the results, one for each group: a NumPy or Arrow array, or a list."""


def checked(aggregate: CustomAggregate | type[CustomAggregate]) -> CustomAggregate:
    """Make an instance, and check what it declares. Raises: UserError."""
    made = aggregate() if isinstance(aggregate, type) else aggregate
    if not isinstance(made, CustomAggregate):
        raise UserError(f"custom takes a CustomAggregate, got {made!r}")
    name = type(made).__name__
    state = getattr(made, "state", None)
    if not isinstance(state, Mapping) or not state:
        raise UserError(f"custom: {name}.state names its columns, as in state = {{'n': 0}}")
    for column, initial in state.items():
        if type(initial) not in _TYPES:
            raise UserError(
                f"custom: {name}.state[{column!r}] is {initial!r}; an int, a float or a bool is due"
            )
    if not isinstance(getattr(made, "result", None), pa.DataType):
        raise UserError(f"custom: {name}.result is an Arrow type, as in result = pa.float64()")
    return made


class CustomAccumulator:
    """Runs a user's aggregation; see `Accumulator`."""

    def __init__(self, name: str, aggregate: CustomAggregate, columns: int) -> None:
        # Subtasks of a worker share the plan, and run in threads of their own.
        self._aggregate = copy.deepcopy(aggregate)
        self._takes_struct = columns > 1
        self._types = {column: _TYPES[type(v)] for column, v in aggregate.state.items()}
        self._columns = {
            column: StateColumn(np.dtype(type(initial)), initial)
            for column, initial in aggregate.state.items()
        }
        self.columns = tuple(self._columns.values())
        self.fields = tuple(
            pa.field(f"{name}.{column}", type_, nullable=False)
            for column, type_ in self._types.items()
        )

    def add(self, slots: Slots, array: pa.Array | None) -> None:
        """Give the records to `accumulate`."""
        assert array is not None, "it has a column"
        columns = array.flatten() if self._takes_struct else [array]
        self._call(slots, lambda state, groups: self._aggregate.accumulate(state, groups, *columns))

    def merge(self, slots: Slots, state: Sequence[Values]) -> None:
        """Give the other aggregates to `merge`."""
        other = dict(zip(self._columns, state, strict=True))
        self._call(slots, lambda state, groups: self._aggregate.merge(state, groups, other))

    def result(self, state: Sequence[Values]) -> pa.Array:
        """What `finish` returns, in the declared type. Raises: TypeError, ValueError."""
        type_, groups = self._aggregate.result, len(state[0])
        # A copy: what `finish` changes in place would be the state.
        copies = (column.copy() for column in state)
        found = self._aggregate.finish(dict(zip(self._columns, copies, strict=True)))
        made = found.cast(type_) if isinstance(found, pa.Array) else pa.array(found, type_)
        if len(made) != groups:
            raise ValueError(f"finish returned {len(made)} results for {groups} groups")
        return made

    def store(self, state: Sequence[Values]) -> list[pa.Array]:
        """The columns."""
        return [
            from_values(column, type_)
            for column, type_ in zip(state, self._types.values(), strict=True)
        ]

    def load(self, slots: Slots, arrays: Sequence[pa.Array]) -> None:
        """Take the columns back."""
        for column, array in zip(self.columns, arrays, strict=True):
            column.load(slots, values(array).astype(column.working.dtype, copy=False))

    def _call(self, slots: Slots, call: Callable[[_State, Slots], object]) -> None:
        touched, groups = np.unique(slots, return_inverse=True)
        state = {name: column.working[touched] for name, column in self._columns.items()}
        call(state, groups)
        for name, column in self._columns.items():
            found = np.asarray(state[name])
            dtype = column.working.dtype
            if found.shape != touched.shape or not np.can_cast(found.dtype, dtype, "same_kind"):
                raise TypeError(
                    f"state {name!r} is {found.dtype} of shape {found.shape} after the call;"
                    f" {dtype} of shape {touched.shape} is due"
                )
            column.working[touched] = found
