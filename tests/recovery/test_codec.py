"""Metadata as bytes: what is read is what was written, and every damage is found."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import xxhash

from headrace.recovery.codec import (
    CorruptMetadata,
    UnsupportedVersion,
    decode_metadata,
    encode_metadata,
)
from headrace.recovery.consistency import InvalidMetadata
from headrace.recovery.metadata import CheckpointMetadata

from .samples import COMPRESSED, IN_WAVES, METADATA, SMALL, SOURCE, SUM, TIMED, changed, with_handle

TESTDATA = Path(__file__).parent / "testdata"
#: IN_WAVES of samples.py, as version 1 writes it. Never regenerate it.
GOLDEN = TESTDATA / "v1-short.metadata"
#: The same, as version 1 wrote it while handles stated their defaults. Never regenerate it.
GOLDEN_WITH_DEFAULTS = TESTDATA / "v1-waves.metadata"
#: COMPRESSED of samples.py, as version 1 wrote it before it knew waves. Never regenerate it.
GOLDEN_WITHOUT_WAVES = TESTDATA / "v1-compressed.metadata"
#: TIMED of samples.py, as version 1 wrote it before it knew compression. Never regenerate it.
GOLDEN_WITHOUT_COMPRESSION = TESTDATA / "v1-event-time.metadata"
#: METADATA of samples.py, as version 1 wrote it before it knew event time. Never regenerate it.
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


def test_decoding_gives_what_was_encoded() -> None:
    assert decode_metadata(encode_metadata(METADATA)) == METADATA


def test_the_file_can_be_read_with_a_text_tool() -> None:
    lines = encode_metadata(METADATA).decode("ascii").splitlines()
    assert lines[0].startswith("headrace-checkpoint 1 xxh3:")
    assert lines[1:4] == ["{", '  "job": "orders",', '  "checkpoint": 7,']
    assert lines[-1] == "}"


def test_the_format_is_the_one_of_version_one() -> None:
    assert decode_metadata(GOLDEN.read_bytes()) == IN_WAVES
    assert encode_metadata(IN_WAVES) == GOLDEN.read_bytes()


def test_a_file_that_states_the_defaults_of_handles_is_read_as_one_without() -> None:
    assert decode_metadata(GOLDEN_WITH_DEFAULTS.read_bytes()) == IN_WAVES


def test_a_file_from_before_waves_is_read_as_one_of_new_records() -> None:
    assert decode_metadata(GOLDEN_WITHOUT_WAVES.read_bytes()) == COMPRESSED


def test_a_file_from_before_compression_is_read_as_one_without() -> None:
    assert decode_metadata(GOLDEN_WITHOUT_COMPRESSION.read_bytes()) == TIMED


def test_a_file_from_before_event_time_is_read_as_one_without() -> None:
    assert decode_metadata(GOLDEN_WITHOUT_EVENT_TIME.read_bytes()) == METADATA


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


def test_what_contradicts_itself_is_neither_written_nor_read() -> None:
    metadata = with_handle(path="../payments/chk-1/x")
    with pytest.raises(InvalidMetadata, match="a plain relative path"):
        encode_metadata(metadata)
    with pytest.raises(
        CorruptMetadata, match="expected consistent metadata, found subtasks"
    ) as corrupt:
        decode_metadata(sealed(msgspec.json.encode(metadata)))
    assert corrupt.value.found.startswith("subtasks[1].states[0].path must be ")


def test_run_and_first_checkpoint_of_a_transaction_are_kept() -> None:
    stamped = [msgspec.structs.replace(t, run="0f", checkpoint=6) for t in METADATA.transactions]
    assert stamped, "the sample has transactions"
    metadata = msgspec.structs.replace(METADATA, transactions=stamped)
    assert decode_metadata(encode_metadata(metadata)) == metadata


def test_a_file_from_before_runs_is_read_as_one_without() -> None:
    assert all((t.run, t.checkpoint) == ("", 0) for t in METADATA.transactions)
    assert b'"run"' not in encode_metadata(METADATA)
