"""A Spark session that several launchers use, one after the other or side by side: it ends with the last of them."""

from __future__ import annotations

import threading

from pyspark.sql import SparkSession


class SharedSession:
    """Counts who uses a session. Thread-safe."""

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
        """It has not been stopped here."""
        return not (self._stops and self._ended)

    def enter(self) -> None:
        """Somebody uses it."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """Somebody does not use it any more."""
        with self._lock:
            self._users -= 1
            assert self._users >= 0, "left more often than entered"
            self._ended = not self._users
            if self._stops and self._ended:
                self.spark.stop()
