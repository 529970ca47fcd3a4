"""Checkpoint metadata as bytes: one header line, then JSON that a person can read.

    headrace-checkpoint 1 xxh3:0123456789abcdef 4711\\n
    {
      "job": "orders",
      ...

The header states the format's version, xxh3-64 (seed 0, lower-case hex) over `headrace-checkpoint 1 4711\\n` and the
body, and the body's length in bytes. The checksum covers version and length too, so a damaged version is told from a newer
one. A header has exactly one spelling: it is made again from what was read and must come out equal, which is how
every flipped bit and every missing byte is found.

Decoding trusts nothing: after the checksum (which only guards against accidents) the schema is closed, and
names, indexes, paths and numbers are checked against each other. Nothing that is decoded here can run code or point outside the
job's folder.
"""

from __future__ import annotations

import re

import msgspec
import xxhash

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK, CheckpointMode
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.segment import BLOB_BYTES_MAX, LZ4_RATIO_MAX

from .layout import is_plain_path
from .metadata import (
    ChannelPosition,
    CheckpointMetadata,
    DatabaseHandle,
    FileHandle,
    SharedFile,
    StateHandle,
    StateSchema,
    SubtaskSnapshot,
)

#: Version of the format that is written; the only one that is read.
VERSION = 1

#: Largest metadata that is written or read: about a thousand subtasks with all-to-all edges fit.
METADATA_BYTES_MAX = 256 * 1024**2

#: How pieces of state are redistributed (the values of `engine.operators.base.StateKind`).
STATE_KINDS = frozenset({"keyed", "list", "union", "broadcast"})

#: What a database may be (`DatabaseHandle.format`).
DATABASE_FORMATS = frozenset({"rocksdb"})


#: What a cut may have waited for (see `Hold`).
HOLD_KINDS = frozenset({"work", "pre-commit", "barrier", "output"})

_MAGIC = b"headrace-checkpoint"
_HEADER_BYTES_MAX = 100
_MODES = frozenset(mode.value for mode in CheckpointMode)
_INT_MAX = 2**63 - 1
_PARALLELISM_MAX = 2**16
#: Files of a database are restored under this name, into a folder of ours.
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")
_CHECKSUM = re.compile("[0-9a-f]{16}")
_HEADER = re.compile(
    rb"headrace-checkpoint ([1-9][0-9]{0,8}) xxh3:([0-9a-f]{16}) (0|[1-9][0-9]{0,17})"
)


class CorruptMetadata(Exception):
    """A metadata file is not what was written.

    Attributes:
        path: the file.
        offset: position of the first byte that is known to be wrong, or of the part that is.
        expected: what should be there, in words.
        found: what is there instead.
    """

    def __init__(self, path: str, offset: int, expected: str, found: str) -> None:
        super().__init__(path, offset, expected, found)
        self.path = path
        self.offset = offset
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return f"{self.path}: offset {self.offset}: expected {self.expected}, found {self.found}"


class UnsupportedVersion(Exception):
    """An intact metadata file of another format version: not damage, so no older checkpoint may stand in for it."""

    def __init__(self, path: str, version: int) -> None:
        super().__init__(path, version)
        self.path = path
        self.version = version

    def __str__(self) -> str:
        return (
            f"{self.path}: format version {self.version}; "
            f"this version of headrace reads version {VERSION}"
        )


class InvalidMetadata(ValueError):
    """Metadata that contradicts itself; the message is one sentence that names the part."""


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    """Return the whole file. Raises: InvalidMetadata for what `decode_metadata` would refuse."""
    _check(metadata)
    body = msgspec.json.format(msgspec.json.encode(metadata), indent=2) + b"\n"
    if len(body) > METADATA_BYTES_MAX:
        raise InvalidMetadata(f"metadata of {len(body)} bytes; the limit is {METADATA_BYTES_MAX}")
    return _header(VERSION, body) + body


