"""The contract between the runtime and an operator, a source reader and a sink writer.

One instance serves one subtask. `open`, `restore`, `process`, `poll`, `write`, `finish` and `close`
run in the subtask's own thread, one call at a time, without locks. `commit` and `snapshot` run in
the worker's owner thread, and `snapshot` may run *while* a call of the subtask's thread runs: it
must see committed state only. Hence the rule that shapes every stateful operator: a call reads
committed state plus its own writes, keeps its writes aside, and `commit` makes them visible at
once. `commit` is called exactly once after each call that the runtime accepted, before the next
call begins, and must be quick (no I/O, no Python loop over records). So a checkpoint can be taken
before the running work, however long the user's function takes.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import xxhash

from headrace.channels.events import MIN_WATERMARK
from headrace.recovery.handles import SharedFile


class StateKind(Enum):
    """How a piece of state is given out again when the parallelism changes."""

    #: Rows with a leading `__key_group: uint16` column, sorted by it; goes to the owner of the key
    #: group.
    KEYED = "keyed"
    #: A table of each subtask; the tables are dealt out, whole, among the new subtasks. (Rows that
    #: are to be dealt out one by one are `UNION`.)
    LIST = "list"
    #: A list of items; every new subtask gets all of them and keeps its own.
    UNION = "union"
    #: Equal in every subtask; each new subtask gets one copy.
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """One named piece of an operator's committed state, frozen.

    Attributes:
        name: unique within the operator.
        kind: how it is redistributed.
        table: makes the Arrow table, in a storage thread; must not look at live state. An Arrow
            schema is the state's type.
    """

    name: str
    kind: StateKind
    table: Callable[[], pa.Table]


@dataclass(frozen=True, slots=True)
class RestoredState:
    """One named piece of state for `restore`, cut to this subtask's share."""

    name: str
    kind: StateKind
    table: pa.Table


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The columns of one keyed state in a database; the first `keys` of them are the key."""

    name: str
    keys: int
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class DatabaseFiles:
    """A closed database: its folder, the names of its immutable files, and of its other files."""

    folder: str
    immutable: Sequence[str]
    other: Sequence[str]


@dataclass(frozen=True, slots=True)
class DatabaseSnapshot:
    """All keyed state of an operator in an embedded database, frozen.

    Attributes:
        database: names the instance, in which equal names mean equal immutable files. Unique in an
            attempt.
        groups: key groups that it may hold.
        layouts: its states.
        known: immutable files stored already, in the restored checkpoint, by name.
        files: makes the files, in a storage thread. They stay until `release`.
        release: gives the files, and those of `others`, up. To be called at last, in any thread;
            does no I/O.
        others: further databases of the operator, which hold other key groups, frozen by the same
            cut.
    """

    database: str
    groups: range
    layouts: Sequence[StateLayout]
    known: Mapping[str, SharedFile]
    files: Callable[[], DatabaseFiles]
    release: Callable[[], None]
    others: tuple[DatabaseSnapshot, ...] = ()


Snapshot = StateSnapshot | DatabaseSnapshot


@dataclass(frozen=True, slots=True)
class RestoredDatabase:
    """A database of a checkpoint for `restore_databases`; it may hold key groups of other subtasks
    too.

    Attributes:
        size_bytes: of all its files.
        known: see `DatabaseSnapshot`; empty where its files must not be built upon.
        fetch: writes its files, verified, into an existing folder. Raises: CorruptState,
            StoreError, OSError.
        tables: makes the tables of its states, cut to the reader's key groups. Raises: as `fetch`.
    """

    groups: range
    layouts: Sequence[StateLayout]
    size_bytes: int
    known: Mapping[str, SharedFile]
    fetch: Callable[[str], None]
    tables: Callable[[], Sequence[RestoredState]]


Restored = RestoredState | RestoredDatabase


@dataclass(frozen=True, slots=True)
class StateBackend:
    """Where keyed state lies by default, and what the embedded database may use.

    Attributes:
        kind: "heap" or "rocksdb".
        databases: makes the keyed backend of an operator that states a database; None: there is no
            place for databases.
        cache_bytes: for rows of an embedded database that stay at hand.
    """

    kind: str = "heap"
    write_buffer_bytes: int = 64 << 20
    block_cache_bytes: int = 64 << 20
    databases: Callable[[StateBackend, OperatorContext], Any] | None = None
    cache_bytes: int = 256 << 20


HEAP = StateBackend()


class ChildProcess(Protocol):
    """A process that serves one operator instance over its connection."""

    connection: socket.socket

    def ended(self, timeout_s: float) -> int | None:
        """Wait for the end; return the exit code, negative for a signal. None: it lives, or nobody
        knows.
        """
        ...

    def close(self) -> None:
        """Give everything back; the process ends when its connection is closed."""
        ...


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """Where an operator instance runs.

    Attributes:
        job: name of the job.
        operator: the operator's `name=`.
        index: subtask index, 0 <= index < parallelism.
        max_parallelism: number of key groups.
        epoch: fencing number of this attempt; grows with every restart.
        backend: where keyed state lies, unless the operator says otherwise.
        owner: token of the job in its checkpoint directory; without one, of this run.
        processes: starts a process for an isolated operator; raises OSError. None: there are none.
    """

    job: str
    operator: str
    index: int
    parallelism: int
    max_parallelism: int
    epoch: int
    backend: StateBackend = HEAP
    owner: str = ""
    processes: Callable[[], ChildProcess] | None = None

    @property
    def run(self) -> str:
        """`Transaction.run` of a sink's new transactions."""
        return run_of(self.job, self.operator, self.owner)


