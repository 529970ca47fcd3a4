"""Retention: which complete checkpoints a job keeps, and the deletion of everything else.

`Retention` owns the registry of files, the retained checkpoints, the claims of the job, and the
orders to storage that follow. Three kinds of complete checkpoints count:

- Checkpoints of this run, and of earlier runs of the continued history: the newest `retain` stay.
- Claims: checkpoints in another directory, made the job's own. A claim counts towards `retain`. A
  subsumed claim stays while the attempt started from the claim replays in-flight data of it.
- Checkpoints of other histories, and savepoints: the job never deletes any.

Deletion takes two orders, each answered before the next: metadata first, then files. A refused
deletion is ordered again on the next occasion: when another checkpoint is complete, or when the job
ends, then patiently. The next run adopts the rest. Claims are released by separate orders. Between
two attempts no order is given: the search for an older checkpoint may be under way.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.recovery.links import CheckpointLink
from headrace.recovery.metadata import CheckpointMetadata
from headrace.recovery.registry import Deletable, SharedStateRegistry, references

from .coordinator_events import (
    CheckpointsWithdrawn,
    ClaimReleased,
    CoordinatorEffect,
    DeleteFiles,
    FilesDeleted,
    Notice,
    NoticeKind,
    ReleaseClaim,
    WithdrawCheckpoints,
)
from .earlier_runs import NO_EARLIER_RUNS, EarlierRuns


class Retention:
    """Complete checkpoints and claims of one job, and the deletion of their files.

    Args:
        restore: the checkpoint to start the job from.
        elsewhere: `restore` lies in another directory.
        claim: the claim of `restore`, if the job has claimed it.
        earlier: checkpoints of earlier runs.
        epoch: claimed already; 0: none was.
    """

    def __init__(
        self,
        restore: CheckpointMetadata | None,
        retain: int,
        *,
        elsewhere: bool = False,
        claim: CheckpointLink | None = None,
        earlier: EarlierRuns = NO_EARLIER_RUNS,
        epoch: int = 0,
    ) -> None:
        self._retain = retain
        self._epoch = epoch
        #: `restore`, if its number means nothing in this directory.
        self._restored_elsewhere = restore if elsewhere else None
        self._claim = claim
        #: {number: claim that is not released}.
        self._claims = {each.number: each for each in earlier.claims}
        if claim is not None:
            self._claims[claim.number] = claim
        #: The attempt that runs may still read the claim that it started from.
        self._is_replaying = False
        #: Places of subsumed claims that are still read.
        self._still_read: list[int] = []
        #: Claims to be released.
        self._subsumed: list[CheckpointLink] = []
        self._registry = SharedStateRegistry()
        #: Complete checkpoints to keep, oldest first.
        self._retained: list[int] = []
        #: {savepoint under way or given up: URL of its directory}.
        self._savepoints: dict[int, str] = {}
        self._ending = False
        #: Storage has not answered an order to withdraw or to delete.
        self._ordered = False
        #: Metadata and files that storage refused to delete lately.
        self._refused: tuple[int, ...] = ()
        self._left = Deletable()
        #: Number of unanswered releases; a sentence about each claim that storage refused lately.
        self._releasing = 0
        self._unreleased: list[str] = []
        self._adopt(earlier)
        self.restored(restore)
        self._retire()

    def _adopt(self, earlier: EarlierRuns) -> None:
        for number in earlier.abandoned:
            self._registry.adopt_abandoned(number)
        for metadata in (*earlier.older, *earlier.others):
            self._registry.adopt(metadata.checkpoint, references(metadata))
        for number in self._claims:
            self._registry.adopt(number, frozenset())
        older = [metadata.checkpoint for metadata in earlier.older]
        self._retained = sorted(older + list(self._claims))

    # --- checkpoints come and go ------------------------------------------------------------------

    def restored(self, metadata: CheckpointMetadata | None) -> None:
        """Go on from this checkpoint. Files of newer ones, which are damaged, stay."""
        number = self._place_of(metadata)
        for newer in [n for n in self._retained if n > number]:
            self._registry.forget(newer)
        self._retained = [n for n in self._retained if n < number]
        if number in self._claims:
            self._retained.append(number)
        if (
            metadata is not None
            and not metadata.savepoint
            and metadata is not self._restored_elsewhere
        ):
            self._retained.append(number)
            self._registry.adopt(number, references(metadata))

    def _place_of(self, metadata: CheckpointMetadata | None) -> int:
        if metadata is None:
            return 0
        if metadata is self._restored_elsewhere and self._claim is not None:
            return self._claim.number
        return metadata.checkpoint

    def started(self, metadata: CheckpointMetadata | None, epoch: int) -> None:
        """An attempt starts from this checkpoint."""
        self._epoch = epoch
        self._is_replaying = metadata is not None and metadata is self._restored_elsewhere

    def attempt_begins(self, checkpoint_next: int) -> None:
        """An attempt runs, with `checkpoint_next` as first checkpoint."""
        self._registry.attempt_begins(checkpoint_next)

    def triggered(self, checkpoint: int, savepoint_in: str | None = None) -> None:
        """A checkpoint is begun: from now on it may name files, and files may be written for it.

        Args:
            savepoint_in: URL of the directory, if the checkpoint is a savepoint.
        """
        self._registry.begin(checkpoint)
        if savepoint_in is not None:
            self._savepoints[checkpoint] = savepoint_in

    def skipped(self, checkpoint: int) -> None:
        """No checkpoint will have the number that was next.

        In-flight logs write under that number until they are asked for a higher one.
        """
        self._registry.begin(checkpoint)
        self._registry.give_up(checkpoint)

    def given_up(self, checkpoint: int) -> None:
        """The checkpoint will not be complete."""
        self._registry.give_up(checkpoint)

    def saved(self, savepoint: int) -> None:
        """The savepoint is durable, and the user's from now on."""
        self._registry.save(savepoint)
        del self._savepoints[savepoint]

    def completed(self, metadata: CheckpointMetadata) -> None:
        """The checkpoint is durable."""
        self._registry.complete(metadata.checkpoint, references(metadata))
        self._retained.append(metadata.checkpoint)
        if not _replays(metadata):
            self._is_replaying = False
        self._retire()

    def _retire(self) -> None:
        gone = self._still_read + self._retained[: -self._retain]
        self._retained = self._retained[-self._retain :]
        read = self._claim.number if self._claim is not None and self._is_replaying else None
        self._still_read = [number for number in gone if number == read]
        for number in gone:
            if number != read:
                self._registry.let_go(number)

    # --- deletion ---------------------------------------------------------------------------------

    @property
    def awaits(self) -> bool:
        """Storage has not answered some order."""
        return self._ordered or self._releasing > 0

    def sweep(self) -> list[CoordinatorEffect]:
        """Begin to delete everything not retained, unless a deletion is under way."""
        if self._ordered:
            return []
        self._refused, self._left = (), Deletable()
        collected = self._registry.collect()
        claims = [number for number in collected if number in self._claims]
        checkpoints = tuple(number for number in collected if number not in claims)
        self._subsume(claims)
        released = self._release()
        if not checkpoints:
            return released + self._delete()
        self._ordered = True
        return [*released, WithdrawCheckpoints(checkpoints, self._ending)]

    def withdrawn(self, event: CheckpointsWithdrawn) -> list[CoordinatorEffect]:
        """Delete the files of checkpoints that are certainly incomplete now."""
        self._ordered = False
        self._registry.withdrawn(event.asked, event.gone)
        self._refused = tuple(n for n in event.asked if n not in event.gone)
        return self._delete()

    def deleted(self, event: FilesDeleted) -> None:
        """Files are deleted, or left for the next occasion."""
        self._ordered = False
        self._left = event.left
        self._registry.deleted(event.left)
        self._savepoints = {
            number: target
            for number, target in self._savepoints.items()
            if self._registry.knows(number)
        }

    def released(self, event: ClaimReleased) -> list[CoordinatorEffect]:
        """The claim is deleted, or stays for good, or waits for the next occasion."""
        self._releasing -= 1
        if event.again:
            self._subsumed.append(event.link)
            self._unreleased.append(event.left)
        elif event.left:
            return [Notice(NoticeKind.WARNING, event.left)]
        return []

    def end(self) -> list[CoordinatorEffect]:
        """Delete for the last time: no checkpoint, and no attempt that reads anything, follows.

        Called again after each answer, until storage owes none.
        """
        effects: list[CoordinatorEffect] = []
        if not self.awaits and not self._ending:
            self._ending = True
            self._is_replaying = False
            self._retire()
            self._registry.end()
            effects = self.sweep()
        return effects if self.awaits else effects + self._warnings()

    def _subsume(self, claims: list[int]) -> None:
        self._registry.withdrawn(claims, ())
        for number in claims:
            self._registry.forget(number)
            self._subsumed.append(self._claims.pop(number))

    def _release(self) -> list[CoordinatorEffect]:
        subsumed, self._subsumed = self._subsumed, []
        self._releasing += len(subsumed)
        self._unreleased = []
        return [ReleaseClaim(claim, self._ending) for claim in subsumed]

    def _delete(self) -> list[CoordinatorEffect]:
        what = self._deletable()
        if what.is_empty:
            return []
        self._ordered = True
        return [DeleteFiles(what, self._ending, self._epoch)]

    def _deletable(self) -> Deletable:
        """Files to delete now, each named once, and again only after `deleted` with it left."""
        deletable = self._registry.deletable()
        partial = [n for n in deletable.checkpoints if n in self._savepoints]
        return replace(deletable, savepoints=tuple((n, self._savepoints[n]) for n in partial))

    def _warnings(self) -> list[CoordinatorEffect]:
        texts = list(self._unreleased)
        savepoints = {number for number, _ in self._left.savepoints}
        checkpoints = sorted({*self._refused, *self._left.checkpoints} - savepoints)
        things = [f"chk-{n}" for n in checkpoints] + [f"savepoint {n}" for n in sorted(savepoints)]
        if self._left.files:
            things.append(f"{len(self._left.files)} files of older checkpoints")
        if things:
            texts.append(f"storage did not delete {', '.join(things)}")
        again = "; the next run of the job will try again"
        return [Notice(NoticeKind.WARNING, text + again) for text in texts]

    # --- the rest ---------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert every invariant."""
        assert self._retained == sorted(self._retained), self._retained
        assert len(self._retained) <= self._retain, self._retained

    def describe(self) -> str:
        """The whole state as stable text."""
        return f"complete={self._retained}"


def _replays(metadata: CheckpointMetadata) -> bool:
    """The cut still holds in-flight data of the checkpoint before it, to be replayed."""
    return any(h.side == "replay" for subtask in metadata.subtasks for h in subtask.inflight)
