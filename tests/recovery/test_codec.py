"""Metadata as bytes: what is read is what was written, and every damage is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery.codec import (
    CorruptMetadata,
    InvalidMetadata,
    UnsupportedVersion,
    decode_metadata,
    encode_metadata,
)
from headrace.recovery.metadata import (
    ChannelPosition,
    CheckpointMetadata,
    DatabaseHandle,
    EdgeInfo,
    FileHandle,
    Hold,
    SharedFile,
    StateHandle,
    StateSchema,
    SubtaskSnapshot,
    TaskInfo,
    TransactionRecord,
)

TESTDATA = Path(__file__).parent / "testdata"
#: COMPRESSED below, as version 1 writes it. Never regenerate it.
GOLDEN = TESTDATA / "v1-compressed.metadata"
#: TIMED below, as version 1 wrote it before it knew compression. Never regenerate it.
GOLDEN_WITHOUT_COMPRESSION = TESTDATA / "v1-event-time.metadata"
#: METADATA below, as version 1 wrote it before it knew event time. Never regenerate it.
GOLDEN_WITHOUT_EVENT_TIME = TESTDATA / "v1-holds.metadata"
#: The same without what held the cuts, as version 1 wrote it before it knew. Never regenerate it.
GOLDEN_WITHOUT_HOLDS = TESTDATA / "v1-databases.metadata"
#: The same without databases either, as version 1 wrote it before it knew any. Never regenerate it.
GOLDEN_WITHOUT_DATABASES = TESTDATA / "v1-inflight.metadata"
#: The same without in-flight data, as version 1 wrote it before it knew any. Never regenerate it.
GOLDEN_WITHOUT_IN_FLIGHT = TESTDATA / "v1.metadata"


def sealed(body: bytes, version: int = 1) -> bytes:
    """A file as an attacker makes it: any body, with a checksum that fits."""
    checksum = xxhash.xxh3_64_hexdigest(
        b"headrace-checkpoint %d %d\n" % (version, len(body)) + body
    )
    return f"headrace-checkpoint {version} xxh3:{checksum} {len(body)}\n".encode() + body


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


def test_decoding_gives_what_was_encoded() -> None:
    assert decode_metadata(encode_metadata(METADATA)) == METADATA


def test_the_file_can_be_read_with_a_text_tool() -> None:
    lines = encode_metadata(METADATA).decode("ascii").splitlines()
    assert lines[0].startswith("headrace-checkpoint 1 xxh3:")
    assert lines[1:4] == ["{", '  "job": "orders",', '  "checkpoint": 7,']
    assert lines[-1] == "}"


def test_the_format_is_the_one_of_version_one() -> None:
    assert decode_metadata(GOLDEN.read_bytes()) == COMPRESSED
    assert encode_metadata(COMPRESSED) == GOLDEN.read_bytes()


def test_a_file_from_before_compression_is_read_as_one_without() -> None:
    assert decode_metadata(GOLDEN_WITHOUT_COMPRESSION.read_bytes()) == TIMED


def test_a_file_from_before_event_time_is_read_as_one_without() -> None:
    assert decode_metadata(GOLDEN_WITHOUT_EVENT_TIME.read_bytes()) == METADATA


@pytest.mark.parametrize("watermarks", [[(-1, 0)], [(14, 0)], [(3, 0), (2, 5)], [(0, 2**63)]])
def test_watermarks_lie_within_their_records_in_order(watermarks: list[tuple[int, int]]) -> None:
    with pytest.raises(InvalidMetadata, match="watermarks"):
        encode_metadata(with_in_flight(INPUT, watermarks=watermarks))


def test_a_file_from_before_holds_is_read_as_one_without() -> None:
    old = decode_metadata(GOLDEN_WITHOUT_HOLDS.read_bytes())
    assert old == changed(
        subtasks=[SOURCE, msgspec.structs.replace(SUM, end_to_end_ns=0, holds=[])]
    )


def test_a_file_from_before_databases_is_read_as_one_without() -> None:
    old = decode_metadata(GOLDEN_WITHOUT_DATABASES.read_bytes())
    held = {"end_to_end_ns": 0, "holds": []}
    assert old == changed(subtasks=[SOURCE, msgspec.structs.replace(SUM, databases=[], **held)])


def test_a_file_from_before_in_flight_data_is_read_as_one_without() -> None:
    old = decode_metadata(GOLDEN_WITHOUT_IN_FLIGHT.read_bytes())
    assert [s.inflight for s in old.subtasks] == [[], []]
    source = msgspec.structs.replace(SOURCE, inflight=[])
    times = ("start_delay_ns", "alignment_ns", "sync_ns", "async_ns", "end_to_end_ns")
    timeless = dict.fromkeys(times, 0)
    total = msgspec.structs.replace(SUM, inflight=[], databases=[], holds=[], **timeless)
    assert old == changed(subtasks=[source, total])


@pytest.mark.parametrize("metadata", [SMALL, METADATA], ids=["small", "in-flight"])
def test_every_flipped_bit_is_found(metadata: CheckpointMetadata) -> None:
    data = encode_metadata(metadata)
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptMetadata) as error:
            decode_metadata(bytes(damaged), "orders/chk-7/metadata")
        assert error.value.path == "orders/chk-7/metadata"


def test_every_truncation_is_found() -> None:
    data = encode_metadata(METADATA)
    for length in range(len(data)):
        with pytest.raises(CorruptMetadata):
            decode_metadata(data[:length])


@pytest.mark.parametrize("tail", [b"\0", b"\n", b" ", b"x" * 1000])
def test_trailing_bytes_are_found(tail: bytes) -> None:
    with pytest.raises(CorruptMetadata, match="bytes of metadata"):
        decode_metadata(encode_metadata(SMALL) + tail)


def test_a_zero_filled_tail_is_found() -> None:
    data = encode_metadata(METADATA)
    for length in range(0, len(data), 16):
        with pytest.raises(CorruptMetadata):
            decode_metadata(data[:length] + bytes(len(data) - length))


def test_an_error_tells_path_offset_expected_and_found() -> None:
    with pytest.raises(CorruptMetadata) as error:
        decode_metadata(b"headrace-chXckpoint 1\n", "orders/chk-7/metadata")
    assert error.value.offset == 11
    assert str(error.value) == (
        "orders/chk-7/metadata: offset 11: expected a line "
        "'headrace-checkpoint VERSION xxh3:CHECKSUM LENGTH', "
        "found b'headrace-chXckpoint 1\\n'"
    )


def test_an_intact_newer_version_is_not_called_damage() -> None:
    with pytest.raises(UnsupportedVersion, match=r"format version 2; .* reads version 1"):
        decode_metadata(sealed(b"{}", version=2))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"{}",
        b"[" * 100_000,
        b'{"job": "\xff"}',
        b'{"job": 1e999}',
        encode_metadata(SMALL).split(b"\n", 1)[1].replace(b'"job"', b'"code": "x", "job"', 1),
        encode_metadata(SMALL).split(b"\n", 1)[1].replace(b"7", b"7.5", 1),
        encode_metadata(SMALL).split(b"\n", 1)[1].replace(b"7", b'"7"', 1),
        encode_metadata(SMALL).split(b"\n", 1)[1].replace(b"7", b"true", 1),
        encode_metadata(SMALL).split(b"\n", 1)[1].replace(b"7", b"9" * 5000, 1),
    ],
    ids=range(11),
)
def test_a_body_outside_the_schema_is_refused_even_with_a_fitting_checksum(body: bytes) -> None:
    with pytest.raises(CorruptMetadata):
        decode_metadata(sealed(body))


@pytest.mark.parametrize(
    ("metadata", "part"),
    [
        (changed(job=""), "job"),
        (changed(checkpoint=-1), "checkpoint"),
        (changed(checkpoint=2**63), "checkpoint"),
        (changed(epoch=-1), "epoch"),
        (changed(mode="exactly_once"), "mode"),
        (changed(created_ms=-1), "created_ms"),
        (changed(duration_ns=-1), "duration_ns"),
        (changed(max_parallelism=0), "max_parallelism"),
        (changed(max_parallelism=2**16 + 1), "max_parallelism"),
        (changed(tasks=[TaskInfo("read", [], [], 0)]), "tasks[0].parallelism"),
        (changed(edges=[EdgeInfo("e", 2, 1)]), "edges[0].producer"),
        (changed(edges=[EdgeInfo("e", 0, -1)]), "edges[0].consumer"),
        (changed(subtasks=[SOURCE]), "subtasks"),
        (changed(subtasks=[SOURCE, SUM, SUM]), "subtasks[2]"),
        (changed(subtasks=[msgspec.structs.replace(SOURCE, task=2)]), "subtasks[0].task"),
        (changed(subtasks=[msgspec.structs.replace(SOURCE, index=1)]), "subtasks[0].index"),
        (changed(subtasks=[msgspec.structs.replace(SOURCE, sync_ns=-1)]), "subtasks[0].sync_ns"),
        (with_hold(kind="weather"), "subtasks[1].holds[0]"),
        (with_hold(held_ns=-1), "subtasks[1].holds[0].held_ns"),
        (with_handle(operator="other"), "subtasks[1].states[0].operator"),
        (with_handle(kind="pickle"), "subtasks[1].states[0].kind"),
        (with_handle(path="../payments/chk-1/x"), "subtasks[1].states[0].path"),
        (with_handle(path="/etc/passwd"), "subtasks[1].states[0].path"),
        (with_handle(path="chk-7//x"), "subtasks[1].states[0].path"),
        (with_handle(offset=-1), "subtasks[1].states[0].offset"),
        (with_handle(length=-1), "subtasks[1].states[0].length"),
        (with_handle(offset=2**62, length=2**62), "subtasks[1].states[0].length"),
        (with_handle(rows=-1), "subtasks[1].states[0].rows"),
        (with_handle(checksum="0" * 15), "subtasks[1].states[0].checksum"),
        (with_handle(checksum="A" * 16), "subtasks[1].states[0].checksum"),
        (with_database(operator="other"), "subtasks[1].databases[0].operator"),
        (with_database(format="pickle"), "subtasks[1].databases[0].format"),
        (with_database(first_group=-1), "subtasks[1].databases[0].first_group"),
        (with_database(first_group=128), "subtasks[1].databases[0].first_group"),
        (with_database(end_group=129), "subtasks[1].databases[0].end_group"),
        (with_database(shared=[SST, SST]), "subtasks[1].databases[0].files[1].name"),
        (with_shared(path="../other/shared/x"), "subtasks[1].databases[0].files[1].path"),
        (with_shared(length=-1), "subtasks[1].databases[0].files[1].length"),
        (with_shared(checksum="5" * 15), "subtasks[1].databases[0].files[1].checksum"),
        *(
            (
                with_database(own=[msgspec.structs.replace(MANIFEST, name=name)]),
                "subtasks[1].databases[0].files[1].name",
            )
            for name in ("../x", "", ".", "..", "a/b", "x" * 256, "000012.sst")
        ),
        (
            with_database(schemas=[msgspec.structs.replace(SCHEMA, keys=0)]),
            "subtasks[1].databases[0].schemas[0].keys",
        ),
        (
            with_database(schemas=[msgspec.structs.replace(SCHEMA, path="/x")]),
            "subtasks[1].databases[0].schemas[0].path",
        ),
        (with_sent(edge=1), "subtasks[0].sent[0].edge"),
        (with_sent(producer=1), "subtasks[0].sent[0].producer"),
        (with_sent(consumer=1), "subtasks[0].sent[0].consumer"),
        (with_sent(position=-1), "subtasks[0].sent[0].position"),
        (
            changed(subtasks=[msgspec.structs.replace(SOURCE, received=[CHANNEL]), SUM]),
            "subtasks[0].received[0]",
        ),
        (
            changed(subtasks=[SOURCE, msgspec.structs.replace(SUM, sent=[CHANNEL])]),
            "subtasks[1].sent[0]",
        ),
        (with_in_flight(OUTPUT, side="outside"), "subtasks[0].inflight[0].side"),
        (with_in_flight(OUTPUT, side="input"), "subtasks[0].inflight[0]"),
        (with_in_flight(OUTPUT, side="replay"), "subtasks[0].inflight[0]"),
        (with_in_flight(OUTPUT, producer=1), "subtasks[0].inflight[0]"),
        (with_in_flight(OUTPUT, consumer=-1), "subtasks[0].inflight[0].consumer"),
        (with_in_flight(OUTPUT, consumer=2**16), "subtasks[0].inflight[0].consumer"),
        (with_in_flight(INPUT, side="output"), "subtasks[1].inflight[0]"),
        (with_in_flight(INPUT, consumer=1), "subtasks[1].inflight[0]"),
        (with_in_flight(INPUT, producer=-1), "subtasks[1].inflight[0].producer"),
        (with_in_flight(INPUT, edge=-1), "subtasks[1].inflight[0].edge"),
        (with_in_flight(INPUT, edge=1), "subtasks[1].inflight[0].edge"),
        (with_in_flight(INPUT, first=-1), "subtasks[1].inflight[0].first"),
        (with_in_flight(REPLAY, producer=2**16), "subtasks[1].inflight[0].producer"),
        (with_buffer(path="../payments/chk-1/x"), "subtasks[1].inflight[0].buffers[1].path"),
        (with_buffer(path="/etc/passwd"), "subtasks[1].inflight[0].buffers[1].path"),
        (with_buffer(path=""), "subtasks[1].inflight[0].buffers[1].path"),
        (with_buffer(offset=-1), "subtasks[1].inflight[0].buffers[1].offset"),
        (with_buffer(length=-1), "subtasks[1].inflight[0].buffers[1].length"),
        (with_buffer(offset=2**62, length=2**62), "subtasks[1].inflight[0].buffers[1].length"),
        (with_buffer(checksum="0" * 17), "subtasks[1].inflight[0].buffers[1].checksum"),
        (with_buffer(blob_rows=0), "subtasks[1].inflight[0].buffers[1].blob_rows"),
        (with_buffer(start=-1), "subtasks[1].inflight[0].buffers[1].start"),
        (with_buffer(start=8), "subtasks[1].inflight[0].buffers[1].start"),
        (with_buffer(rows=0), "subtasks[1].inflight[0].buffers[1].rows"),
        (with_buffer(start=1), "subtasks[1].inflight[0].buffers[1].rows"),
        (with_buffer(inflated=-1), "subtasks[1].inflight[0].buffers[1].inflated"),
        (with_buffer(inflated=255 * 320 + 1), "subtasks[1].inflight[0].buffers[1].inflated"),
        (with_buffer(skip=-1), "subtasks[1].inflight[0].buffers[1].skip"),
        (with_buffer(skip=9), "subtasks[1].inflight[0].buffers[1].skip"),
        (with_buffer(filters=[(0, 0, 0)]), "subtasks[1].inflight[0].buffers[1].filters[0]"),
        (
            with_buffer(filters=[(0, 4, 2), (0, 2, 2)]),
            "subtasks[1].inflight[0].buffers[1].filters[1]",
        ),
        (with_buffer(filters=[(0, 4, -1)]), "subtasks[1].inflight[0].buffers[1].filters[0]"),
    ],
)
def test_inconsistent_metadata_is_neither_written_nor_read(
    metadata: CheckpointMetadata, part: str
) -> None:
    with pytest.raises(InvalidMetadata) as refused:
        encode_metadata(metadata)
    assert str(refused.value).startswith(f"{part} must be ")
    with pytest.raises(CorruptMetadata) as corrupt:
        decode_metadata(sealed(msgspec.json.encode(metadata)))
    assert corrupt.value.found == str(refused.value)
