"""The visible output of a sink as a DataFrame of Spark."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from ..api.write import SinkHandle
from ..connectors.spark.columns import spark_batch, spark_schema
from ..contract.connectors import ReadBySpark
from ..contract.errors import UserError


def dataframe_of(
    handle: SinkHandle, collected: Callable[[], pa.Table] | None, spark: SparkSession | None
) -> DataFrame:
    """Read a sink's output.

    Args:
        collected: the records of a collect sink.
        spark: None: the active session.

    Raises: UserError.
    """
    session = spark or _active_session()
    if collected is not None:
        return _dataframe(session, collected(), handle)
    if not isinstance(handle.sink, ReadBySpark):
        raise UserError(
            f"sink {handle.name!r} ({handle.node.kind}) keeps no output that Spark reads; write"
            " files, or use write.collect"
        )
    format_, place = handle.sink.spark_format()
    try:
        return session.read.format(format_).load(place)
    except AnalysisException as error:
        if error.getCondition() != "UNABLE_TO_INFER_SCHEMA":
            raise
    # Nothing is visible yet.
    return _dataframe(session, handle.node.schema.empty_table(), handle)


def _dataframe(session: SparkSession, table: pa.Table, handle: SinkHandle) -> DataFrame:
    what = f"sink {handle.name!r}"
    schema = spark_schema(table.schema, what)
    batches = [spark_batch(batch, schema, what) for batch in table.to_batches()]
    if not batches:
        return session.createDataFrame([], schema)
    return session.createDataFrame(pa.Table.from_batches(batches), schema)


def _active_session() -> SparkSession:
    try:
        return SparkSession.active()
    except PySparkException as error:
        raise UserError(
            "to_dataframe: this process has no Spark session; make one, or pass spark=..."
        ) from error
