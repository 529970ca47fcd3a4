"""The shared-state registry: which checkpoint names which file, and when a file may go.

A checkpoint may name files of earlier checkpoints: in-flight buffers still queued, state files not
changed since. So a file goes only when no counting checkpoint names the file, and no checkpoint
under way may be about to.

The files named by a checkpoint under way are unknown before completion, but the files *allowed* are
known. A worker that writes a part of checkpoint N has heard of every completion before N's trigger.
So the worker names files of the newest of these checkpoints, of a later checkpoint, or of its own
for a later checkpoint given up or under way; never a file of a checkpoint let go before N's
trigger. Hence each number let go, and each number whose files are garbage, has a *limit*: the
number of the next checkpoint at the time. The number goes when no *reader* below its limit is left.
Readers are the checkpoints under way; checkpoints given up and not yet followed by a complete
checkpoint (others may build on their files); and checkpoints given up with a limit above some other
reader. Complete checkpoints are no readers: their files are known, and count until the checkpoints
go. Besides, a given-up checkpoint goes only when a checkpoint triggered later is complete: until
then some worker may not have heard of the end, and may be writing.

Going takes two steps, since storage may refuse each. First the metadata is withdrawn (`collect`,
answered by `withdrawn`): until this is certain the checkpoint may look complete, so all its files
count. Then its files are deleted (`deletable`, answered by `deleted`). Files that storage refused
to delete are handed out again the next time. A given-up checkpoint is handed out once more when yet
another checkpoint is complete: an upload may have arrived after the first deletion. The first
checkpoint of an attempt is handed out twice even if complete: workers of the attempt before may
live on, cut off, and write pieces of their in-flight logs under this number.

Source: Flink's SharedStateRegistry (the idea of counting; behaviour, not code). Deviation: whole
checkpoints are let go, not single references, and files of a given-up checkpoint may be named.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .layout import owner
from .metadata import CheckpointMetadata


def references(metadata: CheckpointMetadata) -> frozenset[str]:
    """Return every file that a restore of the checkpoint would read: state and in-flight data.

    Paths are relative to the job's folder. Every name of a file in metadata must be counted here,
    and only here.
    """
    paths: set[str] = set()
    for subtask in metadata.subtasks:
        paths |= {handle.path for handle in subtask.states}
        paths |= {buffer.path for handle in subtask.inflight for buffer in handle.buffers}
        for database in subtask.databases:
            for files in (database.schemas, database.shared, database.own):
                paths |= {file.path for file in files}
    return frozenset(paths)


def named_of_others(metadata: CheckpointMetadata) -> frozenset[str]:
    """Return the files of other checkpoints that the checkpoint needs; none for a savepoint."""
    if metadata.savepoint:
        return frozenset()
    return frozenset(p for p in references(metadata) if owner(p) != metadata.checkpoint)


@dataclass(frozen=True, slots=True)
class Deletable:
    """Files to delete now: all files of checkpoints without metadata except `keep`, and single
    files kept earlier.

    `savepoints`: (number, URL of the directory; empty: the job's own) of given-up savepoints, which
    have no owner.
    """

    checkpoints: tuple[int, ...] = ()
    keep: frozenset[str] = frozenset()
    files: tuple[str, ...] = ()
    savepoints: tuple[tuple[int, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        """There is nothing to delete."""
        return not (self.checkpoints or self.files or self.savepoints)


class SharedStateRegistry:
    """Files of one job's checkpoints. Numbers are begun in ascending order and never twice."""

    def __init__(self) -> None:
        self._under_way: set[int] = set()
        #: {complete checkpoint: files it names}, until it is withdrawn.
        self._complete: dict[int, frozenset[str]] = {}
        #: {given up and not withdrawn: the first one triggered after that}.
        self._given_up: dict[int, int] = {}
        #: {checkpoint: it goes when no reader is below this number}, until it is withdrawn.
        self._limits: dict[int, int] = {}
        #: Collected, and storage has not answered.
        self._withdrawing: set[int] = set()
        #: Withdrawn, and what was written for them is to be deleted.
        self._withdrawn: set[int] = set()
        #: First checkpoints of attempts, not withdrawn: older attempts may log under their numbers.
        self._firsts: set[int] = set()
        #: {deleted once, perhaps too early: deleted again when this one or a later is complete}.
        self._late: dict[int, int] = {}
        #: Files that outlive their checkpoint: others name them, or storage refused to delete them.
        self._kept: set[str] = set()
        self._checkpoint_next = 0
        self._newest_complete = 0
        self._ended = False

    def adopt(self, checkpoint: int, files: frozenset[str]) -> None:
        """Count a checkpoint let go, or complete before this registry began."""
        assert checkpoint not in self._withdrawing, f"chk-{checkpoint} is about to go"
        if checkpoint not in self._complete:
            self._firsts.add(checkpoint)  # It may have been: an earlier run began it.
        self._complete[checkpoint] = files
        self._limits.pop(checkpoint, None)
        known = {None, *self._complete, *self._given_up, *self._under_way, *self._limits}
        self._kept |= {path for path in files if owner(path) not in known}
        self._checkpoint_next = max(self._checkpoint_next, checkpoint + 1)

    def adopt_abandoned(self, checkpoint: int) -> None:
        """Note a number with files of an earlier driver that completed no checkpoint of it.

        No checkpoint builds upon the files, but complete ones, adopted later, may name some.
        """
        assert not self._complete.keys() | self._under_way, "adopt what was abandoned first"
        self._limits[checkpoint] = 0
        self._checkpoint_next = max(self._checkpoint_next, checkpoint + 1)

    def attempt_begins(self, checkpoint_next: int) -> None:
        """Note the first checkpoint of a new attempt."""
        self._firsts.add(checkpoint_next)

    def begin(self, checkpoint: int) -> None:
        """Note a checkpoint about to be triggered: from now on workers may write its files."""
        assert checkpoint >= self._checkpoint_next, f"chk-{checkpoint} is begun out of order"
        self._under_way.add(checkpoint)
        self._checkpoint_next = checkpoint + 1

    def complete(self, checkpoint: int, files: frozenset[str]) -> None:
        """Note a complete checkpoint and its `files`; later ones build upon no older files."""
        self._under_way.remove(checkpoint)
        assert checkpoint > self._newest_complete, "an older one came later"
        self._newest_complete = checkpoint
        self._complete[checkpoint] = files
        for older in self._given_up:
            if older < checkpoint:
                self._limits.setdefault(older, self._checkpoint_next)
        self._look_again(checkpoint)

    def save(self, checkpoint: int) -> None:
        """Note a complete savepoint: the named files are the user's, all other files under this
        number are garbage.
        """
        self.give_up(checkpoint)
        # Every worker had its part, so no worker writes under this number once any later one is
        # complete.
        self._given_up[checkpoint] = checkpoint + 1

    def give_up(self, checkpoint: int) -> None:
        """Note a checkpoint that will never be complete.

        Others may name its files until a newer checkpoint is complete.
        """
        self._under_way.remove(checkpoint)
        self._given_up[checkpoint] = self._checkpoint_next
        if checkpoint < self._newest_complete:
            self._limits[checkpoint] = self._checkpoint_next

    def let_go(self, checkpoint: int) -> None:
        """The complete checkpoint is not retained any longer."""
        assert checkpoint in self._complete, f"chk-{checkpoint} is not complete"
        self._limits[checkpoint] = self._checkpoint_next

    def forget(self, checkpoint: int) -> None:
        """Stop counting a damaged checkpoint, and keep its files for inspection."""
        self._complete.pop(checkpoint, None)
        self._limits.pop(checkpoint, None)

    def end(self) -> None:
        """Note the end of all checkpoints: files of given-up checkpoints become garbage.

        Files that come later belong to the next run.
        """
        assert not self._under_way, "give up first what is under way"
        self._ended = True
        for checkpoint in self._given_up:
            self._limits.setdefault(checkpoint, self._checkpoint_next)
        self._look_again(self._checkpoint_next)

    def _look_again(self, complete: int) -> None:
        again = {number for number, next_ in self._late.items() if next_ <= complete}
        self._late = {n: next_ for n, next_ in self._late.items() if n not in again}
        self._withdrawn |= again

    # --- deletion ---------------------------------------------------------------------------------

    def collect(self) -> tuple[int, ...]:
        """Return checkpoints whose metadata may be withdrawn now, sorted.

        Each is returned once, and again only if `withdrawn` leaves the number out.
        """
        floor = self._floor()
        go = tuple(
            number
            for number, limit in sorted(self._limits.items())
            if number not in self._withdrawing
            and limit <= floor
            and (self._ended or self._given_up.get(number, 0) <= self._newest_complete)
        )
        self._withdrawing.update(go)
        return go

    def withdrawn(self, asked: Collection[int], gone: Collection[int]) -> None:
        """Note checkpoints that certainly have no metadata, now and in future.

        Their files count no more.
        """
        self._withdrawing -= set(asked)
        for number in gone:
            del self._limits[number]
            self._complete.pop(number, None)
            if self._given_up.pop(number, None) is not None or number in self._firsts:
                self._late[number] = self._checkpoint_next
            self._firsts.discard(number)
            self._withdrawn.add(number)

    def deletable(self) -> Deletable:
        """Return files to delete now; each once, and again only if `deleted` names the file."""
        named = frozenset[str]().union(*self._complete.values())
        go, self._withdrawn = tuple(sorted(self._withdrawn)), set()
        files = tuple(sorted(self._kept - named))
        keep = frozenset(path for path in named if owner(path) in go)
        self._kept = (self._kept & named) | keep
        return Deletable(go, keep, files)

    def deleted(self, left: Deletable) -> None:
        """Note the deletion of all files handed out, except `left`."""
        self._withdrawn.update(left.checkpoints, (number for number, _ in left.savepoints))
        self._kept.update(left.files)

    def knows(self, checkpoint: int) -> bool:
        """Return whether the checkpoint is under way, or given up with files left to delete."""
        return (
            checkpoint in self._under_way
            or checkpoint in self._given_up
            or checkpoint in self._withdrawn
            or checkpoint in self._late
        )

    def _floor(self) -> int:
        """The lowest reader."""
        readers = self._under_way | (self._given_up.keys() - self._limits.keys())
        # A given-up checkpoint's files may be named while some worker has not heard of a newer
        # complete one.
        waiting = self._given_up.keys() & self._limits.keys()
        while readers and (more := {n for n in waiting if self._limits[n] > min(readers)}):
            readers |= more
            waiting -= more
        return min(readers, default=self._checkpoint_next)

    def describe(self) -> str:
        """The whole state as stable text."""
        return (
            f"under_way={sorted(self._under_way)} complete={sorted(self._complete)}"
            f" given_up={sorted(self._given_up)} limits={dict(sorted(self._limits.items()))}"
            f" withdrawing={sorted(self._withdrawing)} withdrawn={sorted(self._withdrawn)}"
            f" late={dict(sorted(self._late.items()))} kept={sorted(self._kept)}"
        )
