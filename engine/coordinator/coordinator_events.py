"""Events and effects of the coordinator.

Events are facts, effects are orders; `CoordinatorEffect` says in which order effects come. Each
effect on storage or sinks is answered by exactly one event, which names the effect. A part of the
coordinator (`workers.py`, `checkpoints.py`) also returns findings, each in place among effects: the
coordinator acts on findings, and no driver sees any.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.channels.events import CheckpointMode
from headrace.recovery.history import EpochStart
from headrace.recovery.links import CheckpointLink
from headrace.recovery.metadata import CheckpointMetadata, TransactionRecord
from headrace.recovery.registry import Deletable

from ..contract.messages import Register, Shutdown, ToCoordinator, ToWorker

# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A worker's message has arrived, the registration of a new worker included."""

    connection: int
    message: ToCoordinator


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """A connection has ended."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The launcher saw an incarnation of a worker end, perhaps before the worker registered."""

    worker: int
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class LauncherFailed:
    """Workers cannot be started any more, or no older checkpoint can be looked for."""

    reason: str


@dataclass(frozen=True, slots=True)
class EpochClaimed:
    """Answers ClaimEpoch: the epoch is this coordinator's."""

    epoch: int


@dataclass(frozen=True, slots=True)
class EpochClaimFailed:
    """Answers ClaimEpoch: storage failed; the claim may have created epochs up to `tried`."""

    reason: str
    tried: int = 0


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another coordinator of this job has claimed a higher epoch: this coordinator must stop.

    Answers ClaimEpoch or RecoverSinks; precedes MetadataDiscarded after WriteMetadata.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class SinksRecovered:
    """Answers RecoverSinks: named transactions are committed, all others aborted."""

    epoch: int


@dataclass(frozen=True, slots=True)
class SinkFailed:
    """Answers CommitTransactions, or RecoverSinks (None): the outcome is unknown.

    `lost`: some transaction can never be committed.
    """

    checkpoint: int | None
    reason: str
    lost: bool = False


@dataclass(frozen=True, slots=True)
class MetadataWritten:
    """Answers WriteMetadata: the checkpoint is durable and visible."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class MetadataDiscarded:
    """Answers WriteMetadata: the checkpoint is not visible, and never will be."""

    checkpoint: int
    reason: str


@dataclass(frozen=True, slots=True)
class TransactionsCommitted:
    """Answers CommitTransactions: every transaction of the checkpoint is committed."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class CheckpointsWithdrawn:
    """Answers WithdrawCheckpoints: the checkpoints in `gone` certainly have no metadata."""

    asked: tuple[int, ...]
    gone: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FilesDeleted:
    """Answers DeleteFiles: all is deleted except `left`, which another order may name again."""

    left: Deletable


@dataclass(frozen=True, slots=True)
class CheckpointFound:
    """Answers FindCheckpoint: the newest older checkpoint that can be read; None: none is left."""

    metadata: CheckpointMetadata | None


@dataclass(frozen=True, slots=True)
class ClaimReleased:
    """Answers ReleaseClaim.

    Attributes:
        left: a sentence about files that stay; empty: none do.
        again: the release is to be tried again.
    """

    link: CheckpointLink
    left: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True)
class SavepointOrder:
    """Properties of a savepoint.

    Attributes:
        target: URL of the directory; empty: the job's own.
        mode: how barriers travel; None: the job's mode.
        number_min: lowest free number of the directory.
    """

    target: str = ""
    mode: CheckpointMode | None = None
    number_min: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """A user wants a checkpoint now, or a savepoint; RequestAnswered repeats `request`."""

    request: int
    savepoint: SavepointOrder | None = None


