"""Events and effects of the coordinator: what has happened, and what it wants done, in order.

The effects that touch storage or sinks answer with exactly one event each, carrying what identifies the effect. Sink effects
(`RecoverSinks`, `CommitTransactions`) must be carried out one after the other, in the order in which they were emitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from headrace.channels.events import CheckpointMode
from headrace.recovery.elsewhere import Elsewhere
from headrace.recovery.metadata import CheckpointMetadata, TransactionRecord
from headrace.recovery.registry import Deletable

from ..contract import messages as m
from .pending import SavepointOrder

# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MessageReceived:
    connection: int
    message: m.ToCoordinator


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The launcher saw incarnation `incarnation` end, perhaps before its connection told, perhaps before it ever registered."""

    worker: int
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class LauncherFailed:
    """Workers cannot be started any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class EpochClaimed:
    epoch: int


@dataclass(frozen=True, slots=True)
class EpochClaimFailed:
    """Storage failed; the claim will be repeated. `tried`: the highest epoch that we may have created nevertheless."""

    reason: str
    tried: int = 0


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another coordinator of this job has claimed a higher epoch: this one must stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class SinksRecovered:
    epoch: int


@dataclass(frozen=True, slots=True)
class SinkFailed:
    """The commit of `checkpoint`, or a recovery (None), did not work; its outcome is unknown, so the next attempt repeats it."""

    checkpoint: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class MetadataWritten:
    """The checkpoint is durable and visible."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class MetadataDiscarded:
    """The write failed and it is certain that the checkpoint is not, and never will be, visible."""

    checkpoint: int
    reason: str


@dataclass(frozen=True, slots=True)
class TransactionsCommitted:
    checkpoint: int


@dataclass(frozen=True, slots=True)
class CheckpointsWithdrawn:
    """Answer to WithdrawCheckpoints: of those asked for, it is certain of `gone` that they have no metadata (any more)."""

    asked: tuple[int, ...]
    gone: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FilesDeleted:
    """Answer to DeleteFiles: all is gone but what is `left`, which may be asked for again."""

    left: Deletable


@dataclass(frozen=True, slots=True)
class CheckpointFound:
    """Answer to FindCheckpoint: the newest usable one below; None: none is left."""

    metadata: CheckpointMetadata | None


@dataclass(frozen=True, slots=True)
class ClaimReleased:
    """Answer to ReleaseClaim. `left`: what stays, a sentence; empty: nothing. `again`: it is to be tried again."""

    place: Elsewhere
    left: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """Somebody wants a checkpoint now, or a savepoint; answered by RequestAnswered with the same number."""

    request: int
    savepoint: SavepointOrder | None = None


class StopKind(Enum):
    """How to end a job that has not ended by itself."""

    #: Take a checkpoint, commit what it covers, then end.
    WITH_CHECKPOINT = "with checkpoint"
    #: End the input, let everything that was read be worked on to its end, take a checkpoint, commit, then end.
    DRAIN = "drain"
    #: End at once; what no checkpoint covers is not committed.
    NOW = "now"


@dataclass(frozen=True, slots=True)
class StopRequested:
    """End the job.

    Attributes:
        mode: of the last checkpoint; None: the job's own. With one, checkpoints under way are given up for it.
        savepoint: the job ends with this savepoint instead, by which its sinks commit. If it fails the job goes on.
        request: answered by RequestAnswered when the savepoint is complete, or will never be.
    """

    kind: StopKind
    mode: CheckpointMode | None = None
    savepoint: SavepointOrder | None = None
    request: int | None = None


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time that `next_deadline_ns` named has come."""


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
)

# --- effects ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SendMessage:
    connection: int
    message: m.ToWorker


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """Close after what was sent before has left."""

    connection: int


@dataclass(frozen=True, slots=True)
class ClaimEpoch:
    """Create the smallest epoch above `above` that nobody has, exclusively."""

    above: int


@dataclass(frozen=True, slots=True)
class RecoverSinks:
    """Commit these (again) and abort every other open transaction of the job."""

    epoch: int
    transactions: tuple[TransactionRecord, ...]


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Make the checkpoint durable. If that fails, remove it for certain before answering MetadataDiscarded.

    `target`: URL of the directory of a savepoint that does not go to the job's own. `last`: it is the savepoint with which the job ends,
    and so the newest point of its history.
    """

    metadata: CheckpointMetadata
    target: str = ""
    last: bool = False


@dataclass(frozen=True, slots=True)
class CommitTransactions:
    checkpoint: int
    transactions: tuple[TransactionRecord, ...]


@dataclass(frozen=True, slots=True)
class WithdrawCheckpoints:
    """Delete the metadata of checkpoints that are let go, and no other file: one may name files of another.

    `patient`: the job ends; what storage refuses is tried a few more times before the answer.
    """

    checkpoints: tuple[int, ...]
    patient: bool = False


@dataclass(frozen=True, slots=True)
class DeleteFiles:
    """Delete what nothing refers to any more; every checkpoint in it has been withdrawn. `patient`: see WithdrawCheckpoints."""

    what: Deletable
    patient: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    """Delete what was claimed in another folder, and the record of it; nothing here reads it any more. `patient`: try several times."""

    place: Elsewhere
    patient: bool = False


@dataclass(frozen=True, slots=True)
class FindCheckpoint:
    """Look for the newest complete checkpoint older than `below`."""

    below: int


@dataclass(frozen=True, slots=True)
class ReplaceWorker:
    """The worker is lost: see that another incarnation starts (Spark does so by itself)."""

    worker: int


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """`checkpoint` completed, or `failure` says why not."""

    request: int
    checkpoint: int | None
    failure: str


class NoticeKind(Enum):
    """What a notice is about; stable words for logs and `--json`."""

    RUNNING = "running"
    CHECKPOINT = "checkpoint"
    CHECKPOINT_FAILED = "checkpoint_failed"
    SAVEPOINT = "savepoint"
    ATTEMPT_FAILED = "attempt_failed"
    WORKER_LOST = "worker_lost"
    RESCALED = "rescaled"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that people and tests want to know; changes nothing."""

    kind: NoticeKind
    text: str
    checkpoint: CheckpointMetadata | None = None


class Outcome(Enum):
    """How a job ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class JobEnded:
    """Last effect: workers are told to stop; `reason` and `details` (a user's traceback, say) are for people."""

    outcome: Outcome
    reason: str
    details: str


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


def turned_away(event: CoordinatorEvent) -> list[CoordinatorEffect]:
    """A worker that comes when all is over must not wait for something to do."""
    match event:
        case MessageReceived(connection, m.Register()):
            return [SendMessage(connection, m.Shutdown("the job has ended"))]
        case _:
            return []
