"""The embedded session: retries, interpreter, quiet, and one per process."""

import sys

import pytest
from pyspark.sql import SparkSession

from headrace.engine.contract.errors import UserError
from headrace.engine.spark.session import master_with_retries, open_session


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("local", "local[1,32]"),
        ("local[3]", "local[3,32]"),
        ("local[*]", "local[*,32]"),
        ("local[3,7]", "local[3,7]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://127.0.0.1:7077", "spark://127.0.0.1:7077"),
    ],
)
def test_a_local_master_gets_retries_unless_it_says_how_many(given: str, used: str) -> None:
    assert master_with_retries(given) == used


@pytest.mark.spark
def test_workers_run_this_interpreter_with_this_path(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(_: int) -> tuple[str, list[str]]:
        import sys

        return sys.executable, sys.path

    ((executable, path),) = spark.sparkContext.parallelize([0], 1).map(look).collect()
    assert executable == sys.executable
    assert set(filter(None, sys.path)) <= set(path)


@pytest.mark.spark
def test_a_second_session_is_refused(spark: SparkSession) -> None:
    with pytest.raises(UserError, match="spark="):
        open_session("second", slots=1)