def run_of(job: str, sink: str, owner: str) -> str:
    """Return the run of a sink under its present name, for an owner (see `OperatorContext`).

    Fit for a part of a path, of a key and of an identifier, whatever the names are.
    """
    return f"{owner}-{xxhash.xxh3_64_hexdigest(f'{len(job)}:{job}{sink}'.encode())}"


class Stateful(Protocol):
    """The life cycle that operators, source readers and sink writers share."""

    def open(self, context: OperatorContext) -> None:
        """Called once, first."""
        ...

    def restore(self, states: Sequence[RestoredState]) -> None:
        """Called once after `open` when the attempt starts from a checkpoint; restored state counts
        as committed.
        """
        ...

    def commit(self) -> None:
        """Make the writes of the last call visible to `snapshot` and to later calls.

        Owner thread.
        """
        ...

    def snapshot(self) -> Sequence[StateSnapshot]:
        """Freeze the committed state. Owner thread; costs a copy, not a serialisation."""
        ...

    def close(self) -> None:
        """Release what `open` took. Called once, also after failures; must not raise."""
        ...


class Operator(Stateful, Protocol):
    """Batches in, batches out."""

    def process(self, batch: pa.RecordBatch, port: int) -> Iterable[pa.RecordBatch]:
        """Handle one batch (at least one row) of input `port` (0 for the first).

        Empty outputs are dropped.
        """
        ...

    def finish(self) -> Iterable[pa.RecordBatch]:
        """All inputs have ended: emit the records held back. Called once."""
        ...


@runtime_checkable
class KeepsDatabase(Protocol):
    """An operator whose keyed state may lie in an embedded database.

    Other operators get a database's tables.
    """

    def restore_databases(self, databases: Sequence[RestoredDatabase]) -> bool:
        """Called after `open` and before `restore` when there are databases.

        False: the operator does not take them; `restore` gets their tables.
        """
        ...

    def freeze_database(self) -> DatabaseSnapshot | None:
        """Freeze the committed state of the database, if there is one; called after `snapshot`.

        Owner thread, no I/O.
        """
        ...


@dataclass(frozen=True, slots=True)
class Advanced:
    """The output of an operator as event time moved on.

    Attributes:
        batches: outputs; empty ones are dropped.
        done: False: it has more to emit for the same watermark; called again after the commit,
            before anything else.
    """

    batches: Sequence[pa.RecordBatch]
    done: bool


@runtime_checkable
class EventTimeOperator(Operator, Protocol):
    """An operator that acts as event time moves on: it fires timers, or closes windows.

    Other operators pass watermarks on.
    """

    def advance(self, watermark_ns: int, rows_max: int) -> Advanced:
        """Emit everything that waited until no record with a time up to `watermark_ns` is expected.

        Called when the minimum over all inputs' channels, idle ones left out, has risen; with
        `channels.events.MAX_WATERMARK` once all input has ended, before `finish`. After a restore
        it is called with the restored watermark before any new record: timers that had fired
        without a commit fire again. The watermark goes on to the next operator when the answer is
        `done`.

        Args:
            watermark_ns: nanoseconds since 1970; never lower than in the call before.
            rows_max: about how many rows to emit in one call, so that a storm of timers stays
                responsive.
        """
        ...