class StopKind(Enum):
    """How to end a job before its own end."""

    #: Take a checkpoint, commit what it covers, then end.
    WITH_CHECKPOINT = "with checkpoint"
    #: End the input, work on all records to the end, take a checkpoint, commit, then end.
    DRAIN = "drain"
    #: End at once; transactions that no checkpoint covers are not committed.
    NOW = "now"


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A user wants the job to end.

    Attributes:
        mode: of the last checkpoint, which then replaces checkpoints under way; None: the job's.
        savepoint: the job ends with this savepoint instead, by which sinks commit. If the
            savepoint fails, the job goes on.
        request: answered by RequestAnswered when the savepoint is complete or given up.
    """

    kind: StopKind
    mode: CheckpointMode | None = None
    savepoint: SavepointOrder | None = None
    request: int | None = None


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time of `next_deadline_ns` has come."""


@dataclass(frozen=True, slots=True)
class DriverSlept:
    """The coordinator's own process stood still for so long: user code in it held the GIL, or the
    process was stopped.
    """

    slept_ns: int


CoordinatorEvent = (
    MessageReceived
    | ConnectionLost
    | WorkerExited
    | LauncherFailed
    | EpochClaimed
    | EpochClaimFailed
    | Superseded
    | SinksRecovered
    | SinkFailed
    | MetadataWritten
    | MetadataDiscarded
    | TransactionsCommitted
    | CheckpointsWithdrawn
    | FilesDeleted
    | CheckpointFound
    | ClaimReleased
    | CheckpointRequested
    | StopRequested
    | TimePassed
    | DriverSlept
)

# --- effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendMessage:
    """Send a message to a worker. Messages of one connection arrive in order, or not at all."""

    connection: int
    message: ToWorker


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close a connection after all earlier messages have left."""

    connection: int


@dataclass(frozen=True, slots=True)
class ClaimEpoch:
    """Create the smallest free epoch above `above`, exclusively.

    Answered by EpochClaimed, EpochClaimFailed or Superseded.
    """

    above: int


@dataclass(frozen=True, slots=True)
class RecoverSinks:
    """Commit these transactions (again), and abort every other open transaction of the job, up to
    this epoch.

    Answered by SinksRecovered, SinkFailed or Superseded.

    Attributes:
        start: noted before anything is aborted; None: the epoch noted its start before.
        restored: number of the checkpoint from which the attempt starts; 0: from nothing.
    """

    epoch: int
    transactions: tuple[TransactionRecord, ...]
    start: EpochStart | None = None
    restored: int = 0


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Make a checkpoint durable, or else remove its metadata for certain.

    Answered by MetadataWritten or MetadataDiscarded.

    Attributes:
        target: URL of a savepoint's directory; empty: the job's own.
        last: the job ends with this savepoint, the newest point of its history.
    """

    metadata: CheckpointMetadata
    target: str = ""
    last: bool = False


@dataclass(frozen=True, slots=True)
class CommitTransactions:
    """Commit the transactions of a complete checkpoint.

    Answered by TransactionsCommitted or SinkFailed.
    """

    checkpoint: int
    transactions: tuple[TransactionRecord, ...]


@dataclass(frozen=True, slots=True)
class WithdrawCheckpoints:
    """Delete the metadata of checkpoints, and no other file: checkpoints share files.

    Answered by CheckpointsWithdrawn. `patient`: repeat a refused deletion before the answer.
    """

    checkpoints: tuple[int, ...]
    patient: bool = False


@dataclass(frozen=True, slots=True)
class DeleteFiles:
    """Delete files without a checkpoint, of epochs up to `epoch`. Answered by FilesDeleted.

    `patient`: as above.
    """

    what: Deletable
    patient: bool = False
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    """Delete a claimed checkpoint in another folder, and the record here.

    Answered by ClaimReleased. `patient`: as above.
    """

    link: CheckpointLink
    patient: bool = False


@dataclass(frozen=True, slots=True)
class FindCheckpoint:
    """Look for the newest complete checkpoint older than `below`.

    Answered by CheckpointFound, or by LauncherFailed when storage fails.
    """

    below: int


