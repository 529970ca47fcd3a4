"""Does a checkpoint's metadata agree with itself?

Asked before the file is written and after it was read.

The schema (`metadata.py`) tells the kind of each value. The checks here go beyond a schema: every
index is in range, every subtask appears once, every path is plain and below the job's folder, no
number exceeds its limit, and no subtask names an end of a foreign channel. So metadata from
storage, whoever wrote it, can be used without a further look.

Not here: whether the named files exist and are intact (`catalog.verify`), and whether the in-flight
records are complete (`tiles.py`).
"""

from __future__ import annotations

import re

from headrace.channels.events import MAX_WATERMARK, MIN_WATERMARK, CheckpointMode
from headrace.channels.keygroups import MAX_PARALLELISM_LIMIT
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.segment import BLOB_BYTES_MAX, LZ4_RATIO_MAX

from .handles import DatabaseHandle, FileHandle, SharedFile, StateHandle, StateSchema
from .layout import is_plain_path
from .metadata import ChannelPosition, CheckpointMetadata, SubtaskSnapshot

#: How pieces of state are redistributed (the values of `engine.operators.base.StateKind`).
STATE_KINDS = frozenset({"keyed", "list", "union", "broadcast"})

#: What a database may be (`DatabaseHandle.format`).
DATABASE_FORMATS = frozenset({"rocksdb"})

#: What a cut may have waited for (see `Hold`).
HOLD_KINDS = frozenset({"work", "pre-commit", "barrier", "output"})

_MODES = frozenset(mode.value for mode in CheckpointMode)
_INT_MAX = 2**63 - 1
#: Files of a database are restored under this name, into a folder of ours.
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254}")
_CHECKSUM = re.compile("[0-9a-f]{16}")


class InvalidMetadata(ValueError):
    """Contradictory metadata; the message is a sentence with the part's name."""


def check_consistency(metadata: CheckpointMetadata) -> None:
    """Hold the parts of a checkpoint's metadata against each other.

    Raises: InvalidMetadata, about the first wrong part.
    """
    _require(bool(metadata.job), "job", "a name", metadata.job)
    _require_count("", "checkpoint", metadata.checkpoint)
    _require_count("", "epoch", metadata.epoch)
    _require(metadata.mode in _MODES, "mode", f"one of {sorted(_MODES)}", metadata.mode)
    _require_count("", "created_ms", metadata.created_ms)
    _require_count("", "duration_ns", metadata.duration_ns)
    _require_count("", "max_parallelism", metadata.max_parallelism, 1, MAX_PARALLELISM_LIMIT)
    tasks, widest = len(metadata.tasks), metadata.max_parallelism
    for at, task in enumerate(metadata.tasks):
        _require_count(f"tasks[{at}]", ".parallelism", task.parallelism, 1, widest)
    for at, edge in enumerate(metadata.edges):
        _require_count(f"edges[{at}]", ".producer", edge.producer, 0, tasks - 1)
        _require_count(f"edges[{at}]", ".consumer", edge.consumer, 0, tasks - 1)
    _check_subtasks(metadata)


def _broken(part: str, rule: str, found: object) -> InvalidMetadata:
    return InvalidMetadata(f"{part} must be {rule}, not {found!r}")


def _require(condition: bool, part: str, rule: str, found: object) -> None:
    if not condition:
        raise _broken(part, rule, found)


