"""What earlier runs of a job left in its folder, looked for once, before anything runs.

A driver that died between a completion and the deletion of what that subsumed leaves complete checkpoints behind, and files of checkpoints that it
never completed. The next run goes on with them: they are counted, retained and deleted like its own. Only its own history is deleted, though: what
is newer than the checkpoint it starts from, or all of it when it starts from elsewhere or afresh, is the user's to keep. But its files are
counted, so that none that it names goes with others. The same holds for what another job has claimed here: that job deletes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.recovery import catalog, claims, elsewhere
from headrace.recovery.codec import CorruptMetadata, UnsupportedVersion
from headrace.recovery.elsewhere import Elsewhere
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.store import NotFound, Store, StoreError

from ..contract.errors import StorageUnreachable


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Checkpoints of earlier runs in the job's folder, without the one that this run starts from. Savepoints are not among them.

    Attributes:
        older: complete ones of the history that this run continues, oldest first.
        others: complete ones of other histories.
        abandoned: numbers that have files and are not complete.
        claims: what the job has claimed in other folders and not released, of the history that this run continues, lowest place first.
        foreign_claims: the same of other histories.
    """

    older: tuple[CheckpointMetadata, ...] = ()
    others: tuple[CheckpointMetadata, ...] = ()
    abandoned: tuple[int, ...] = ()
    claims: tuple[Elsewhere, ...] = ()
    foreign_claims: tuple[Elsewhere, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user must know, one sentence each."""
        return tuple(
            f"{place} was claimed by an earlier run, whose history this one does not continue: it is kept"
            for place in self.foreign_claims
        )


NOTHING_LEFT = Leftovers()


def find_leftovers(
    store: Store | None,
    job: str,
    restored: CheckpointMetadata | None,
    following: int,
    place: Elsewhere | None = None,
) -> Leftovers:
    """Look for them. Call it when an epoch is claimed: who owned an older one completes nothing from then on.

    Savepoints with which earlier runs ended, and which something newer has followed, are forgotten: they are the user's alone.

    Args:
        restored: the checkpoint of this folder that the run starts from; None: it starts from elsewhere, or afresh.
        following: the first number of this run; what bears a number from there on is its own.
        place: the place in the job's sequence of what the run starts from elsewhere, if it has one.

    Raises: StorageUnreachable.
    """
    if store is None:
        return NOTHING_LEFT
    try:
        complete = catalog.complete_checkpoints(store, job, savepoints=False)
        found = _loaded(store, job, complete)
        abandoned = [n for n in catalog.abandoned_checkpoints(store, job) if n < following]
        places, _ = elsewhere.noted(store, job)
        taken = claims.claimed_checkpoints(store, job)
        start = _start(restored, place)
        for each in places:
            if not each.claimed and each.number < start:
                elsewhere.forget(store, job, each.number)
    except StoreError as error:
        raise StorageUnreachable(f"the checkpoint directory cannot be read: {error}") from error
    if len(found) < len(complete):
        # What a checkpoint names that cannot be read is unknown: files that look abandoned may be among it.
        abandoned = []
    older = [m for m in found if m.checkpoint < start and m.checkpoint not in taken]
    held = [each for each in places if each.claimed]
    mine = [each for each in held if each.number < start or each == place]
    return Leftovers(
        older=tuple(older),
        others=tuple(m for m in found if m not in older and m.checkpoint != start),
        abandoned=tuple(abandoned),
        claims=tuple(mine),
        foreign_claims=tuple(each for each in held if each not in mine),
    )


def _start(restored: CheckpointMetadata | None, place: Elsewhere | None) -> int:
    """The place in the job's sequence up to which all is of the run's history; 0: nothing is, it starts from elsewhere or afresh."""
    if restored is not None:
        return restored.checkpoint
    return 0 if place is None or place.claimed else place.number


def _loaded(store: Store, job: str, numbers: Iterable[int]) -> list[CheckpointMetadata]:
    """Those that can be read, oldest first."""
    found = []
    for number in sorted(numbers):
        try:
            found.append(catalog.load(store, job, number))
        except (CorruptMetadata, UnsupportedVersion, NotFound):
            continue
    return found
