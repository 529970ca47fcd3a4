"""Operators on whole batches: Arrow expressions, and functions that take and return batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ..contract.errors import UserCodeError, UserError
from ..contract.operators import OperatorContext
from ..contract.plain import plain_array, plain_batch, plain_schema
from ..contract.user_code import check_schema, raised, slices, to_array
from .batch_formats import FORMATS, BatchFormat, columns_of
from .failures import Failures, OnError
from .instances import SharedInstance, close_instance
from .stateless import StatelessOperator

# Here and below not at the top: it imports pandas, for which only expressions need wait.
if TYPE_CHECKING:
    from pyarrow import acero

#: Takes a RecordBatch, a DataFrame or {column: array}; returns a RecordBatch, a Table, a DataFrame,
#: {column: values}, or an iterator of these.
BatchFunction = Callable[[Any], Any]


class FilterOperator(StatelessOperator):
    """Keeps the records for which an expression is true (null counts as false)."""

    def __init__(self, expression: pc.Expression, *, operator: str = "filter") -> None:
        self._expression = expression
        self._operator = operator

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Emit the records for which the expression is true.

        Raises: UserCodeError when Arrow cannot evaluate the expression, for example on a division
        by zero.
        """
        from pyarrow import acero

        options = acero.FilterNodeOptions(self._expression)
        yield from _run(batch, acero.Declaration("filter", options), self._operator).to_batches()


class SelectOperator(StatelessOperator):
    """Computes each column of the output from an expression over the input."""

    def __init__(
        self,
        expressions: Mapping[str, pc.Expression],
        schema_out: pa.Schema,
        *,
        operator: str = "select",
    ) -> None:
        assert list(expressions) == schema_out.names, (
            "the schema is the one `select_schema` returned"
        )
        self._expressions = dict(expressions)
        self._schema = schema_out
        self._operator = operator
        #: {output column: input column} of columns passed on unchanged; known from the first batch
        #: on.
        self._passed: dict[str, str] | None = None

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Emit one record per record.

        Raises: UserCodeError when Arrow cannot evaluate an expression.
        """
        if self._passed is None:
            self._passed = _plain_references(self._expressions, batch.schema)
        passed = self._passed
        computed = {n: e for n, e in self._expressions.items() if n not in passed}
        columns = {out: batch.column(name) for out, name in passed.items()}
        if computed:
            # Starting the engine costs about a hundred microseconds: columns passed on unchanged do
            # without.
            table = _run(batch, _projection(computed), self._operator)
            columns |= {name: plain_array(_contiguous(table[name])) for name in computed}
        arrays = [columns[name] for name in self._schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def select_schema(expressions: Mapping[str, pc.Expression], schema_in: pa.Schema) -> pa.Schema:
    """Return the schema of `SelectOperator`'s output.

    Raises: UserError when there is no expression, or Arrow cannot bind an expression to
    `schema_in`.
    """
    if not expressions:
        raise UserError("select: name at least one column")
    passed = _plain_references(expressions, schema_in)
    fields = []
    for name, expression in expressions.items():
        if name in passed:
            fields.append(schema_in.field(passed[name]).with_name(name))
            continue
        try:
            table = _declared(schema_in.empty_table(), _projection({name: expression}))
        except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"select: column {name!r} cannot be computed as {expression} from the columns "
                f"{', '.join(schema_in.names)}: {_first_line(error)}"
            ) from error
        fields.append(table.schema.field(name))
    return pa.schema(fields)


class DecodeOperator(StatelessOperator):
    """Gives columns their plain type: dictionaries, views and runs end here."""

    def __init__(self, schema_out: pa.Schema, *, operator: str = "decode") -> None:
        self._schema = schema_out
        self._operator = operator

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Emit one record per record."""
        columns = [
            plain_array(column.dictionary_decode() if _is_coded(column) else column)
            for column in batch.columns
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)


