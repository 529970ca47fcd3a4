"""Spark's Python daemon with the worker's imports done: `python -m headrace.engine.spark.daemon`,
started by executors.

An executor starts one such daemon, which forks a process per task. Every worker is born with the
daemon's imports; otherwise the replacement of a dead worker would spend a good second on importing
Arrow and the engine, most of the time of a recovery.
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
