"""Events and effects of the worker machine; effects are performed in order.

An event that answers an effect carries the effect's epoch: the machine drops late answers by epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.channels.wire import BufferFrame, CreditFrame, EventFrame
from headrace.inflight.handle import ChannelStateHandle
from headrace.recovery.handles import DatabaseHandle, StateHandle
from headrace.recovery.metadata import SubtaskSnapshot

from ..contract import messages as m
from ..contract.execution import SubtaskId
from ..operators.work import (
    WorkDone,
)
from .subtask_events import (
    BufferRead,
    CommitWork,
    Cut,
    DiskUsed,
    LogBuffer,
    ReadBuffer,
    RunWork,
    TakeSnapshot,
    UseDisk,
)

DataFrame = BufferFrame | EventFrame | CreditFrame

# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ControlReceived:
    """The coordinator sent a message."""

    message: m.ToWorker


@dataclass(frozen=True, slots=True)
class ControlLost:
    """The connection to the coordinator has ended."""

    reason: str


@dataclass(frozen=True, slots=True)
class AttemptLoaded:
    """Operators are open and restored. `hearing`: subtasks whose source hears of checkpoints."""

    epoch: int
    hearing: frozenset[SubtaskId] = frozenset()


@dataclass(frozen=True, slots=True)
class OperatorsOpened:
    """The operators of one subtask are open and restored; others may still load."""

    epoch: int
    subtask: SubtaskId


@dataclass(frozen=True, slots=True)
class AttemptLoadFailed:
    """The checkpoint is damaged: operators could not be restored."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """The data connection to a worker is open."""

    epoch: int
    worker: int


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The data connection to a worker has ended."""

    epoch: int
    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class FramesReceived:
    """Frames of a peer came in, in this order."""

    epoch: int
    worker: int
    frames: tuple[DataFrame, ...]


@dataclass(frozen=True, slots=True)
class PeerTook:
    """The socket towards a peer took data.

    Attributes:
        size_bytes: as charged to credit, since the last event of this kind.
        dry: no data waits for the socket.
    """

    epoch: int
    worker: int
    size_bytes: int
    dry: bool


@dataclass(frozen=True, slots=True)
class WorkEnded:
    """The subtask's work ended well."""

    epoch: int
    subtask: SubtaskId
    done: WorkDone


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """User code or an operator raised. `fatal`: a restart would fail in the same way."""

    epoch: int
    subtask: SubtaskId
    reason: str
    details: str
    fatal: bool


@dataclass(frozen=True, slots=True)
class CheckpointPersisted:
    """The worker's part of a checkpoint is durable: states and in-flight data, by subtask."""

    epoch: int
    checkpoint: int
    states: dict[SubtaskId, list[StateHandle]]
    inflight: dict[SubtaskId, list[ChannelStateHandle]]
    sync_ns: dict[SubtaskId, int]
    async_ns: int
    databases: dict[SubtaskId, list[DatabaseHandle]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointPersistFailed:
    """The worker's part of a checkpoint could not be stored."""

    epoch: int
    checkpoint: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReadEnded:
    """A stored buffer was read for a subtask's replay."""

    epoch: int
    subtask: SubtaskId
    read: BufferRead


@dataclass(frozen=True, slots=True)
class SpillEnded:
    """An order of a subtask to the local disk was carried out, or failed."""

    epoch: int
    subtask: SubtaskId
    used: DiskUsed


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
    | OperatorsOpened
    | AttemptLoadFailed
    | PeerConnected
    | PeerLost
    | FramesReceived
    | PeerTook
    | WorkEnded
    | WorkFailed
    | CheckpointPersisted
    | CheckpointPersistFailed
    | ReadEnded
    | SpillEnded
    | ReadCorrupt
    | TimePassed
)

# --- effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Hand the frame to the transport towards `worker`."""

    epoch: int
    worker: int
    frame: DataFrame


@dataclass(frozen=True, slots=True)
class PersistCheckpoint:
    """Write the frozen state of all subtasks to one file, durably; every subtask has cut.

    `savepoint`: URL of a savepoint's directory (empty: the job's own), which gets all data that it
    needs; None: a checkpoint.
    `full`: a checkpoint that names no file of an older one.
    """

    epoch: int
    checkpoint: int
    cuts: tuple[Cut, ...]
    savepoint: str | None = None
    full: bool = False


@dataclass(frozen=True, slots=True)
class LoadAttempt:
    """Make, open and restore the operators of every subtask held.

    AttemptLoaded or AttemptLoadFailed follows. The state is read from checkpoint directory `origin`
    (a URL; empty: the worker's own), job `job`.
    """

    epoch: int
    checkpoint: int
    job: str
    origin: str
    subtasks: tuple[SubtaskId, ...]
    restore: tuple[SubtaskSnapshot, ...]


@dataclass(frozen=True, slots=True)
class DropAttempt:
    """Abandon the epoch's operators, works, snapshots and connections."""

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
    """Let later checkpoints name the data of a complete checkpoint."""

    epoch: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Report:
    """Tell the coordinator."""

    message: m.ToCoordinator


@dataclass(frozen=True, slots=True)
class StopWorker:
    """End the process. `clean`: the coordinator asked for the end."""

    reason: str
    clean: bool


WorkerEffect = (
    RunWork
    | CommitWork
    | LogBuffer
    | TakeSnapshot
    | ReadBuffer
    | UseDisk
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