class MapBatchesOperator(StatelessOperator):
    """Calls a function with each batch.

    Each subtask makes one instance of a class, calls the instance, and closes it at the end. A
    `SharedInstance` is made and closed once a worker.
    """

    def __init__(
        self,
        function: BatchFunction | type | SharedInstance,
        schema_out: pa.Schema,
        batch_size: int | None = None,
        batch_format: BatchFormat = "arrow",
        *,
        operator: str = "map_batches",
        on_error: OnError = "fail",
    ) -> None:
        assert batch_size is None or batch_size > 0, f"batches of {batch_size} rows"
        self._given = function
        self._schema = schema_out
        self._batch_rows_max = batch_size
        self._convert = FORMATS[batch_format]
        self._operator = operator
        self._failures = Failures(on_error, operator)
        self._function: BatchFunction | None = None

    def open(self, context: OperatorContext) -> None:
        """Make the instance of a class.

        Raises: UserCodeError when the constructor raises.
        """
        try:
            match self._given:
                case SharedInstance() as shared:
                    self._function = shared.acquire()
                case type() as class_:
                    self._function = class_()
                case function:
                    self._function = function
        except BaseException as error:
            raise raised(self._operator, error) from error

    def process(self, batch: pa.RecordBatch, port: int) -> Iterator[pa.RecordBatch]:
        """Emit the function's result for each piece of at most `batch_size` rows.

        Raises: UserCodeError when the function raises, or returns other names or types than
        declared.
        """
        for piece in slices(batch, self._batch_rows_max or batch.num_rows):
            yield from self._results(piece)

    def take_errors(self) -> Sequence[pa.RecordBatch]:
        """Hand out the dead letters."""
        return self._failures.take()

    def _results(self, piece: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Call the function; where failures are kept, a failing batch is halved, and each half
        called, until the failing records are alone.
        """
        try:
            return self._call(piece)
        except BaseException as error:
            if not self._failures.kept:
                if isinstance(error, UserCodeError):
                    raise
                raise raised(self._operator, error) from error
            if piece.num_rows == 1:
                self._failures.add(piece, error)
                return []
        half = piece.num_rows // 2
        return [*self._results(piece.slice(0, half)), *self._results(piece.slice(half))]

    def _call(self, piece: pa.RecordBatch) -> list[pa.RecordBatch]:
        assert self._function is not None, "opened"
        returned = self._function(self._convert(piece))
        # A generator runs here, so that its failure is caught.
        results = list(returned) if isinstance(returned, Iterator) else [returned]
        if any(result is None for result in results):
            raise UserCodeError(
                self._operator,
                f"returned None for a batch of {piece.num_rows} records, which would be lost;"
                " return an empty batch to drop them",
            )
        return [
            batch
            for result in results
            for batch in to_batches(self._operator, result, self._schema)
        ]

    def close(self) -> None:
        """Close the instance of a class."""
        function, self._function = self._function, None
        if function is None:
            return
        if isinstance(self._given, SharedInstance):
            self._given.release()
        elif isinstance(self._given, type):
            close_instance(function)


def to_batches(operator: str, result: object, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Turn the result of a user's function into batches of exactly `schema`.

    Raises: UserCodeError when the result is not tabular, or its names or types differ.
    """
    if result is None:
        return []
    columns = result if isinstance(result, Mapping) else columns_of(result)
    if columns is not None:
        return [_from_columns(operator, columns, schema)]
    if not isinstance(result, pa.RecordBatch | pa.Table):
        raise UserCodeError(
            operator,
            f"returned {type(result).__name__} where a RecordBatch, a Table, a DataFrame, a dict "
            "of columns, or an iterator of them is due",
        )
    parts = [result] if isinstance(result, pa.RecordBatch) else result.to_batches()
    if not result.schema.equals(schema):
        check_schema(operator, plain_schema(result.schema), schema)
        parts = [plain_batch(part) for part in parts]
    for part in parts:
        _check_nulls(operator, part, schema)
    return [pa.RecordBatch.from_arrays(part.columns, schema=schema) for part in parts]


def _from_columns(operator: str, columns: Mapping[str, Any], schema: pa.Schema) -> pa.RecordBatch:
    """Convert lists and NumPy arrays to the declared types if the values fit.

    Arrow arrays must have the declared types.
    """
    arrays = []
    for name in (*columns, *(n for n in schema.names if n not in columns)):
        if name not in columns or name not in schema.names:
            found = pa.schema([(n, pa.null()) for n in columns])
            check_schema(operator, found, schema)
    for field in schema:
        column = columns[field.name]
        try:
            if isinstance(column, pa.ChunkedArray):
                column = _contiguous(column)
            given = isinstance(column, pa.Array)
            array = plain_array(column) if given else _to_array(column, field.type)
        except Exception as error:
            raise UserCodeError(
                operator,
                f"column {field.name!r} of the returned columns does not fit its declared type"
                f" {field.type}: "
                f"{_first_line(error)}",
            ) from error
        arrays.append(array)
    if len({len(array) for array in arrays}) > 1:
        lengths = ", ".join(f"{n}: {len(a)}" for n, a in zip(schema.names, arrays, strict=True))
        raise UserCodeError(operator, f"the returned columns differ in length ({lengths})")
    batch = pa.RecordBatch.from_arrays(arrays, names=schema.names)
    check_schema(operator, batch.schema, schema)
    _check_nulls(operator, batch, schema)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _to_array(column: Any, type_: pa.DataType) -> pa.Array:
    return to_array(column, type_) if isinstance(column, list | tuple) else pa.array(column, type_)


def _is_coded(column: pa.Array) -> bool:
    return bool(pa.types.is_dictionary(column.type))


def _check_nulls(operator: str, batch: pa.RecordBatch, schema: pa.Schema) -> None:
    for field in schema:
        if not field.nullable and batch.column(field.name).null_count:
            raise UserCodeError(
                operator,
                f"column {field.name!r} of the returned batch has nulls, declared is not nullable",
            )


def _plain_references(
    expressions: Mapping[str, pc.Expression], schema: pa.Schema
) -> dict[str, str]:
    """Find the expressions that only name a column: {output column: input column}."""
    fields = {name: pc.field(name) for name in schema.names}
    return {
        out: name
        for out, expression in expressions.items()
        for name, field in fields.items()
        if expression.equals(field)
    }


def _projection(expressions: Mapping[str, pc.Expression]) -> acero.Declaration:
    from pyarrow import acero

    options = acero.ProjectNodeOptions(list(expressions.values()), list(expressions))
    return acero.Declaration("project", options)


def _run(batch: pa.RecordBatch, declaration: acero.Declaration, operator: str) -> pa.Table:
    try:
        return _declared(pa.Table.from_batches([batch]), declaration)
    except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
        raise UserCodeError(operator, f"Arrow cannot evaluate it: {_first_line(error)}") from error


def _declared(table: pa.Table, declaration: acero.Declaration) -> pa.Table:
    """Run one node over a table, in this thread, which also keeps the order of rows."""
    from pyarrow import acero

    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    return acero.Declaration.from_sequence([source, declaration]).to_table(use_threads=False)


def _contiguous(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
