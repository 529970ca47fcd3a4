"""Events and effects of the worker machine: what has happened to a worker, and what it wants done, in order.

Events that answer an effect carry the epoch it was ordered in, by which the machine drops what comes too late.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.channels.wire import BufferFrame, CreditFrame, EventFrame
from headrace.inflight.handle import ChannelStateHandle
from headrace.recovery.metadata import DatabaseHandle, StateHandle, SubtaskSnapshot

from ..contract import messages as m
from ..operators.work import (
    WorkDone,
)
from .subtask_events import (
    BufferRead,
    CommitWork,
    Cut,
    LogBuffer,
    ReadBuffer,
    RunWork,
    SubtaskId,
    TakeSnapshot,
)

DataFrame = BufferFrame | EventFrame | CreditFrame

# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ControlReceived:
    message: m.ToWorker


@dataclass(frozen=True, slots=True)
class ControlLost:
    reason: str


@dataclass(frozen=True, slots=True)
class AttemptLoaded:
    """Operators are open and restored."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AttemptLoadFailed:
    epoch: int
    reason: str
    corrupt: bool


@dataclass(frozen=True, slots=True)
class PeerConnected:
    epoch: int
    worker: int


@dataclass(frozen=True, slots=True)
class PeerLost:
    epoch: int
    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class FrameReceived:
    epoch: int
    worker: int
    frame: DataFrame


@dataclass(frozen=True, slots=True)
class WorkEnded:
    epoch: int
    subtask: SubtaskId
    done: WorkDone


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """User code or an operator raised. `fatal`: it will again, so a restart is no use."""

    epoch: int
    subtask: SubtaskId
    reason: str
    details: str
    fatal: bool


@dataclass(frozen=True, slots=True)
class CheckpointPersisted:
    """Durable: `states` and in-flight data of every subtask of the worker."""

    epoch: int
    checkpoint: int
    states: dict[SubtaskId, list[StateHandle]]
    inflight: dict[SubtaskId, list[ChannelStateHandle]]
    sync_ns: dict[SubtaskId, int]
    async_ns: int
    databases: dict[SubtaskId, list[DatabaseHandle]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointPersistFailed:
    epoch: int
    checkpoint: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReadEnded:
    """Answer to a ReadBuffer."""

    epoch: int
    subtask: SubtaskId
    read: BufferRead


@dataclass(frozen=True, slots=True)
class ReadCorrupt:
    """In-flight data of the restored checkpoint is missing or damaged."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time that `next_deadline_ns` named has come."""


WorkerEvent = (
    ControlReceived
    | ControlLost
    | AttemptLoaded
    | AttemptLoadFailed
    | PeerConnected
    | PeerLost
    | FrameReceived
    | WorkEnded
    | WorkFailed
    | CheckpointPersisted
    | CheckpointPersistFailed
    | ReadEnded
    | ReadCorrupt
    | TimePassed
)

# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Hand the frame to the transport towards `worker`."""

    epoch: int
    worker: int
    frame: DataFrame


@dataclass(frozen=True, slots=True)
class PersistCheckpoint:
    """Every subtask of the worker has cut: write what the snapshots froze to one file, durably.

    `savepoint`: it is one, for the directory with this URL (empty: the job's own); all that it needs is written.
    """

    epoch: int
    checkpoint: int
    cuts: tuple[Cut, ...]
    savepoint: str | None = None


@dataclass(frozen=True, slots=True)
class LoadAttempt:
    """Make, open and restore the operators of every subtask held. Ends in AttemptLoaded or AttemptLoadFailed.

    The state is read from checkpoint directory `origin` (a URL; empty: the worker's own), job `job`.
    """

    epoch: int
    checkpoint: int
    job: str
    origin: str
    subtasks: tuple[SubtaskId, ...]
    restore: tuple[SubtaskSnapshot, ...]


@dataclass(frozen=True, slots=True)
class DropAttempt:
    """Abandon the epoch's operators, works, snapshots and connections; nothing more of it is wanted."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ConnectPeers:
    """Reach `connect`, be reached by `expect`; each ends in PeerConnected."""

    epoch: int
    connect: tuple[m.PeerAddress, ...]
    expect: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GiveUpCheckpoint:
    """Release the frozen state of a checkpoint that will never be complete."""

    epoch: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class ConfirmCheckpoint:
    """The checkpoint is complete: later ones may name what it stored."""

    epoch: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Report:
    message: m.ToCoordinator


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End the process; `clean` tells whether the coordinator asked for it."""

    reason: str
    clean: bool


WorkerEffect = (
    RunWork
    | CommitWork
    | LogBuffer
    | TakeSnapshot
    | ReadBuffer
    | SendFrame
    | PersistCheckpoint
    | LoadAttempt
    | DropAttempt
    | ConnectPeers
    | GiveUpCheckpoint
    | ConfirmCheckpoint
    | Report
    | StopWorker
)
