"""A column of state, one value per slot, that a snapshot can copy while work changes it.

There are two arrays. The running work reads and changes `working` in place; a snapshot copies the other one, which only
`commit` changes. Keeping the work's changes in a dictionary or a log instead would halve the memory, but every read
would have to look there first: with two arrays the kernels stay plain scatters, and committing a batch is one more.
"""

from __future__ import annotations

import numpy as np

from .arrays import Values
from .slots import Slots

_CAPACITY_MIN = 1024


class StateColumn:
    """One value per slot.

    Attributes:
        working: the values as the running work sees them; longer than the number of slots.
    """

    def __init__(self, dtype: np.dtype[np.generic], fill: object) -> None:
        self._fill = fill
        self.working: Values = np.full(_CAPACITY_MIN, fill, dtype)
        self._committed: Values = self.working.copy()
        #: (slots, their values) that `commit` will write, in order.
        self._staged: list[tuple[Slots, Values]] = []

    def grow(self, count: int) -> None:
        """Make room for `count` slots; new ones hold the fill value. Subtask thread."""
        capacity = len(self.working)
        if count <= capacity:
            return
        capacity = max(count, 2 * capacity)
        self.working = self._grown(self.working, capacity)
        # A snapshot that runs now reads either array: they agree on every committed slot.
        self._committed = self._grown(self._committed, capacity)

    def _grown(self, old: Values, capacity: int) -> Values:
        new: Values = np.empty(capacity, old.dtype)
        new[: len(old)] = old
        new[len(old) :] = self._fill
        return new

    def stage(self, slots: Slots) -> Values:
        """Note that these slots changed; returns their values. Subtask thread. A slot may be named more than once."""
        changed: Values = self.working.take(slots, mode="clip")
        self._staged.append((slots, changed))
        return changed

    def commit(self) -> None:
        """Publish what was staged. Owner thread, while no work runs."""
        for slots, changed in self._staged:
            self._committed[slots] = changed
        self._staged.clear()

    def freeze(self, count: int) -> Values:
        """Copy the committed values of the first `count` slots. Owner thread, also while work runs."""
        return self._committed[:count].copy()

    def reset(self, count: int) -> None:
        """Forget the working values of the first `count` slots. For whoever keeps the committed ones elsewhere."""
        self.grow(count)
        self.working[:count] = self._fill

    def clear(self, slots: Slots) -> None:
        """Forget the working values of some slots. Subtask thread; to be staged like any other change."""
        self.working[slots] = self._fill

    def load(self, slots: Slots, restored: Values) -> None:
        """Set restored values; they count as committed."""
        self.working[slots] = restored
        self._committed[slots] = restored