def decode_metadata(data: bytes, path: str = "metadata") -> CheckpointMetadata:
    """Read a whole file; `path` is for errors. Raises: CorruptMetadata, UnsupportedVersion."""
    body = _checked_body(data, path)
    start = len(data) - len(body)
    try:
        metadata = msgspec.json.decode(body, type=CheckpointMetadata)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptMetadata(path, start, "the checkpoint schema", str(error)) from error
    try:
        _check(metadata)
    except InvalidMetadata as error:
        raise CorruptMetadata(path, start, "consistent metadata", str(error)) from error
    return metadata


def _header(version: int, body: bytes) -> bytes:
    digest = xxhash.xxh3_64(b"%s %d %d\n" % (_MAGIC, version, len(body)))
    digest.update(body)
    checksum = digest.hexdigest().encode()
    return b"%s %d xxh3:%s %d\n" % (_MAGIC, version, checksum, len(body))


def _checked_body(data: bytes, path: str) -> bytes:
    if len(data) > METADATA_BYTES_MAX + _HEADER_BYTES_MAX:
        raise CorruptMetadata(path, 0, f"at most {METADATA_BYTES_MAX} bytes", f"{len(data)} bytes")
    end = data.find(b"\n", 0, _HEADER_BYTES_MAX)
    match = _HEADER.fullmatch(data[: max(end, 0)])
    if match is None:
        expected = f"a line '{_MAGIC.decode()} VERSION xxh3:CHECKSUM LENGTH'"
        raise CorruptMetadata(path, _common_prefix(data, _MAGIC), expected, repr(data[:60]))
    version, length, body = int(match[1]), int(match[3]), data[end + 1 :]
    if length != len(body):
        raise CorruptMetadata(path, end + 1, f"{length} bytes of metadata", f"{len(body)} bytes")
    found = data[: end + 1]
    header = _header(version, body)
    if header != found:
        raise CorruptMetadata(path, 0, found.decode().strip(), header.decode().strip())
    if version != VERSION:
        raise UnsupportedVersion(path, version)
    return body


