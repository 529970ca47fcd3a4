"""A checkpoint's metadata with something of everything, and the same with one part changed."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery.handles import (
    DatabaseHandle,
    FileHandle,
    SharedFile,
    StateHandle,
    StateSchema,
)
from headrace.recovery.metadata import (
    ChannelPosition,
    CheckpointMetadata,
    EdgeInfo,
    Hold,
    SubtaskSnapshot,
    TaskInfo,
    TransactionRecord,
)

HANDLE = StateHandle("sum", "totals", "keyed", "chk-7/worker-0-e2.segment", 16, 640, "0" * 16, 3)
CHANNEL = ChannelPosition(0, 0, 0, 41, False)
WRITTEN = BufferHandle("chk-7/worker-0-e2.segment", 656, 320, "1" * 16, 8, 0, 8)
NAMED = BufferHandle("chk-5/worker-0-e2.segment", 16, 320, "2" * 16, 8, 3, 5)
FILTERED = BufferHandle("chk-2/worker-1-e1.segment", 16, 320, "3" * 16, 8, 0, 8, [(2, 4, 2)], 1)
OUTPUT = ChannelStateHandle(0, 0, 0, "output", 54, [WRITTEN], True)
INPUT = ChannelStateHandle(0, 0, 0, "input", 41, [NAMED, WRITTEN], False)
REPLAY = ChannelStateHandle(0, 3, 2, "replay", 0, [FILTERED], False)
SOURCE = SubtaskSnapshot(0, 0, False, [], [], [CHANNEL], [OUTPUT])
SCHEMA = StateSchema("totals", 1, "chk-7/worker-0-e2.segment", 976, 200, "4" * 16)
SST = SharedFile("000012.sst", "shared/5-w0-e1-" + "5" * 16, 4096, "5" * 16)
MANIFEST = FileHandle("MANIFEST-000011", "chk-7/worker-0-e2.segment", 1176, 90, "6" * 16)
DATABASE = DatabaseHandle("sum", "rocksdb", 0, 128, [SCHEMA], [SST], [MANIFEST])
HOLDS = [Hold("work", "sum > out", 9), Hold("barrier", "read->sum/0 0>0", 2)]
SUM = SubtaskSnapshot(
    *(1, 0, False, [HANDLE], [CHANNEL], [], [INPUT, REPLAY], 1, 2, 3, 4),
    databases=[DATABASE],
    end_to_end_ns=38,
    holds=HOLDS,
)
METADATA = CheckpointMetadata(
    job="orders",
    checkpoint=7,
    epoch=2,
    mode="unaligned",
    savepoint=False,
    created_ms=1_700_000_000_000,
    duration_ns=38_000_000,
    max_parallelism=128,
    tasks=[
        TaskInfo("read", ["read"], ["read"], 1),
        TaskInfo("sum", ["sum", "out"], ["sum"], 1),
    ],
    edges=[EdgeInfo("read->sum/0", 0, 1)],
    subtasks=[SOURCE, SUM],
    transactions=[TransactionRecord("out", "out-0-2-1", {"file": "part-0", "rows": 3})],
)
TIMED = msgspec.structs.replace(
    METADATA,
    subtasks=[
        SOURCE,
        msgspec.structs.replace(
            SUM,
            received=[
                msgspec.structs.replace(CHANNEL, watermark=1_700_000_000_000_000_000, idle=True)
            ],
            inflight=[msgspec.structs.replace(INPUT, watermarks=[(0, -7), (5, 2**62)]), REPLAY],
            watermark=2**63 - 1,
        ),
    ],
)
SMALL = CheckpointMetadata("orders", 7, 2, "aligned", False, 0, 0, 128, [], [], [], [])


def changed(**fields: Any) -> CheckpointMetadata:
    return msgspec.structs.replace(METADATA, **fields)


def with_handle(**fields: Any) -> CheckpointMetadata:
    handle = msgspec.structs.replace(HANDLE, **fields)
    return changed(subtasks=[SOURCE, msgspec.structs.replace(SUM, states=[handle])])


def with_database(**fields: Any) -> CheckpointMetadata:
    database = msgspec.structs.replace(DATABASE, **fields)
    return changed(subtasks=[SOURCE, msgspec.structs.replace(SUM, databases=[database])])


def with_hold(**fields: Any) -> CheckpointMetadata:
    hold = msgspec.structs.replace(HOLDS[0], **fields)
    return changed(subtasks=[SOURCE, msgspec.structs.replace(SUM, holds=[hold])])


def with_shared(**fields: Any) -> CheckpointMetadata:
    return with_database(shared=[SST, msgspec.structs.replace(SST, name="2.sst", **fields)])


def with_sent(**fields: Any) -> CheckpointMetadata:
    channel = msgspec.structs.replace(CHANNEL, **fields)
    return changed(subtasks=[msgspec.structs.replace(SOURCE, sent=[channel]), SUM])


def with_in_flight(kept: ChannelStateHandle, **fields: Any) -> CheckpointMetadata:
    """The changed handle takes the place of the only one of the source, or of all of the sum."""
    handle = msgspec.structs.replace(kept, **fields)
    subject = SOURCE if kept is OUTPUT else SUM
    subtask = msgspec.structs.replace(subject, inflight=[handle])
    return changed(subtasks=[subtask, SUM] if subject is SOURCE else [SOURCE, subtask])


def with_buffer(**fields: Any) -> CheckpointMetadata:
    buffer = msgspec.structs.replace(FILTERED, **fields)
    return with_in_flight(REPLAY, buffers=[WRITTEN, buffer])


LZ4 = msgspec.structs.replace(WRITTEN, inflated=960)
COMPRESSED = msgspec.structs.replace(
    TIMED,
    subtasks=[
        *TIMED.subtasks[:-1],
        msgspec.structs.replace(
            TIMED.subtasks[-1], inflight=[msgspec.structs.replace(INPUT, buffers=[NAMED, LZ4])]
        ),
    ],
)
IN_WAVES = msgspec.structs.replace(
    TIMED,
    subtasks=[
        *TIMED.subtasks[:-1],
        msgspec.structs.replace(
            TIMED.subtasks[-1], inflight=[INPUT, msgspec.structs.replace(REPLAY, wave=2)]
        ),
    ],
)
