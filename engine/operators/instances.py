"""Instances of a user's class: one for each subtask, or one for all subtasks of a worker.

A plan is unpickled once for each worker, so the object that the subtasks' operators hold in common
is the worker's.
"""

from __future__ import annotations

import threading
import traceback
from typing import Any


class SharedInstance:
    """One instance of a class, made by its first user and closed by its last.

    Only the class is pickled.
    """

    def __init__(self, class_: type) -> None:
        self._class = class_
        # Subtasks open and close in threads of their own.
        self._lock = threading.Lock()
        self._users = 0
        self._instance: Any = None

    def __reduce__(self) -> tuple[type[SharedInstance], tuple[type]]:
        return SharedInstance, (self._class,)

    def acquire(self) -> Any:
        """Return the instance. Raises: what the constructor raises."""
        with self._lock:
            if self._users == 0:
                self._instance = self._class()
            self._users += 1
            return self._instance

    def release(self) -> None:
        """Close the instance if nobody else uses it; it never raises."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                instance, self._instance = self._instance, None
                close_instance(instance)


def close_instance(instance: object) -> None:
    """Call the `close()` of an instance that has one; an exception is printed.

    The job is over or fails for another reason, and its other operators must be closed as well.
    """
    close = getattr(instance, "close", None)
    if not callable(close):
        return
    try:
        close()
    except Exception:
        traceback.print_exc()
