"""Streams as far as users' functions go: the methods that call a function of the user's.

The fast ones take a function of a batch; `map`, `flat_map` and `filter` with a function handle one
row at a time and are one to two orders of magnitude slower.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from ..contract.units import Duration
from ..contract.user_code import FlatRowFunction, RowFunction, RowPredicate
from ..operators.batch import BatchFunction, FilterOperator, MapBatchesOperator
from ..operators.batch_formats import BatchFormat
from ..operators.failures import OnError
from ..operators.row import FilterFunctionOperator, FlatMapOperator, MapOperator
from .async_mapped import AsyncFunction, async_mapped
from .batched import Share, batch_rule, check_format, shared
from .expressions import check_filter
from .flow import Flow, S, called, errors_of, refuse_on_error
from .isolated import NO_GIL, isolated, refuse_isolated


@dataclass(frozen=True, slots=True, repr=False)
class Functions(Flow[S]):
    """A flow with the methods that call users' functions; `Stream` has the others."""

    def map(
        self,
        function: RowFunction,
        schema: pa.Schema | None = None,
        *,
        on_error: OnError = "fail",
        isolate: bool = False,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> S:
        """Turn every row (a dict) into another one. Slow; see `map_batches`.

        Args:
            schema: of the results; None: this stream's.
            on_error: a row whose call fails can "fail" the job, be dropped ("skip"; counted and
                told), or go to `errors` ("route").
            isolate: the function runs in a process of its own, so that no neighbour and no
                checkpoint waits while it holds the GIL.
        """
        out = self._declared("map", function, schema, on_error)
        make = partial(MapOperator, function, out, on_error=on_error)
        operator = isolated("map", make, isolate=isolate)
        return called(self, "map", operator, out, on_error, name, parallelism)

    def flat_map(
        self,
        function: FlatRowFunction,
        schema: pa.Schema | None = None,
        *,
        on_error: OnError = "fail",
        isolate: bool = False,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> S:
        """Turn every row (a dict) into any number of rows. Slow; see `map_batches`.

        Args:
            schema: of the results; None: this stream's.
            on_error, isolate: as of `map`.
        """
        out = self._declared("flat_map", function, schema, on_error)
        make = partial(FlatMapOperator, function, out, on_error=on_error)
        operator = isolated("flat_map", make, isolate=isolate)
        return called(self, "flat_map", operator, out, on_error, name, parallelism)

    def filter(
        self,
        condition: pc.Expression | RowPredicate,
        *,
        on_error: OnError = "fail",
        isolate: bool = False,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> S:
        """Keep the rows for which `condition` is true.

        Args:
            condition: an Arrow expression such as `pc.field("amount") > 100` (fast), or a function
                of one row (slow).
            on_error, isolate: as of `map`; of a function only.
        """
        if isinstance(condition, pc.Expression):
            refuse_on_error(on_error, kind="filter")
            refuse_isolated("filter", isolate, NO_GIL)
            check_filter(condition, self.schema)
            keep = partial(FilterOperator, condition)
            return self.then("filter", keep, self.schema, name=name, parallelism=parallelism)
        self._declared("filter", condition, None, on_error)
        make = partial(FilterFunctionOperator, condition, on_error=on_error)
        operator = isolated("filter", make, isolate=isolate)
        return called(self, "filter", operator, self.schema, on_error, name, parallelism)

    def map_batches(
        self,
        function: BatchFunction | type,
        schema: pa.Schema | None = None,
        *,
        batch_size: int | None = None,
        linger: Duration | None = None,
        batch_format: BatchFormat = "arrow",
        share: Share = "subtask",
        on_error: OnError = "fail",
        isolate: bool = False,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> S:
        """Turn batches into batches: the way to run models, NumPy and pandas.

        Args:
            function: takes a batch; returns a record batch, a table, a DataFrame, {column: values},
                or an iterator of these; an empty batch drops the rows. Or a class: each subtask
                makes an instance (load the model in `__init__`), calls the instance, and at the end
                calls its `close()`, if there is one.
            schema: of the results, whatever the format; None: this stream's.
            batch_size: rows of a call: so many if they wait, and never more; None: as many as are
                worth a call, learnt from the time that calls take.
            linger: "50ms": the first row waits so long for a full batch, and then the call has the
                rows that came; None: no row waits. Aligned checkpoints and the end of input do not
                wait either. Needs `batch_size`.
            batch_format: of the function's argument: "arrow" (a record batch), "pandas" (a
                DataFrame) or "numpy" ({column: array}). Nulls become what pandas and NumPy have for
                them, NaN or None; in a returned DataFrame they are nulls again.
            share: "worker": all subtasks of a worker call one instance of the class, at the same
                time and from several threads; its thread safety is yours. "subtask": each has its
                own.
            on_error: as of `map`. A failing batch is handed over again in halves until the failing
                rows are alone, so the result of a row should not depend on its batch.
            isolate: as of `map`.
        """
        out = self._declared("map_batches", function, schema, on_error)
        check_format(batch_format)
        make = partial(
            MapBatchesOperator,
            shared(function, share),
            out,
            batch_size,
            batch_format,
            on_error=on_error,
        )
        operator = isolated("map_batches", make, isolate=isolate, share=share)
        rule = batch_rule(self.schema, batch_size, linger)
        return called(self, "map_batches", operator, out, on_error, name, parallelism, rule)

    def map_async(
        self,
        function: AsyncFunction | type,
        schema: pa.Schema | None = None,
        *,
        ordered: bool = False,
        capacity: int = 64,
        timeout: Duration = "60s",
        retries: int = 0,
        backoff: Duration = "100ms",
        rate: float | None = None,
        on_error: OnError = "fail",
        name: str | None = None,
        parallelism: int | None = None,
    ) -> S:
        """Turn every row into another one by a call that waits: a service, a database, a model.

        Up to `capacity` calls are under way in each subtask. A checkpoint holds the records of
        calls under way and waits for none; after a failure these calls are made again. So a call
        may be made more than once, while its result counts once.

        Args:
            function: a coroutine function of a row (a dict), which runs in an event loop, or a
                plain function, which runs in one of `capacity` threads. Returns a row. With a
                parameter `idempotency_key` it also gets a text that is equal for every repetition
                of a record's call, by which a service can recognise the repetition; records that
                are equal in all columns share it. Or a class: each subtask makes an instance and
                calls it; its `open()` and `close()`, also as coroutines, are called in the loop.
            schema: of the results; None: this stream's.
            ordered: results keep the order of their records, as long as the parallelism stays: a
                slow call holds up the results of later ones. Behind `key_by` the order of a key's
                records outlives a rescale. Otherwise they come as they are ready. A watermark waits
                for all records before it in either case.
            capacity: calls under way in each subtask.
            timeout: of one attempt, which then counts as failed. A plain function that is too late
                keeps its thread until it returns.
            retries: further attempts after a failed one; then the call has failed.
            backoff: pause before the second attempt, doubled for each further one.
            rate: attempts a second at most, in each subtask.
            on_error: as of `map`, of a record whose last attempt failed.
            name: required: records of calls under way are state.
        """
        return async_mapped(
            self,
            function,
            schema,
            ordered=ordered,
            capacity=capacity,
            timeout=timeout,
            retries=retries,
            backoff=backoff,
            rate=rate,
            on_error=on_error,
            name=name,
            parallelism=parallelism,
        )

    @property
    def errors(self) -> S:
        """Records that `on_error="route"` sent here: operator, error, message and record."""
        return errors_of(self)