def _require_count(part: str, name: str, value: int, least: int = 0, most: int = _INT_MAX) -> None:
    """`name` is appended to `part` for the error only: this is asked for every number there is."""
    if not least <= value <= most:
        raise _broken(part + name, f"between {least} and {most}", value)


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
    _require_count(part, ".start_delay_ns", subtask.start_delay_ns)
    _require_count(part, ".alignment_ns", subtask.alignment_ns)
    _require_count(part, ".sync_ns", subtask.sync_ns)
    _require_count(part, ".async_ns", subtask.async_ns)
    _require_count(part, ".end_to_end_ns", subtask.end_to_end_ns)
    for at, hold in enumerate(subtask.holds):
        if hold.kind not in HOLD_KINDS:
            raise _broken(f"{part}.holds[{at}]", f"{sorted(HOLD_KINDS)}", hold.kind)
        _require_count(f"{part}.holds[{at}]", ".held_ns", hold.held_ns)
    _require_count(part, ".watermark", subtask.watermark, MIN_WATERMARK, MAX_WATERMARK)
    operators = metadata.tasks[subtask.task].operators
    own = (subtask.task, subtask.index)
    for at, handle in enumerate(subtask.states):
        where = f"{part}.states[{at}]"
        if handle.operator not in operators:
            raise _broken(f"{where}.operator", "in the task", handle.operator)
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
            raise _broken(where, "an input of the subtask", end)
    for at, in_flight in enumerate(subtask.inflight):
        _check_in_flight(metadata, f"{part}.inflight[{at}]", subtask, in_flight)
    for at, channel in enumerate(subtask.sent):
        where = f"{part}.sent[{at}]"
        _check_channel(metadata, where, channel)
        end = (metadata.edges[channel.edge].producer, channel.producer)
        if end != own:
            raise _broken(where, "an output of the subtask", end)


_SIDES = ("input", "output", "replay")


def _check_in_flight(
    metadata: CheckpointMetadata, part: str, subtask: SubtaskSnapshot, handle: ChannelStateHandle
) -> None:
    """Check that a handle lies at its subtask's own end of a channel of the plan; a replayed
    channel may have ended.
    """
    if handle.side not in _SIDES:
        raise _broken(f"{part}.side", f"one of {list(_SIDES)}", handle.side)
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
    _require_count(part, ".producer", handle.producer, 0, metadata.max_parallelism - 1)
    _require_count(part, ".consumer", handle.consumer, 0, metadata.max_parallelism - 1)
    _require_count(part, ".first", handle.first)
    _require_count(part, ".wave", handle.wave)
    before = 0
    for at, (records, time_ns) in enumerate(handle.watermarks):
        _require_count(part, f".watermarks[{at}]", records, before, handle.end - handle.first)
        _require_count(part, f".watermarks[{at}]", time_ns, MIN_WATERMARK, MAX_WATERMARK)
        before = records
    for at, buffer in enumerate(handle.buffers):
        _check_buffer(f"{part}.buffers[{at}]", buffer, metadata.max_parallelism)


def _check_buffer(part: str, buffer: BufferHandle, max_parallelism: int) -> None:
    if not is_plain_path(buffer.path):
        raise _broken(f"{part}.path", "a plain relative path", buffer.path)
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
        _require_count(part, f".filters[{at}]", parallelism, 1, max_parallelism)
        _require_count(part, f".filters[{at}]", consumer, 0, parallelism - 1)
    if not _CHECKSUM.fullmatch(buffer.checksum):
        raise _broken(f"{part}.checksum", "16 hex digits", buffer.checksum)


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
    if database.format not in DATABASE_FORMATS:
        raise _broken(f"{part}.format", f"one of {sorted(DATABASE_FORMATS)}", database.format)
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
    if not is_plain_path(blob.path):
        raise _broken(f"{part}.path", "a plain relative path", blob.path)
    offset = 0 if isinstance(blob, SharedFile) else blob.offset
    _require_count(part, ".offset", offset)
    _require_count(part, ".length", blob.length, 0, _INT_MAX - offset)
    if not _CHECKSUM.fullmatch(blob.checksum):
        raise _broken(f"{part}.checksum", "16 hex digits", blob.checksum)


def _check_handle(part: str, handle: StateHandle) -> None:
    if handle.kind not in STATE_KINDS:
        raise _broken(f"{part}.kind", f"one of {sorted(STATE_KINDS)}", handle.kind)
    _require_count(part, ".rows", handle.rows)
    _check_blob(part, handle)
