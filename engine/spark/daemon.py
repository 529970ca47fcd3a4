"""Spark's Python daemon with the worker's imports done: `python -m headrace.engine.spark.daemon`, started by executors.

An executor starts one such daemon and has it fork a process per task. What the daemon has imported, every worker has at
its birth; otherwise each one that takes a dead one's place spends a good second on Arrow and the engine, which is most of
what a recovery takes.
"""

from __future__ import annotations

from pyspark.daemon import manager

from ..drivers.interpreter import freeze_loaded
from ..drivers.warm import import_all


def main() -> None:
    """Import, then serve the executor until it ends."""
    # What the daemon's own tasks run, which is Spark's.
    import pyspark.worker  # noqa: F401

    import_all()
    freeze_loaded()
    manager()


if __name__ == "__main__":
    main()
