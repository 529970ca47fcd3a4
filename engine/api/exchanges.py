"""Streams as far as exchanges go: which subtask of the next operator a record goes to, where no key
says it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.channels.partitioners.broadcast import Broadcast
from headrace.channels.partitioners.by_range import ByRange
from headrace.channels.partitioners.custom import Custom, CustomFunction
from headrace.channels.partitioners.rebalance import Rebalance
from headrace.channels.partitioners.shuffle import Shuffle

from ..contract.errors import UserError
from ..plan.validate import check_columns
from .flow import Flow, S


@dataclass(frozen=True, slots=True, repr=False)
class Exchanges(Flow[S]):
    """A flow with the methods that deal records out; `Stream` has the others."""

    def rebalance(self) -> S:
        """Deal the records out evenly to all subtasks of the next operator, in runs of neighbours.

        Runs are not copied: the cheapest exchange.
        """
        return self.partitioned(Rebalance())

    def shuffle(self) -> S:
        """Give each record to a subtask of the next operator at random.

        `rebalance` costs less, and parts no neighbours.
        """
        return self.partitioned(Shuffle())

    def broadcast(self) -> S:
        """Give every record to every subtask of the next operator."""
        return self.partitioned(Broadcast())

    def partition_by(self, function: CustomFunction, *columns: str) -> S:
        """Let `function(batch, consumers)` name for each row a subtask of the next operator.

        Args:
            function: returns one integer from 0 to `consumers` - 1 per row (a list, NumPy or Arrow
                array).
            columns: that the function sees; none stated: every column.
        """
        self._declared("partition_by", function, None)
        check_columns(columns, self.schema, where="partition_by")
        return self.partitioned(Custom(function, columns or None))

    def partition_by_range(self, column: str, boundaries: Iterable[object]) -> S:
        """Give each subtask of the next operator contiguous ranges of a column's values, in order.

        With boundaries 10 and 20 the ranges are below 10, from 10 to below 20, and from 20. Nulls
        and NaN belong to the last range. Subtasks share the ranges evenly at any parallelism; more
        subtasks than ranges leave some subtasks without records.

        Args:
            column: numbers, dates, timestamps or strings.
            boundaries: values of the column's type, each larger than the one before.
        """
        check_columns([column], self.schema, where="partition_by_range")
        try:
            return self.partitioned(ByRange.over(self.schema, column, boundaries))
        except (TypeError, ValueError) as error:
            raise UserError(f"partition_by_range: {error}") from None
