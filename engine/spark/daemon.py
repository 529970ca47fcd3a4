"""Spark's Python daemon with the worker's imports done: `python -m headrace.engine.spark.daemon`, started by executors.

An executor starts one such daemon and has it fork a process per task. What the daemon has imported, every worker has at
its birth; otherwise each one that takes a dead one's place spends a good second on Arrow and the engine, which is most of
what a recovery takes. Nothing is done here besides importing: no threads, files or connections that a fork would share.
"""

from __future__ import annotations

import importlib

from pyspark.daemon import manager

#: What a worker imports anyway; the connectors are what most programs read from and write to.
WARM = (
    "pyspark.worker",
    "headrace.engine.runtime.worker_main",
    "headrace.engine.connectors.file_sink",
    "headrace.engine.connectors.files",
    "headrace.engine.connectors.sequence",
    "headrace.engine.operators.aggregate",
    "headrace.engine.operators.process",
    "headrace.engine.operators.row",
)


def main() -> None:
    """Import, then serve the executor until it ends."""
    for module in WARM:
        importlib.import_module(module)
    manager()


if __name__ == "__main__":
    main()
