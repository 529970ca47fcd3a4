"""Checkpoints and claims of earlier runs in a job's folder, looked for before the job runs.

A driver that dies between a completion and the following deletion leaves superfluous checkpoints
behind, and files of checkpoints never completed. The next run counts, retains and deletes all of
its own history. Checkpoints of other histories belong to the user: newer ones than the start of the
run, or all if the run starts from elsewhere or afresh. Their files are counted, so that no deletion
takes one along. Checkpoints claimed by another job count likewise: the other job deletes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.recovery import catalog, claims, links
from headrace.recovery.codec import CorruptMetadata, UnsupportedVersion
from headrace.recovery.links import CheckpointLink
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.store import NotFound, Store, StoreError

from ..contract.errors import StorageUnreachable


@dataclass(frozen=True, slots=True)
class EarlierRuns:
    """Checkpoints in the job's folder, without savepoints and the start of this run.

    Attributes:
        older: complete checkpoints of the history continued by this run, oldest first.
        others: complete checkpoints of other histories.
        abandoned: numbers with files, but not complete; or damaged, and passed over by an earlier
            run.
        claims: unreleased claims of the continued history, lowest number first.
        other_claims: unreleased claims of other histories.
    """

    older: tuple[CheckpointMetadata, ...] = ()
    others: tuple[CheckpointMetadata, ...] = ()
    abandoned: tuple[int, ...] = ()
    claims: tuple[CheckpointLink, ...] = ()
    other_claims: tuple[CheckpointLink, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for the user about each claim of another history."""
        return tuple(
            f"{claim} was claimed by an earlier run, whose history this one does not continue:"
            " it is kept"
            for claim in self.other_claims
        )


NO_EARLIER_RUNS = EarlierRuns()


def find_earlier_runs(
    store: Store | None,
    job: str,
    restored: CheckpointMetadata | None,
    checkpoint_next: int,
    link: CheckpointLink | None = None,
) -> EarlierRuns:
    """Look for checkpoints and claims of earlier runs, after an epoch is claimed.

    From then on the owner of an older epoch completes nothing. Records of savepoints with which
    earlier runs ended are deleted when a newer checkpoint has followed.

    Args:
        restored: start of the run in this folder; None: elsewhere, or afresh.
        checkpoint_next: the first number of this run.
        link: to the start of the run, if there is one.

    Raises: StorageUnreachable.
    """
    if store is None:
        return NO_EARLIER_RUNS
    try:
        complete = catalog.complete_checkpoints(store, job, savepoints=False)
        found = _loaded(store, job, complete)
        start = _start(restored, link)
        unreadable = set(complete) - {metadata.checkpoint for metadata in found}
        past = catalog.history(store, job)
        left = {
            number
            for number in unreadable
            if number < start and not catalog.may_count(store, job, number, past)
        }
        written = {*catalog.abandoned_checkpoints(store, job), *left}
        abandoned = sorted(number for number in written if number < checkpoint_next)
        found_links, _ = links.read_all(store, job)
        taken = claims.claimed_checkpoints(store, job)
        for each in found_links:
            if not each.claimed and each.number < start:
                links.delete(store, job, each.number)
    except StoreError as error:
        raise StorageUnreachable(f"the checkpoint directory cannot be read: {error}") from error
    if unreadable - left:
        # An unreadable checkpoint may name any file: some that look abandoned may be among them.
        abandoned = []
    older = [m for m in found if m.checkpoint < start and m.checkpoint not in taken]
    held = [each for each in found_links if each.claimed]
    own = [each for each in held if each.number < start or each == link]
    return EarlierRuns(
        older=tuple(older),
        others=tuple(m for m in found if m not in older and m.checkpoint != start),
        abandoned=tuple(abandoned),
        claims=tuple(own),
        other_claims=tuple(each for each in held if each not in own),
    )


def _start(restored: CheckpointMetadata | None, link: CheckpointLink | None) -> int:
    """Checkpoints below this number belong to the history of the run; 0: none does."""
    if restored is not None:
        return restored.checkpoint
    return 0 if link is None or link.claimed else link.number


def _loaded(store: Store, job: str, numbers: Iterable[int]) -> list[CheckpointMetadata]:
    """The readable checkpoints, oldest first."""
    found = []
    for number in sorted(numbers):
        try:
            found.append(catalog.load(store, job, number))
        except (CorruptMetadata, UnsupportedVersion, NotFound):
            continue
    return found
