"""Control messages between coordinator and workers: closed schemas, MessagePack, no code.

Every message of an attempt carries its epoch; the receiver drops and counts messages of other
epochs.

Source: docs/design.md, "Epochs and fencing".
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from headrace.channels.events import MIN_WATERMARK
from headrace.recovery.handles import SharedFile
from headrace.recovery.metadata import SubtaskSnapshot, TransactionRecord
from headrace.recovery.replays import SubtaskReplay

_T = TypeVar("_T")


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True, array_like=True):
    pass


# --- worker to coordinator ------------------------------------------------------------------------


class Register(_Message, frozen=True):
    """First message of a worker: its data address is `host:port`.

    `incarnation` numbers the starts of this worker.
    """

    worker: int
    incarnation: int
    host: str
    port: int
    pid: int


class Deployed(_Message, frozen=True):
    """The attempt's subtasks are built and restored, and accept data."""

    epoch: int


class DeployFailed(_Message, frozen=True):
    """The attempt could not be deployed: the checkpoint's data is damaged, so another checkpoint
    must be taken.
    """

    epoch: int
    reason: str


class Acknowledge(_Message, frozen=True):
    """All subtasks of the worker have cut, and their reports are durable."""

    epoch: int
    checkpoint: int
    subtasks: list[SubtaskSnapshot]
    transactions: list[TransactionRecord]
    replayed: list[SubtaskReplay] = []


class Decline(_Message, frozen=True):
    """The worker cannot take its part in the checkpoint."""

    epoch: int
    checkpoint: int
    reason: str


class AttemptFailed(_Message, frozen=True):
    """A subtask failed, a peer was lost, or an invariant broke.

    `fatal`: a restart would fail the same way.
    """

    epoch: int
    reason: str
    details: str
    fatal: bool


class TaskFinished(_Message, frozen=True):
    """The subtask has emitted its last record."""

    epoch: int
    task: int
    subtask: int


class LoopProbed(_Message, frozen=True):
    """The answer to `ProbeLoop`, of all the worker's subtasks on the cycle together.

    `at_rest`: none has anything to do, or will have without new records. `sent`, `consumed`:
    records since the attempt began, those that wait to be sent included; 0 unless `at_rest`.
    """

    epoch: int
    wave: int
    at_rest: bool
    sent: int
    consumed: int


class EdgeNumbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One end of an edge at one subtask: bytes that wait, bytes that may wait, and rows that wait
    or are worked on.
    """

    edge: int
    queued_bytes: int
    window_bytes: int
    queued_rows: int = 0


class CallNumbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Calls of one operator, by its place in the chain, since the attempt began.

    `counts`: by length, in the buckets of `worker/calls.py`.
    """

    operator: int
    spent_ns: int
    counts: list[int]


class SubtaskNumbers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Totals of one subtask since the attempt began; times in nanoseconds.

    `watermark_ns`: event time at its end, since 1970. `dropped`: the last failure for which a
    record was dropped, in words. `unspilled`: why records stay in memory that should be on disk.
    `inputs`, `outputs`: by edge. `call_ns`: how long the piece of work under way has run, and
    `operator`: which it calls now, by its place. `gil_ns`: for so long its calls have kept the GIL
    from others. `cut`: its newest complete cut.
    """

    task: int
    subtask: int
    rows_in: int
    rows_out: int
    busy_ns: int
    backpressured_ns: int
    idle_ns: int
    queued_bytes: int
    window_bytes: int
    watermark_ns: int = MIN_WATERMARK
    rows_late: int = 0
    rows_failed: int = 0
    dropped: str = ""
    unspilled: str = ""
    inputs: list[EdgeNumbers] = []
    outputs: list[EdgeNumbers] = []
    calls: list[CallNumbers] = []
    call_ns: int = 0
    operator: int | None = None
    gil_ns: int = 0
    cut: int = 0


class Heartbeat(_Message, frozen=True):
    """The worker lives; sent at least every heartbeat interval."""

    epoch: int
    subtasks: list[SubtaskNumbers]


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A call of an operator under way: the operator's place in its task."""

    task: int
    subtask: int
    operator: int


class Pulse(_Message, frozen=True):
    """The process of a worker lives. Sent by the worker's companion, over a connection of its own.

    `calls`: may hold the worker's GIL, and thereby keep the worker from heartbeats.
    """

    worker: int
    incarnation: int
    calls: list[Call]


class FetchedAhead(_Message, frozen=True):
    """`FetchAhead` is done; this many bytes are here."""

    fetched_bytes: int


# --- coordinator to worker ------------------------------------------------------------------------


class PeerAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Where a worker takes data, and which slots it holds (slot i: subtask i of every task)."""

    worker: int
    host: str
    port: int
    slots: list[int]


class Deploy(_Message, frozen=True):
    """Roll back to the named checkpoint (0: start from nothing) as attempt `epoch`.

    Ends any earlier attempt at once.

    `job` and `origin` name the checkpoint's job and directory (a URL; empty: the job's own).
    `wave`: the first wave of the replay (`recovery/waves.py`).
    """

    epoch: int
    workers: list[PeerAddress]
    checkpoint: int
    job: str
    origin: str
    restore: list[SubtaskSnapshot]
    wave: int = 0


class Start(_Message, frozen=True):
    """All workers are deployed: connect to your peers and run."""

    epoch: int


class BeginWave(_Message, frozen=True):
    """Records in flight of earlier waves are worked on: replay this one. 0: take new records."""

    epoch: int
    wave: int


class Drain(_Message, frozen=True):
    """End the input: sources read nothing more, and all records read so far are worked on to the
    end.
    """

    epoch: int


class ProbeLoop(_Message, frozen=True):
    """Answer whether a loop goes on; `edges` are those inside its cycle. `wave`: numbers the
    question in its attempt.
    """

    epoch: int
    wave: int
    edges: list[int]


class EndLoop(_Message, frozen=True):
    """No record of a loop is anywhere any more: its head, task `task`, ends."""

    epoch: int
    task: int


class Abandon(_Message, frozen=True):
    """The attempt has failed elsewhere: drop it now and wait for the next Deploy."""

    epoch: int


class Trigger(_Message, frozen=True):
    """Begin a checkpoint at the sources.

    `savepoint`: begin a savepoint, for the directory with this URL (empty: the job's own).
    `full`: the checkpoint names no file of an older one.
    """

    epoch: int
    checkpoint: int
    mode: str
    created_ns: int
    savepoint: str | None = None
    full: bool = False


class Completed(_Message, frozen=True):
    """The checkpoint is durable."""

    epoch: int
    checkpoint: int


class Cancelled(_Message, frozen=True):
    """The checkpoint was given up."""

    epoch: int
    checkpoint: int


class FetchAhead(_Message, frozen=True):
    """To a standby worker: fetch these files of the job's own checkpoints, which a `Deploy` will
    probably ask for.

    Belongs to no attempt, and only speed depends on it: it concerns the drivers, not the machines.
    """

    files: list[SharedFile]


class Shutdown(_Message, frozen=True):
    """End the worker: the job is over, or a newer incarnation has taken its place."""

    reason: str


ToCoordinator = (
    Register
    | Deployed
    | DeployFailed
    | Acknowledge
    | Decline
    | AttemptFailed
    | TaskFinished
    | LoopProbed
    | Heartbeat
    | Pulse
)
ToWorker = (
    Deploy
    | Start
    | BeginWave
    | Drain
    | ProbeLoop
    | EndLoop
    | Abandon
    | Trigger
    | Completed
    | Cancelled
    | Shutdown
)

_encoder = msgspec.msgpack.Encoder()
_to_coordinator = msgspec.msgpack.Decoder(ToCoordinator | FetchedAhead)
_to_worker = msgspec.msgpack.Decoder(ToWorker | FetchAhead)


def decode_for_coordinator(body: bytes) -> ToCoordinator | FetchedAhead:
    """Decode a worker's message. Raises: as `decoded`."""
    message: ToCoordinator | FetchedAhead = decoded(_to_coordinator, body)
    return message


def decode_for_worker(body: bytes) -> ToWorker | FetchAhead:
    """Decode the coordinator's message. Raises: as `decoded`."""
    message: ToWorker | FetchAhead = decoded(_to_worker, body)
    return message


def decoded(decoder: msgspec.msgpack.Decoder[_T], body: bytes) -> _T:
    """Decode a message of a closed schema.

    Raises: msgspec.ValidationError for a wrong tag, field or type; msgspec.DecodeError for bytes
    that are no message, and for text that is not UTF-8 (a UnicodeDecodeError of msgspec).
    """
    try:
        return decoder.decode(body)
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(f"text is not UTF-8: {error}") from error


def encode(message: ToCoordinator | ToWorker | FetchedAhead | FetchAhead) -> bytes:
    """The message as MessagePack; see `encoded`."""
    return encoded(message)


def encoded(message: msgspec.Struct) -> bytes:
    """Encode a message.

    Lone surrogates in texts for people, which come from user code, are escaped: a reason that
    cannot be told would hide the failure.
    """
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError:
        texts = {name: getattr(message, name, "") for name in ("reason", "details")}
        escaped = {
            name: text.encode("utf-8", "backslashreplace").decode()
            for name, text in texts.items()
            if text
        }
        return _encoder.encode(msgspec.structs.replace(message, **escaped))
