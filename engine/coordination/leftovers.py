"""What earlier runs of a job left in its folder, looked for once, before anything runs.

A driver that died between a completion and the deletion of what that subsumed leaves complete checkpoints behind, and files of checkpoints that it
never completed. The next run goes on with them: they are counted, retained and deleted like its own. Only its own history is deleted, though: what
is newer than the checkpoint it starts from, or all of it when it starts from elsewhere or afresh, is the user's to keep. But its files are
counted, so that none that it names goes with others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.recovery import catalog
from headrace.recovery.codec import CorruptMetadata, UnsupportedVersion
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.store import NotFound, Store, StoreError

from ..api.errors import StorageUnreachable


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Checkpoints of earlier runs in the job's folder, without the one that this run starts from. Savepoints are not among them.

    Attributes:
        older: complete ones of the history that this run continues, oldest first.
        others: complete ones of other histories.
        abandoned: numbers that have files and are not complete.
    """

    older: tuple[CheckpointMetadata, ...] = ()
    others: tuple[CheckpointMetadata, ...] = ()
    abandoned: tuple[int, ...] = ()


NOTHING_LEFT = Leftovers()


def find_leftovers(
    store: Store | None, job: str, restored: CheckpointMetadata | None, following: int
) -> Leftovers:
    """Look for them. Call it when an epoch is claimed: who owned an older one completes nothing from then on.

    Args:
        restored: the checkpoint of this folder that the run starts from; None: it starts from elsewhere, or afresh.
        following: the first number of this run; what bears a number from there on is its own.

    Raises: StorageUnreachable.
    """
    if store is None:
        return NOTHING_LEFT
    try:
        complete = catalog.complete_checkpoints(store, job, savepoints=False)
        found = _loaded(store, job, complete)
        abandoned = [n for n in catalog.abandoned_checkpoints(store, job) if n < following]
    except StoreError as error:
        raise StorageUnreachable(f"the checkpoint directory cannot be read: {error}") from error
    if len(found) < len(complete):
        # What a checkpoint names that cannot be read is unknown: files that look abandoned may be among it.
        abandoned = []
    start = 0 if restored is None else restored.checkpoint
    return Leftovers(
        older=tuple(m for m in found if m.checkpoint < start),
        others=tuple(m for m in found if m.checkpoint > start),
        abandoned=tuple(abandoned),
    )


def _loaded(store: Store, job: str, numbers: Iterable[int]) -> list[CheckpointMetadata]:
    """Those that can be read, oldest first."""
    found = []
    for number in sorted(numbers):
        try:
            found.append(catalog.load(store, job, number))
        except (CorruptMetadata, UnsupportedVersion, NotFound):
            continue
    return found
