"""A column of state, one value per slot, that a snapshot can copy while work changes it.

There are two arrays. The running work reads and changes `working` in place; a snapshot copies the
other array, which only `commit` changes. A dictionary or log of the work's changes would halve the
memory, but every read would look there first. With two arrays the kernels stay plain scatters, and
a commit is one more scatter.
"""

from __future__ import annotations

import numpy as np

from .arrays import Values
from .slots import Slots

_CAPACITY_MIN = 1024
#: Of a value that is a Python object.
_OBJECT_BYTES = 64


class StateColumn:
    """One value per slot.

    Attributes:
        working: the running work's values; longer than the number of slots.
    """

    def __init__(self, dtype: np.dtype[np.generic], fill: object) -> None:
        self._fill = fill
        self.working: Values = np.full(_CAPACITY_MIN, fill, dtype)
        self._committed: Values = self.working.copy()
        #: (slots, their values) that `commit` will write, in order.
        self._staged: list[tuple[Slots, Values]] = []

    @property
    def size_bytes(self) -> int:
        """Memory of both arrays; objects are estimated."""
        each = _OBJECT_BYTES if self.working.dtype.hasobject else 0
        return self.working.nbytes + self._committed.nbytes + each * len(self.working)

    def grow(self, count: int) -> None:
        """Make room for `count` slots; new slots hold the fill value. Subtask thread."""
        capacity = len(self.working)
        if count <= capacity:
            return
        capacity = max(count, 2 * capacity)
        self.working = self._grown(self.working, capacity)
        # A snapshot at this moment may read either array: the two agree on every committed slot.
        self._committed = self._grown(self._committed, capacity)

    def _grown(self, old: Values, capacity: int) -> Values:
        new: Values = np.empty(capacity, old.dtype)
        new[: len(old)] = old
        new[len(old) :] = self._fill
        return new

    def stage(self, slots: Slots) -> Values:
        """Mark changed slots; returns their values.

        Subtask thread. A slot may occur more than once.
        """
        changed: Values = self.working.take(slots, mode="clip")
        self._staged.append((slots, changed))
        return changed

    def commit(self) -> None:
        """Publish staged values. Owner thread, while no work runs."""
        for slots, changed in self._staged:
            self._committed[slots] = changed
        self._staged.clear()

    def freeze(self, count: int) -> Values:
        """Copy the committed values of the first `count` slots.

        Owner thread, also while work runs.
        """
        return self._committed[:count].copy()

    def clear(self, slots: Slots) -> None:
        """Forget the working values of some slots.

        Subtask thread; stage the slots like any changed slots.
        """
        self.working[slots] = self._fill

    def load(self, slots: Slots, restored: Values) -> None:
        """Set restored values, as committed values."""
        self.working[slots] = restored
        self._committed[slots] = restored