@runtime_checkable
class JudgesLoops(Protocol):
    """An operator that knows whether it may stand in a loop.

    Others may, unless they are `EventTimeOperator`s or make watermarks.
    """

    @property
    def loop_fault(self) -> str | None:
        """Why it may not, as in "acts on event time"; None: it may."""
        ...


@runtime_checkable
class ProcessingTimeOperator(Operator, Protocol):
    """An operator that acts as the clock moves on.

    It is an `EventTimeOperator` as well, since the runtime asks both in one piece of work.
    """

    def tell_time(self, now_ns: int) -> None:
        """The clock stands at `now_ns`, nanoseconds since 1970.

        Before a call; the clock is the driver's.
        """
        ...

    def next_timer_ns(self) -> int | None:
        """Return the time of the next `fire`, as it looks now; None: never. After a call."""
        ...

    def fire(self, now_ns: int, rows_max: int) -> Iterable[pa.RecordBatch]:
        """Emit about `rows_max` rows that waited for the clock to come to `now_ns`.

        Called again while `next_timer_ns` is not above it.
        """
        ...


@runtime_checkable
class LateOutput(Operator, Protocol):
    """An operator with records that come too late."""

    def take_late(self) -> Sequence[pa.RecordBatch]:
        """Hand out the late records of the last call, as they came in. Subtask thread."""
        ...


@runtime_checkable
class ErrorOutput(Operator, Protocol):
    """An operator that may outlive records whose call fails."""

    def take_errors(self) -> Sequence[pa.RecordBatch]:
        """Hand out the dead letters of the last call (`operators/failures.py`). Subtask thread."""
        ...


@runtime_checkable
class ChecksStates(Protocol):
    """An operator that can tell, before it is opened, whether states could be restored."""

    def check_states(self, states: Sequence[RestoredState]) -> None:
        """Refuse states, given without rows, that `restore` would refuse. Called in the driver,
        before anything runs.

        Raises: UserError, with the state's name, both types, and what to do.
        """
        ...


class SourceStatus(Enum):
    """Status of a source after a poll."""

    MORE = "more"
    #: Nothing now; ask again after `wait_ns`.
    IDLE = "idle"
    #: Nothing ever again.
    END = "end"


@dataclass(frozen=True, slots=True)
class Polled:
    """Answer of a source reader: batches (possibly none) and the status.

    Attributes:
        split: of all these batches, where the reader tells splits apart (`ReadsSplits`).
        watermark_ns: no record of the split up to this time is expected after these batches;
            MIN_WATERMARK: the reader does not know.
    """

    batches: Sequence[pa.RecordBatch]
    status: SourceStatus
    wait_ns: int = 0
    split: str = ""
    watermark_ns: int = MIN_WATERMARK


class SourceReader(Stateful, Protocol):
    """Reads the splits of one source subtask.

    Its offsets are its state, committed like any other.
    """

    def poll(self, rows_max: int) -> Polled:
        """Return at most about `rows_max` rows, in bounded time."""
        ...


@runtime_checkable
class ReadsSplits(SourceReader, Protocol):
    """A source reader that tells its splits apart: each has a watermark, and the lowest counts
    (`with_watermark`).

    A split keeps its name, and with the name its watermark, for as long as the job lives, whichever
    subtask reads it. A fair reader takes its splits in turn; a split left aside for long may be
    called idle.
    """

    def open_splits(self) -> Collection[str]:
        """Name the splits that hold event time back: begun, or to be read next to others at any
        time, and not finished.

        No name is empty. Called after `open` and `restore` and after every poll: return the object
        of before where nothing has changed, and never change an object. Subtask thread.
        """
        ...