def _common_prefix(left: bytes, right: bytes) -> int:
    pairs = zip(left, right, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def _require(condition: bool, part: str, rule: str, found: object) -> None:
    if not condition:
        raise InvalidMetadata(f"{part} must be {rule}, not {found!r}")


def _require_count(part: str, name: str, value: int, least: int = 0, most: int = _INT_MAX) -> None:
    """`name` is appended to `part` for the error only: this is asked for every number there is."""
    if not least <= value <= most:
        _require(False, part + name, f"between {least} and {most}", value)


def _check(metadata: CheckpointMetadata) -> None:
    _require(bool(metadata.job), "job", "a name", metadata.job)
    _require_count("", "checkpoint", metadata.checkpoint)
    _require_count("", "epoch", metadata.epoch)
    _require(metadata.mode in _MODES, "mode", f"one of {sorted(_MODES)}", metadata.mode)
    _require_count("", "created_ms", metadata.created_ms)
    _require_count("", "duration_ns", metadata.duration_ns)
    _require_count("", "max_parallelism", metadata.max_parallelism, 1, _PARALLELISM_MAX)
    tasks = len(metadata.tasks)
    for at, task in enumerate(metadata.tasks):
        _require_count(f"tasks[{at}]", ".parallelism", task.parallelism, 1, _PARALLELISM_MAX)
    for at, edge in enumerate(metadata.edges):
        _require_count(f"edges[{at}]", ".producer", edge.producer, 0, tasks - 1)
        _require_count(f"edges[{at}]", ".consumer", edge.consumer, 0, tasks - 1)
    _check_subtasks(metadata)


def _check_subtasks(metadata: CheckpointMetadata) -> None:
    """Every subtask of every task is there once: a complete checkpoint has no holes."""
    seen: set[tuple[int, int]] = set()
    for at, subtask in enumerate(metadata.subtasks):
        part = f"subtasks[{at}]"
        _require_count(part, ".task", subtask.task, 0, len(metadata.tasks) - 1)
        task = metadata.tasks[subtask.task]
        _require_count(part, ".index", subtask.index, 0, task.parallelism - 1)
        key = (subtask.task, subtask.index)
        _require(key not in seen, part, "a subtask that is stated once", key)
        seen.add(key)
        _check_subtask(metadata, part, subtask)
    expected = sum(task.parallelism for task in metadata.tasks)
    _require(len(seen) == expected, "subtasks", f"all {expected} of the tasks", len(seen))


def _check_subtask(metadata: CheckpointMetadata, part: str, subtask: SubtaskSnapshot) -> None:
    for name in (".start_delay_ns", ".alignment_ns", ".sync_ns", ".async_ns", ".end_to_end_ns"):
        _require_count(part, name, getattr(subtask, name[1:]))
    for at, hold in enumerate(subtask.holds):
        _require(hold.kind in HOLD_KINDS, f"{part}.holds[{at}]", f"{sorted(HOLD_KINDS)}", hold.kind)
        _require_count(f"{part}.holds[{at}]", ".held_ns", hold.held_ns)
    _require_count(part, ".watermark", subtask.watermark, MIN_WATERMARK, MAX_WATERMARK)
    operators = metadata.tasks[subtask.task].operators
    own = (subtask.task, subtask.index)
    for at, handle in enumerate(subtask.states):
        where = f"{part}.states[{at}]"
        _require(handle.operator in operators, f"{where}.operator", "in the task", handle.operator)
        _check_handle(where, handle)
    for at, database in enumerate(subtask.databases):
        where = f"{part}.databases[{at}]"
        named = database.operator
        _require(named in operators, f"{where}.operator", "in the task", named)
        _check_database(where, database, metadata.max_parallelism)
    for at, channel in enumerate(subtask.received):
        where = f"{part}.received[{at}]"
        _check_channel(metadata, where, channel)
        end = (metadata.edges[channel.edge].consumer, channel.consumer)
        if end != own:
            _require(False, where, "an input of the subtask", end)
    for at, in_flight in enumerate(subtask.inflight):
        _check_in_flight(metadata, f"{part}.inflight[{at}]", subtask, in_flight)
    for at, channel in enumerate(subtask.sent):
        where = f"{part}.sent[{at}]"
        _check_channel(metadata, where, channel)
        end = (metadata.edges[channel.edge].producer, channel.producer)
        if end != own:
            _require(False, where, "an output of the subtask", end)


_SIDES = ("input", "output", "replay")


def _check_in_flight(
    metadata: CheckpointMetadata, part: str, subtask: SubtaskSnapshot, handle: ChannelStateHandle
) -> None:
    """A handle lies at its subtask's own end of a channel of the plan; what is replayed may be of a channel that is no more."""
    _require(handle.side in _SIDES, f"{part}.side", f"one of {list(_SIDES)}", handle.side)
    _require_count(part, ".edge", handle.edge, 0, len(metadata.edges) - 1)
    edge = metadata.edges[handle.edge]
    end = (
        (edge.producer, handle.producer)
        if handle.side == "output"
        else (edge.consumer, handle.consumer)
    )
    if handle.side == "replay":
        end = (edge.consumer, subtask.index)
    _require(end == (subtask.task, subtask.index), part, "an end of a channel of the subtask", end)
    for name in (".producer", ".consumer"):
        _require_count(part, name, getattr(handle, name[1:]), 0, _PARALLELISM_MAX - 1)
    _require_count(part, ".first", handle.first)
    before = 0
    for at, (records, time_ns) in enumerate(handle.watermarks):
        _require_count(part, f".watermarks[{at}]", records, before, handle.end - handle.first)
        _require_count(part, f".watermarks[{at}]", time_ns, MIN_WATERMARK, MAX_WATERMARK)
        before = records
    for at, buffer in enumerate(handle.buffers):
        _check_buffer(f"{part}.buffers[{at}]", buffer)


def _check_buffer(part: str, buffer: BufferHandle) -> None:
    if not is_plain_path(buffer.path):
        _require(False, f"{part}.path", "a plain relative path", buffer.path)
    _require_count(part, ".offset", buffer.offset)
    _require_count(part, ".length", buffer.length, 0, _INT_MAX - buffer.offset)
    _require_count(part, ".blob_rows", buffer.blob_rows, 1)
    _require_count(part, ".start", buffer.start, 0, buffer.blob_rows - 1)
    _require_count(part, ".rows", buffer.rows, 1, buffer.blob_rows - buffer.start)
    _require_count(part, ".skip", buffer.skip, 0, buffer.rows)
    most = LZ4_RATIO_MAX * buffer.length
    _require_count(part, ".inflated", buffer.inflated, 0, min(most, BLOB_BYTES_MAX))
    for at, (skip, parallelism, consumer) in enumerate(buffer.filters):
        _require_count(part, f".filters[{at}]", skip, 0, buffer.rows)
        _require_count(part, f".filters[{at}]", parallelism, 1, _PARALLELISM_MAX)
        _require_count(part, f".filters[{at}]", consumer, 0, parallelism - 1)
    if not _CHECKSUM.fullmatch(buffer.checksum):
        _require(False, f"{part}.checksum", "16 hex digits", buffer.checksum)


def _check_channel(metadata: CheckpointMetadata, part: str, channel: ChannelPosition) -> None:
    _require_count(part, ".edge", channel.edge, 0, len(metadata.edges) - 1)
    edge = metadata.edges[channel.edge]
    producers = metadata.tasks[edge.producer].parallelism
    consumers = metadata.tasks[edge.consumer].parallelism
    _require_count(part, ".producer", channel.producer, 0, producers - 1)
    _require_count(part, ".consumer", channel.consumer, 0, consumers - 1)
    _require_count(part, ".position", channel.position)
    _require_count(part, ".watermark", channel.watermark, MIN_WATERMARK, MAX_WATERMARK)


def _check_database(part: str, database: DatabaseHandle, max_parallelism: int) -> None:
    formats = sorted(DATABASE_FORMATS)
    found = database.format
    _require(found in DATABASE_FORMATS, f"{part}.format", f"one of {formats}", found)
    _require_count(part, ".end_group", database.end_group, 1, max_parallelism)
    _require_count(part, ".first_group", database.first_group, 0, database.end_group - 1)
    for at, schema in enumerate(database.schemas):
        _require_count(f"{part}.schemas[{at}]", ".keys", schema.keys, 1)
        _check_blob(f"{part}.schemas[{at}]", schema)
    names: set[str] = set()
    files: list[SharedFile | FileHandle] = [*database.shared, *database.own]
    for at, file in enumerate(files):
        where = f"{part}.files[{at}]"
        plain = bool(_FILE_NAME.fullmatch(file.name)) and file.name not in names
        _require(plain, f"{where}.name", "a plain name that comes once", file.name)
        names.add(file.name)
        _check_blob(where, file)


def _check_blob(part: str, blob: StateHandle | StateSchema | SharedFile | FileHandle) -> None:
    """A place in the job's folder, and a checksum."""
    _require(is_plain_path(blob.path), f"{part}.path", "a plain relative path", blob.path)
    offset = 0 if isinstance(blob, SharedFile) else blob.offset
    _require_count(part, ".offset", offset)
    _require_count(part, ".length", blob.length, 0, _INT_MAX - offset)
    checksum = blob.checksum
    _require(bool(_CHECKSUM.fullmatch(checksum)), f"{part}.checksum", "16 hex digits", checksum)


def _check_handle(part: str, handle: StateHandle) -> None:
    kinds = sorted(STATE_KINDS)
    _require(handle.kind in STATE_KINDS, f"{part}.kind", f"one of {kinds}", handle.kind)
    _require_count(part, ".rows", handle.rows)
    _check_blob(part, handle)
