"""Deleting what nobody needs any more: metadata first, then files, each order answered before the next is given.

One order is under way at a time. What storage refuses is asked for again at the next occasion: when another checkpoint is complete, or
when the job ends, then more than once and with a pause. After that it is left to the next run, which adopts it (`leftovers.py`).
"""

from __future__ import annotations

from headrace.recovery.registry import Deletable

from . import coordinator_events as d
from .ledger import Ledger


class Deletion:
    """The orders that follow from what the ledger lets go.

    What was claimed in another folder is released by an order of its own, beside these.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._ending = False
        #: What storage refused lately: metadata, and files.
        self._refused: tuple[int, ...] = ()
        self._left = Deletable()
        self._ordered = False
        #: How many releases have not been answered, and what came of the last ones: what stays, a sentence each.
        self._releasing = 0
        self._unreleased: list[str] = []

    @property
    def awaits(self) -> bool:
        """An order has not been answered."""
        return self._ordered or self._releasing > 0

    def sweep(self, effects: list[d.CoordinatorEffect]) -> None:
        """Begin to delete what nobody needs any more, unless that is under way."""
        if self._ordered:
            return
        self._refused, self._left = (), Deletable()
        checkpoints = self._ledger.sweep()
        self._release(effects)
        if checkpoints:
            self._ordered = True
            effects.append(d.WithdrawCheckpoints(checkpoints, self._ending))
        else:
            self._delete(effects)

    def withdrawn(self, event: d.CheckpointsWithdrawn, effects: list[d.CoordinatorEffect]) -> None:
        """What is certainly incomplete may lose its files."""
        self._ordered = False
        self._ledger.withdrawn(event.asked, event.gone)
        self._refused = tuple(n for n in event.asked if n not in event.gone)
        self._delete(effects)

    def deleted(self, event: d.FilesDeleted) -> None:
        """What is left waits for the next occasion."""
        self._ordered = False
        self._ledger.deleted(event.left)
        self._left = event.left

    def released(self, event: d.ClaimReleased, effects: list[d.CoordinatorEffect]) -> None:
        """What was claimed is deleted, or stays for good, or waits for the next occasion."""
        self._releasing -= 1
        if event.again:
            self._ledger.not_released(event.place)
            self._unreleased.append(event.left)
        elif event.left:
            effects.append(d.Notice(d.NoticeKind.WARNING, event.left))

    def finish(self, effects: list[d.CoordinatorEffect]) -> bool:
        """The job ends, and no checkpoint comes that might name anything. Returns whether all is over; if not, an answer will come."""
        if not self.awaits and not self._ending:
            self._ending = True
            self._ledger.end()
            self.sweep(effects)
        if self.awaits:
            return False
        self._warn(effects)
        return True

    def _release(self, effects: list[d.CoordinatorEffect]) -> None:
        places = self._ledger.subsumed_claims()
        self._releasing += len(places)
        self._unreleased = []
        effects += [d.ReleaseClaim(place, self._ending) for place in places]

    def _delete(self, effects: list[d.CoordinatorEffect]) -> None:
        what = self._ledger.deletable()
        if not what.is_empty:
            self._ordered = True
            effects.append(d.DeleteFiles(what, self._ending))

    def _warn(self, effects: list[d.CoordinatorEffect]) -> None:
        effects += [
            d.Notice(d.NoticeKind.WARNING, f"{text}; the next run of the job will try again")
            for text in self._unreleased
        ]
        if not self._refused and self._left.is_empty:
            return
        savepoints = {number for number, _ in self._left.savepoints}
        checkpoints = sorted({*self._refused, *self._left.checkpoints} - savepoints)
        things = [f"chk-{n}" for n in checkpoints] + [f"savepoint {n}" for n in sorted(savepoints)]
        if self._left.files:
            things.append(f"{len(self._left.files)} files of older checkpoints")
        text = f"storage did not delete {', '.join(things)}; the next run of the job will try again"
        effects.append(d.Notice(d.NoticeKind.WARNING, text))
