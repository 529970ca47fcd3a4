"""A checkpoint as a DataFrame: `spark.read.format("headrace")`, a PySpark Python Data Source.

    spark.dataSource.register(hr.HeadraceDataSource)
    totals = (
        spark.read.format("headrace")
        .option("path", "file:///data/ckpt").option("job", "orders")
        .option("checkpoint", "latest").option("operator", "totals").option("state", "total")
        .load()
    )
    reader = spark.read.format("headrace").option("path", ...)
    queued = reader.option("edge", "orders->totals/0").load()

The program that wrote the checkpoint is not needed. The schema is that of what is stored
(`inspection/contents.py` adds columns that say where each row lay), and each subtask's piece is a
partition. Executors import headrace.

Source: PySpark 4, `pyspark.sql.datasource`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..connectors.spark.columns import spark_batch, spark_schema
from ..contract.errors import UserError
from ..contract.suggestion import did_you_mean
from .contents import Piece, View, in_flight_on, state_of
from .directory import open_checkpoint

OPTIONS = ("path", "job", "checkpoint", "operator", "state", "edge")


class HeadraceDataSource(DataSource):
    """Reads an operator's state, or an edge's in-flight records, of one checkpoint or savepoint.

    Options:
        path: the checkpoint directory (a path or any fsspec URL), or the path of one checkpoint in
            it.
        job: needed where the directory holds several.
        checkpoint: a number, or "latest" (the default).
        operator: whose state.
        state: which of its states, where it has several.
        edge: whose in-flight records, "producer->consumer/port"; instead of `operator`.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "headrace"

    def schema(self) -> StructType:
        """The stored columns, in Spark's types."""
        view = _view(self.options)
        return spark_schema(view.schema, view.what)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the reader. `schema` may name some of the columns only."""
        view = _view(self.options)
        found = spark_schema(view.schema, view.what)
        for field in schema:
            if field.name not in found.names:
                raise UserError(
                    f"{view.what} has no column {field.name!r};"
                    f" {did_you_mean(field.name, found.names)}"
                )
            if field.dataType != found[field.name].dataType:
                raise UserError(
                    f"{view.what}: column {field.name!r} is of type"
                    f" {found[field.name].dataType.simpleString()},"
                    f" not {field.dataType.simpleString()}; cast it after reading"
                )
        return _Reader(view, schema)


@dataclass
class _Partition(InputPartition):
    piece: Piece


class _Reader(DataSourceReader):
    def __init__(self, view: View, schema: StructType) -> None:
        self._view = view
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [_Partition(piece) for piece in self._view.pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without any stored piece Spark reads once nevertheless, with no partition.
        if isinstance(partition, _Partition):
            for batch in self._view.read(partition.piece):
                yield spark_batch(batch, self._schema, self._view.what)


def _view(options: Mapping[str, str]) -> View:
    """Return the view that the options ask for. Raises: UserError, StorageUnreachable."""
    for option in options:
        if option.lower() not in OPTIONS:
            raise UserError(
                f'format("headrace") has no option {option!r}; {did_you_mean(option, OPTIONS)}'
            )
    path, operator, edge = options.get("path"), options.get("operator"), options.get("edge")
    if not path:
        raise UserError('format("headrace") needs option("path", DIR), a checkpoint directory')
    if (operator is None) == (edge is None):
        raise UserError(
            'format("headrace") needs either option("operator", NAME) for state or option("edge",'
            " KEY) for in-flight records"
        )
    opened = open_checkpoint(path, options.get("job"), _number(options.get("checkpoint", "latest")))
    if operator is not None:
        return state_of(opened, operator, options.get("state"))
    if "state" in options:
        raise UserError('option("state") goes with option("operator"), not with option("edge")')
    assert edge is not None, "checked above"
    return in_flight_on(opened, edge)


def _number(checkpoint: str) -> int | None:
    if checkpoint == "latest":
        return None
    if not checkpoint.isdecimal():
        raise UserError(f'option("checkpoint", {checkpoint!r}) is neither "latest" nor a number')
    return int(checkpoint)
