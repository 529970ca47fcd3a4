"""The process function of two keyed streams: both sides share one state per key.

Arrival decides the order of two records with one key and different sides. Time, timers and the
backends of state are as in the process function of one stream; event time is the lower of both
sides'.

Source: Flink's `KeyedCoProcessFunction`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ..contract.operators import StateBackend
from .process import StatefulProcessor
from .timed_process import TimedProcessOperator


class CoProcessor(StatefulProcessor):
    """Base of users' functions of two keyed streams.

    Declare state as class attributes, and implement `process_left` and `process_right`.

    States, timers and `ttl=` are as in a `StatefulProcessor`; both sides share the states and
    timers of a key.

    Example:
        class Unpaid(CoProcessor):
            amount = value_state(pa.float64())

            def process_left(self, key, order):
                self.amount.value = order["amount"]
                self.timers.set(order["at"] + timedelta(days=14))

            def process_right(self, key, payment):
                self.amount.clear()

            def on_timer(self, key, time_ns):
                if self.amount.value is not None:
                    yield {"order": key, "amount": self.amount.value}
    """

    def process_left(self, key: Any, row: dict[str, Any]) -> Iterable[dict[str, Any]] | None:
        """Handle one record of the left stream (of `left.connect(right)`).

        Returns the records to emit.
        """
        raise NotImplementedError("implement process_left(key, row)")

    def process_right(self, key: Any, row: dict[str, Any]) -> Iterable[dict[str, Any]] | None:
        """Handle one record of the right stream.

        Returns the records to emit.
        """
        raise NotImplementedError("implement process_right(key, row)")


@dataclass(frozen=True, slots=True)
class CoInput:
    """One side: key columns, in the other side's order, schema, and event-time column.

    Only expiring states need the event-time column.
    """

    keys: tuple[str, ...]
    schema: pa.Schema
    event_time: str | None


class CoProcessOperator(TimedProcessOperator):
    """Runs a `CoProcessor`. The key types of both sides are equal.

    The first `left_ports` ports are the left stream, the rest the right stream.
    """

    def __init__(
        self,
        processor: CoProcessor | type[CoProcessor],
        left: CoInput,
        right: CoInput,
        left_ports: int,
        schema_out: pa.Schema,
        *,
        operator: str,
        backend: StateBackend | None = None,
    ) -> None:
        super().__init__(
            processor,
            left.keys,
            left.schema,
            schema_out,
            operator=operator,
            backend=backend,
            event_time=left.event_time,
        )
        self._sides = (left, right)
        self._left_ports = left_ports

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Emit the processor's results.

        Raises: UserCodeError when the processor raises, returns a result that does not fit, or sets
        a state to a value of another type.
        """
        processor = self._processor
        assert isinstance(processor, CoProcessor), "opened"
        self._opened().begin()
        is_left = port < self._left_ports
        # Until the next batch, keys and times are found in the columns of this side.
        side = self._sides[0 if is_left else 1]
        self._keys, self._event_time = list(side.keys), side.event_time
        call = processor.process_left if is_left else processor.process_right
        emitted = self._process_rows(batch, call)
        self._sweep()
        return emitted
