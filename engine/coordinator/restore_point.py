"""Which checkpoint the attempts of a job start from, and what follows when that one is damaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot

from ..contract import messages as m
from . import coordinator_events as d
from .ledger import Ledger

#: Translates a checkpoint's subtasks into snapshots in terms of the plan that runs now.
Assign = Callable[[CheckpointMetadata], Sequence[SubtaskSnapshot]]
#: Puts an older checkpoint in terms of the plan's names.
Adapt = Callable[[CheckpointMetadata], CheckpointMetadata]


def as_it_is(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """The `Adapt` of a job in which nothing was renamed. It has a name, so that a machine that holds it can be copied."""
    return metadata


@dataclass(frozen=True, slots=True)
class Start:
    """What an attempt starts from.

    Attributes:
        snapshots: of its subtasks; none: from the beginning.
        checkpoint: its number, 0: none.
        job: name of the job that took it; empty: none.
        origin: URL of the checkpoint directory that it lies in; empty: the job's own.
    """

    snapshots: Sequence[SubtaskSnapshot] = ()
    checkpoint: int = 0
    job: str = ""
    origin: str = ""


class RestorePoint:
    """The newest complete checkpoint of the ledger, or the one that was asked for while there is none.

    Args:
        restore: the checkpoint to start from, or None.
        origin: URL of the checkpoint directory that `restore` lies in; empty: the job's own.
    """

    def __init__(
        self,
        ledger: Ledger,
        restore: CheckpointMetadata | None,
        origin: str,
        assign: Assign,
        adapt: Adapt,
    ) -> None:
        self._ledger = ledger
        self._asked, self._origin = restore, origin
        self._assign, self._adapt = assign, adapt
        self._started_from = restore
        #: An older checkpoint is being looked for.
        self.is_searching = False

    def start(self) -> Start:
        """Choose what the next attempt starts from."""
        chosen = self._started_from = self._ledger.newest
        self._ledger.started(chosen)
        if chosen is None:
            return Start()
        origin = self._origin if chosen is self._asked else ""
        return Start(list(self._assign(chosen)), chosen.checkpoint, chosen.job, origin)

    def describe(self) -> str:
        """What the attempt started from, for people."""
        start = self._started_from
        return "the beginning" if start is None else f"chk-{start.checkpoint}"

    def cannot_be_loaded(
        self, message: m.DeployFailed, effects: list[d.CoordinatorEffect]
    ) -> str | None:
        """A worker could not restore its part. Returns why the job must fail; None: another attempt may do better."""
        if not message.corrupt:
            return message.reason
        newest = self._ledger.newest
        assert newest is not None, "nothing was restored, so nothing can be corrupt"
        if newest is not self._started_from:
            # What is still replayed is of an older one than the newest, which may well be whole: it is tried before it is judged.
            return None
        damaged = newest.checkpoint
        if self._origin and newest is self._asked:
            return f"chk-{damaged} in {self._origin} cannot be restored: {message.reason}"
        text = (
            f"chk-{damaged} cannot be restored ({message.reason}); the one before it is used, so what"
            f" chk-{damaged} had committed to sinks will be written once more"
        )
        effects.append(d.Notice(d.NoticeKind.WARNING, text))
        effects.append(d.FindCheckpoint(damaged))
        self.is_searching = True
        return None

    def found(self, metadata: CheckpointMetadata | None) -> str | None:
        """Go on from an older checkpoint. Returns why the job must fail: without one, to start afresh would write everything once more."""
        self.is_searching = False
        if metadata is not None:
            self._ledger.restored(self._adapt(metadata))
            return None
        damaged = self._ledger.newest
        assert damaged is not None, "nothing was damaged"
        return (
            f"chk-{damaged.checkpoint} cannot be restored, and there is no older one;"
            " start the job without restore to read everything again"
        )