@dataclass(frozen=True, slots=True)
class ReplaceWorker:
    """Start another incarnation of a lost worker (Spark does so by itself)."""

    worker: int


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """Tell a user that `checkpoint` is complete, or why not (`failure`)."""

    request: int
    checkpoint: int | None
    failure: str


class NoticeKind(Enum):
    """Subject of a notice; stable words for logs and `--json`."""

    RUNNING = "running"
    CHECKPOINT = "checkpoint"
    CHECKPOINT_FAILED = "checkpoint_failed"
    SAVEPOINT = "savepoint"
    ATTEMPT_FAILED = "attempt_failed"
    WORKER_LOST = "worker_lost"
    RESCALED = "rescaled"
    #: Of a job of several regions: which went back, how far, and why.
    FAILOVER = "failover"
    FINISHED = "finished"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class FailedCheckpoint:
    """A checkpoint that was given up, and why. `created_ms`: when it was triggered."""

    checkpoint: int
    mode: str
    created_ms: int
    savepoint: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Tell people and tests.

    Attributes:
        checkpoint: the complete one.
        failed: the one that was given up.
        at_ms: when the driver heard of it, in milliseconds since 1970; the driver's to set.
    """

    kind: NoticeKind
    text: str
    checkpoint: CheckpointMetadata | None = None
    failed: FailedCheckpoint | None = None
    at_ms: int = 0


class Outcome(Enum):
    """How a job ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job is over; `details`, for people, may hold the user program's traceback."""

    outcome: Outcome
    reason: str
    details: str


#: Order is law: effects are performed as listed, those of a step before those of the next.
#:
#: - Orders to storage are carried out one after the other, likewise orders to sinks.
#: - WriteMetadata: every worker has acknowledged, and no other metadata is being written.
#: - CommitTransactions: MetadataWritten of the checkpoint has come. Commits follow the checkpoints.
#: - ClaimEpoch: no metadata, commit or search is unanswered, for a checkpoint that became visible
#:   after the choice of an older one would be a second history.
#: - RecoverSinks: the epoch is claimed. No worker is told to deploy before SinksRecovered.
#: - DeleteFiles: CheckpointsWithdrawn has named each checkpoint in it. Of WithdrawCheckpoints and
#:   DeleteFiles one at most is unanswered.
#: - JobEnded: the last effect but for the dismissal of late workers; every member was told to stop.
CoordinatorEffect = (
    SendMessage
    | CloseConnection
    | ClaimEpoch
    | RecoverSinks
    | WriteMetadata
    | CommitTransactions
    | WithdrawCheckpoints
    | DeleteFiles
    | ReleaseClaim
    | FindCheckpoint
    | ReplaceWorker
    | RequestAnswered
    | Notice
    | JobEnded
)

# --- findings: what a part of the coordinator returns beside effects ------------------------------


@dataclass(frozen=True, slots=True)
class AttemptBroken:
    """The running attempt, if any, must fail."""

    reason: str


@dataclass(frozen=True, slots=True)
class JobBroken:
    """The job must fail."""

    reason: str


@dataclass(frozen=True, slots=True)
class LastCheckpointCompleted:
    """The checkpoint or savepoint with which the job ends is durable.

    `whole`: the cut came after the end of all input, so no record is missing.
    """

    checkpoint: int
    savepoint: bool
    whole: bool


@dataclass(frozen=True, slots=True)
class LastSavepointFailed:
    """The savepoint with which the job was to end was given up."""

    reason: str


Finding = AttemptBroken | JobBroken | LastCheckpointCompleted | LastSavepointFailed
PartEffect = CoordinatorEffect | Finding


def turned_away(event: CoordinatorEvent) -> list[CoordinatorEffect]:
    """After the end of the job: send home workers that register, and ignore other events."""
    match event:
        case MessageReceived(connection, Register()):
            return [SendMessage(connection, Shutdown("the job has ended"))]
        case _:
            return []
