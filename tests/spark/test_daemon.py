"""The daemon from which Spark forks workers: what it imports must be importable, and safe to fork
afterwards.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark.sql import SparkSession

from headrace.engine.drivers.warm import MODULES

IMPORT_ALL = """
import importlib, sys, threading
for module in sys.argv[1:]:
    importlib.import_module(module)
print(threading.active_count(), len([n for n in sys.modules if n.startswith("headrace.")]))
"""


def test_what_is_imported_in_advance_starts_no_thread() -> None:
    answer = subprocess.run(
        [sys.executable, "-P", "-c", IMPORT_ALL, *MODULES],
        capture_output=True,
        text=True,
        check=True,
    )
    threads, modules = map(int, answer.stdout.split())
    assert threads == 1
    assert modules > len(MODULES)


@pytest.mark.spark
def test_a_worker_of_an_embedded_session_is_born_with_the_engine(spark: SparkSession) -> None:
    def loaded(_: int) -> bool:
        import sys

        return "headrace.engine.drivers.worker_process" in sys.modules

    assert spark.sparkContext.parallelize([0], 1).map(loaded).collect() == [True]
