"""A Spark session that several launchers use in turn or side by side: it ends with the last of
them.
"""

from __future__ import annotations

import threading

from pyspark.sql import SparkSession


class SharedSession:
    """Counts the users of a session. Thread-safe."""

    def __init__(self, spark: SparkSession, *, stops: bool, embedded: bool = False) -> None:
        """Share `spark`.

        Args:
            stops: the session ends with its last user.
            embedded: a larger session can be made when this one has ended.
        """
        self.spark = spark
        self.embedded = embedded
        self._stops = stops
        self._users = 0
        self._ended = False
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """True until the session has been stopped here."""
        return not (self._stops and self._ended)

    def enter(self) -> None:
        """Count one more user."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """Count one user less."""
        with self._lock:
            self._users -= 1
            assert self._users >= 0, "left more often than entered"
            self._ended = not self._users
            if self._stops and self._ended:
                self.spark.stop()
