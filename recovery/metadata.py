"""The metadata of a checkpoint: closed schemas, decoded strictly, without code.

The file is JSON behind a header line (drawn in `recovery/codec.py`), so text tools can read the
file. Operators, tasks and edges have names instead of numbers wherever a later program must find
them again.
"""

from __future__ import annotations

import msgspec

from headrace.channels.events import MIN_WATERMARK
from headrace.inflight.handle import ChannelStateHandle

from .handles import DatabaseHandle, StateHandle


class ChannelPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Position of the next record at one end of a channel, at the cut, and whether the channel's
    input had ended.

    Of a receiver also event time: the newest watermark before that position, in nanoseconds since
    1970, and whether the channel was idle.
    """

    edge: int
    producer: int
    consumer: int
    position: int
    ended: bool
    watermark: int = MIN_WATERMARK
    idle: bool = False


class Hold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A wait of `held_ns` nanoseconds that delayed a subtask's cut. Holds of one cut may overlap.

    Attributes:
        kind: "work" (the running call, or the records before an aligned barrier), "pre-commit" (the
            sink's flush), "barrier" (from the first barrier in to the last), "output" (an aligned
            barrier behind queued data).
        by: operators, as "a > b" where they are chained; or the channel of the last barrier, as
            "edge key producer>consumer".
    """

    kind: str
    by: str
    held_ns: int


class SubtaskSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One subtask's part of a checkpoint. Times are durations in nanoseconds.

    `finished`: every input had ended, `finish` had run and its outputs had been sent, so a restored
    subtask only relays barriers.
    """

    task: int
    index: int
    finished: bool
    states: list[StateHandle]
    received: list[ChannelPosition]
    sent: list[ChannelPosition]
    #: In-flight data at the cut: of its inputs, of its outputs, and what was still to be replayed.
    inflight: list[ChannelStateHandle] = []
    start_delay_ns: int = 0
    alignment_ns: int = 0
    sync_ns: int = 0
    async_ns: int = 0
    #: Keyed state that lies in databases.
    databases: list[DatabaseHandle] = []
    #: From the trigger until the worker's part was durable; 0 in files of early versions.
    end_to_end_ns: int = 0
    #: Longest first.
    holds: list[Hold] = []
    #: How far event time had come at its operators, in nanoseconds since 1970.
    watermark: int = MIN_WATERMARK


class TransactionRecord(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A pre-committed sink transaction (`contract/operators.py`, `Transaction`) with its sink.

    Files of early versions have neither run nor checkpoint.
    """

    sink: str
    id: str
    payload: dict[str, str | int]
    run: str = ""
    checkpoint: int = 0


class TaskInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A task of the checkpoint's plan; the position in the list is the task's index."""

    name: str
    operators: list[str]
    stateful: list[str]
    parallelism: int


class EdgeInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An edge of the checkpoint's plan; `producer` and `consumer` are task indexes.

    Attributes:
        partitioning: the partitioner's name ("hash", "rebalance", ...); empty in older checkpoints.
        columns: its key columns, in order, so that a rescaled checkpoint can be read without the
            program.
        parameters: its further parameters as text: the boundaries of "range".
    """

    key: str
    producer: int
    consumer: int
    partitioning: str = ""
    columns: list[str] = []
    parameters: list[str] = []


class CheckpointMetadata(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A complete checkpoint.

    Attributes:
        created_ms: wall clock of the trigger, milliseconds since 1970, for people only.
        duration_ns: trigger to durable metadata (without the write of this very file).
        transactions: pre-committed and, as far as this file knows, not yet committed, those of
            older checkpoints included.
        drained: a user ended the input before its own end, for good.
    """

    job: str
    checkpoint: int
    epoch: int
    mode: str
    savepoint: bool
    created_ms: int
    duration_ns: int
    max_parallelism: int
    tasks: list[TaskInfo]
    edges: list[EdgeInfo]
    subtasks: list[SubtaskSnapshot]
    transactions: list[TransactionRecord]
    drained: bool = False
