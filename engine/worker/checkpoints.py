"""The checkpoints of one attempt at one worker, from the first cut until the acknowledgement.

When every subtask has cut and the trigger has been heard, one file is written for all of them; when
it is durable, the coordinator gets the worker's part of the metadata.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.recovery import metadata
from headrace.recovery.metadata import SubtaskSnapshot, TransactionRecord
from headrace.recovery.replays import SubtaskReplay

from ..contract import messages as m
from ..contract.execution import ExecutionPlan, SubtaskId
from .subtask_events import Cut, Hold
from .worker_events import CheckpointPersisted, PersistCheckpoint


@dataclass(slots=True)
class _Checkpoint:
    """One checkpoint. `savepoint`, `full`: see `PersistCheckpoint`; `ordered`: the write was."""

    cuts: list[Cut] = field(default_factory=list)
    savepoint: str | None = None
    full: bool = False
    ordered: bool = False


class Checkpoints:
    """Checkpoints under way at a worker that holds `subtasks` subtasks."""

    def __init__(self, epoch: int, plan: ExecutionPlan, subtasks: int) -> None:
        self._epoch = epoch
        self._plan = plan
        self._subtasks = subtasks
        #: The newest checkpoint whose trigger has been heard.
        self._triggered = 0
        #: {number: the checkpoint}; removed when acknowledged or given up.
        self._open: dict[int, _Checkpoint] = {}

    def cut(self, cut: Cut) -> list[PersistCheckpoint]:
        """A subtask has cut."""
        checkpoint = self._open.setdefault(cut.checkpoint, _Checkpoint())
        assert all(c.subtask != cut.subtask for c in checkpoint.cuts), f"{cut.subtask}: cut twice"
        checkpoint.cuts.append(cut)
        return self._orders()

    def triggered(
        self, number: int, savepoint: str | None, *, full: bool = False
    ) -> list[PersistCheckpoint]:
        """The coordinator's trigger has come; a peer's barrier may have come first.

        A write names data of checkpoints that completed before the trigger, so it waits for the
        trigger. Otherwise it could name files that the coordinator has let go, in the belief that
        all workers know of a newer checkpoint.
        """
        self._triggered = number
        if savepoint is not None or full:
            checkpoint = self._open.setdefault(number, _Checkpoint())
            checkpoint.savepoint, checkpoint.full = savepoint, full
        return self._orders()

    def given_up(self, number: int) -> None:
        """Forget a checkpoint."""
        self._open.pop(number, None)

    def persisted(self, event: CheckpointPersisted, now_ns: int) -> m.Acknowledge | None:
        """The worker's part is durable. None: the checkpoint was given up."""
        checkpoint = self._open.pop(event.checkpoint, None)
        if checkpoint is None:
            return None
        return m.Acknowledge(
            epoch=event.epoch,
            checkpoint=event.checkpoint,
            subtasks=[self._snapshot(cut, event, now_ns) for cut in checkpoint.cuts],
            transactions=[
                TransactionRecord(sink, transaction.id, transaction.payload, transaction.run)
                for cut in checkpoint.cuts
                for sink, transaction in cut.transactions
            ],
            replayed=[
                SubtaskReplay(cut.subtask.task, cut.subtask.subtask, list(cut.replayed))
                for cut in checkpoint.cuts
                if cut.replayed
            ],
        )

    @property
    def is_cutting(self) -> bool:
        """Some subtask has cut for a checkpoint whose write is not ordered."""
        return any(c.cuts and not c.ordered for c in self._open.values())

    def _orders(self) -> list[PersistCheckpoint]:
        orders: list[PersistCheckpoint] = []
        for number, checkpoint in sorted(self._open.items()):
            is_cut = len(checkpoint.cuts) == self._subtasks
            if is_cut and not checkpoint.ordered and number <= self._triggered:
                checkpoint.ordered = True
                cuts = tuple(checkpoint.cuts)
                orders.append(
                    PersistCheckpoint(
                        self._epoch, number, cuts, checkpoint.savepoint, checkpoint.full
                    )
                )
        return orders

    def _snapshot(self, cut: Cut, event: CheckpointPersisted, now_ns: int) -> SubtaskSnapshot:
        return SubtaskSnapshot(
            task=cut.subtask.task,
            index=cut.subtask.subtask,
            finished=cut.finished,
            states=event.states[cut.subtask],
            inflight=event.inflight[cut.subtask],
            received=list(cut.received),
            sent=list(cut.sent),
            start_delay_ns=cut.start_delay_ns,
            alignment_ns=cut.alignment_ns,
            sync_ns=event.sync_ns[cut.subtask],
            async_ns=event.async_ns,
            databases=event.databases.get(cut.subtask, []),
            end_to_end_ns=max(0, now_ns - cut.created_ns),
            holds=[self._hold(cut.subtask, hold) for hold in cut.holds],
            watermark=cut.watermark_ns,
        )

    def _hold(self, subtask: SubtaskId, hold: Hold) -> metadata.Hold:
        """Name channel or operators as the user knows them."""
        if hold.channel is not None:
            edge, producer, consumer = hold.channel
            name = f"{self._plan.edges[edge].key} {producer}>{consumer}"
            return metadata.Hold(hold.kind, name, hold.held_ns)
        task = self._plan.tasks[subtask.task]
        # Only outside effects make an unaligned cut wait, and the user does not know the operators
        # that share the sink's chain.
        operators = task.operators[-1:] if task.is_sink else task.operators
        return metadata.Hold(hold.kind, " > ".join(o.name for o in operators), hold.held_ns)
