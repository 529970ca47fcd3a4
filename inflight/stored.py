"""The life of a worker's data of a checkpoint: stored, then confirmed or given up.

In-flight data and files of databases live alike: later checkpoints name stored data instead of
writing again. An object lives as long as an attempt, and belongs to its owner thread.
"""

from __future__ import annotations

from typing import Generic, TypeVar

_T = TypeVar("_T")


class Stored(Generic[_T]):
    """Data that a worker stored or named for checkpoints."""

    def __init__(self) -> None:
        #: {checkpoint: its data}, until a newer checkpoint is confirmed.
        self._stored: dict[int, _T] = {}
        self._given_up: set[int] = set()
        #: Data of the newest complete checkpoint; None: this worker stored none for it, or no
        #: checkpoint is complete.
        self._confirmed: _T | None = None
        self._confirmed_number = 0

    def stored(self, checkpoint: int, data: _T) -> None:
        """This worker's `data` of `checkpoint` is durable."""
        if checkpoint > self._confirmed_number:
            self._stored[checkpoint] = data

    def confirmed(self, checkpoint: int) -> None:
        """`checkpoint` is complete: its data stays while later checkpoints name it."""
        self._confirmed = self._stored.get(checkpoint)
        self._confirmed_number = checkpoint
        self._stored = {n: data for n, data in self._stored.items() if n > checkpoint}
        self._given_up = {number for number in self._given_up if number > checkpoint}

    def given_up(self, checkpoint: int) -> None:
        """`checkpoint` will never be complete.

        Its data, also if stored later, stays until this worker hears of a newer complete
        checkpoint.
        """
        self._given_up.add(checkpoint)

    @property
    def newest(self) -> _T | None:
        """Data of the newest checkpoint, complete or stored and then given up.

        The data is durable, and the registry of files keeps it (`recovery/registry.py`). So a
        slow checkpoint is not written again from the start.
        """
        newest = max(self._given_up & self._stored.keys(), default=None)
        return self._confirmed if newest is None else self._stored[newest]