@runtime_checkable
class HearsCheckpoints(SourceReader, Protocol):
    """A source reader that wants to know which of its states are safe: to commit offsets, to
    acknowledge messages, or to let a log go.
    """

    def completed(self, checkpoint: int, states: Sequence[StateSnapshot]) -> None:
        """The checkpoint is complete and durable, and holds these states, as `snapshot` returned
        them.

        Subtask thread, between two polls; `commit` follows. Barriers do not wait for the call, but
        polls do, and a sink that is chained to the source: a slow call belongs into a thread of the
        reader's own. Newer checkpoints supersede a call that has not begun. After a restore nothing
        is told of the restored checkpoint, and the last checkpoint of a job may never be told.
        """
        ...


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a sink writer hands over at pre-commit; travels in the checkpoint as plain data.

    Attributes:
        id: unique in the job's life (holds operator, subtask, epoch and a counter).
        payload: JSON-able facts that the committer needs, strings and integers only.
        run: `OperatorContext.run` of the writer; filled in by the runtime, and never changed: not
            by another name of the job or the sink, either. No two sinks share a run.
        checkpoint: the first complete checkpoint that names the transaction; filled in by the
            runtime, and never changed. All transactions with equal run and checkpoint are
            committed by the same calls.
    """

    id: str
    payload: dict[str, str | int]
    run: str = ""
    checkpoint: int = 0


class SinkWriter(Stateful, Protocol):
    """Writes batches into an external transaction that stays invisible before
    `SinkCommitter.commit`.

    A writer has outside effects, so a checkpoint waits for the running `write`. `commit`/`snapshot`
    of Stateful are for the writer's own state and usually do nothing.
    """

    def write(self, batch: pa.RecordBatch) -> None:
        """Add records to the open transaction (begun lazily)."""
        ...

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        """Flush so that a commit can no longer fail for lack of data; later writes begin a new
        transaction. Subtask thread.
        """
        ...


@runtime_checkable
class TakesEventTime(SinkWriter, Protocol):
    """A sink writer that wants to know how far event time has come."""

    def tell_event_time(self, watermark_ns: int) -> None:
        """No record up to this time is expected after those written. Before a `precommit`."""
        ...


class SinkCommitter(Protocol):
    """Makes pre-committed transactions visible.

    One per sink, run by the coordinator, in checkpoint order.

    Every call may be repeated, also after newer ones, and also when it was applied and the answer
    was lost. A committer tells repeats by the transactions' ids, or by a *token* for each run: the
    highest `Transaction.checkpoint` that is applied, stored atomically with the data. Transactions
    of the run up to the token are applied, and all others are not: the checkpoints of a run only
    grow, and a call brings all unconfirmed transactions of earlier ones.
    """

    def commit(self, checkpoint: int, transactions: Sequence[Transaction]) -> None:
        """Commit; committing visible transactions again does nothing.

        Args:
            checkpoint: complete, the newest that names the transactions.

        Raises: CommitLost, when no later try can commit; the job fails. Anything else: the same
            commit is tried again after a back-off, while the job runs, alone or with newer
            transactions.
        """
        ...

    def recover(
        self, checkpoint: int, committed: Sequence[Transaction], *, epoch: int | None = None
    ) -> None:
        """Commit the restored checkpoint's transactions (`committed`) again, and abort all other
        open ones of this job's sink that writers of epochs up to `epoch` began
        (`OperatorContext.epoch`); None: of every epoch.

        Called before an attempt starts, and at the end of the job. Transactions of newer epochs
        belong to another driver, which has taken over while this one was frozen.

        Args:
            checkpoint: the one restored; 0: none.
        """
        ...


@runtime_checkable
class GoesBack(SinkCommitter, Protocol):
    """A committer that takes visible output back when its job goes on from an older checkpoint."""

    def go_on(self, checkpoint: int) -> None:
        """The attempt of the last `recover` starts from this checkpoint; 0: from nothing.

        Called after `recover`, before the attempt starts. Raises: as `commit`.
        """
        ...


@runtime_checkable
class KeepsNotes(SinkCommitter, Protocol):
    """A committer that keeps files of its own."""

    def keep_in(self, folder: str) -> None:
        """Use this folder, a path or URL beside the job's checkpoints; empty: the job keeps none.

        Called once, before `recover`.
        """
        ...


@runtime_checkable
class OwnsOutput(SinkCommitter, Protocol):
    """A committer that knows the visible output of earlier runs of its job."""

    def own(self, owner: str, *, anew: bool) -> None:
        """Work for this owner (see `OperatorContext`) from now on, `anew` if the run begins anew.
        Called once, before `recover`. Raises: OSError.
        """
        ...

    def output(self) -> str:
        """Tell where visible output of the job's sink lies, of whatever owner; empty: there is
        none. Changes nothing. Raises: OSError.
        """
        ...

    def remove_output(self) -> None:
        """Remove all visible output of the job's sink, and what its owners have left open.

        Raises: OSError, and may be repeated.
        """
        ...
