"""Paths of a job's files under the checkpoint directory: every path is made and parsed here.

    JOB/chk-N/metadata            exists exactly when checkpoint N is complete
    JOB/chk-N/worker-W-eE.segment data of checkpoint N by worker W during epoch E
    JOB/chk-N/worker-W-eE-log-K.segment  piece K of the log by W before checkpoint N
    JOB/sav-N/...                 savepoint N likewise; both kinds share one sequence of numbers
    JOB/shared/N-wW-eE-CHECKSUM   a file that W wrote for checkpoint N during epoch E, and that
                                  later checkpoints may refer to
    JOB/epochs/E                  created exclusively by the attempt that owns epoch E
    JOB/epochs/E-from-N-eX        epoch E started from checkpoint N of epoch X (`history.py`)
    JOB/elsewhere/N               number N of the history is a checkpoint in another directory
    JOB/failed/OPERATOR-N.arrow   the batch at which subtask N of an operator failed last
    JOB/staged/OPERATOR/...       records of a source that the job's driver has staged
    JOB/history                   what the page of the job showed last (`engine/ui/recording.py`)
    JOB/owner                     token by which the job's sinks know output of this directory
    JOB/logs/LOG/...              the log of a logged edge (`edge_log_files.py`)
    JOB/regions/sav-N             a savepoint of a job of several regions (`engine/session`)
    JOB/KIND-N/claimed            the job that has claimed this checkpoint or savepoint
    JOB/KIND-N/released           its metadata, from the release until all of it is deleted

The epoch is in a segment's name so that a worker that was given up for dead cannot overwrite the
file of its replacement. Handles in metadata are relative to `JOB/`, so that a job's folder can be
moved as a whole.

Not here: reading and writing (`recovery/catalog.py`), and symbolic links, which only storage can
see.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

import xxhash

from .history import EpochStart

#: Length of the longest path that may stand in a handle; longer ones are damage or malice.
PATH_CHARS_MAX = 1024

#: No run comes to numbers and epochs as high as this; names have room for some more digits.
NUMBER_MAX = 10**15

#: Longest name of a job's folder.
FOLDER_CHARS_MAX = 100

_FOLDER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_COMPONENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
# Canonical decimal of at most 18 digits: one number has one name, and it fits 64 bits.
_NUMBER = r"(0|[1-9][0-9]{0,17})"
_CHECKPOINT_FOLDER = re.compile(rf"(chk|sav)-{_NUMBER}")
_SHARED = re.compile(rf"{_NUMBER}-w{_NUMBER}-e{_NUMBER}-([0-9a-f]{{16}})")
_EPOCH = re.compile(_NUMBER)
_START = re.compile(rf"{_NUMBER}-from-{_NUMBER}-e{_NUMBER}")
_WRITER = re.compile(rf"worker-{_NUMBER}-e{_NUMBER}(-log-{_NUMBER})?\.segment")
_OWNED = re.compile(rf"chk-{_NUMBER}/|shared/{_NUMBER}-")


class InvalidPath(ValueError):
    """A `path` that is not relative, normalised and plain."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path!r} is not a plain relative path"


class CheckpointKind(Enum):
    """Kind of a numbered folder; the value is the prefix of its name."""

    CHECKPOINT = "chk"
    SAVEPOINT = "sav"


class CheckpointPath(NamedTuple):
    """A path under a checkpoint's folder, taken apart: `JOB/KIND-NUMBER/name`."""

    job: str
    kind: CheckpointKind
    number: int
    name: str


class SharedName(NamedTuple):
    """Name of a shared file: checkpoint, worker, epoch, and the checksum of the bytes."""

    number: int
    worker: int
    epoch: int
    checksum: str


@lru_cache(maxsize=64)  # Every path of a job begins with it.
def job_folder(job: str) -> str:
    """Name the folder of `job`: the job's name if plain, else a plain name with a hash at the end.

    A second application changes nothing. Raises: ValueError if the name is empty.
    """
    if not job:
        raise ValueError("a job needs a name")
    if len(job) <= FOLDER_CHARS_MAX and _FOLDER.fullmatch(job):
        return job
    plain = re.sub(r"[^A-Za-z0-9]+", "-", job).strip("-")[:60] or "job"
    return f"{plain}-{xxhash.xxh3_64_hexdigest(job.encode('utf-8', 'surrogatepass'))}"


def checkpoint_folder(
    job: str, number: int, kind: CheckpointKind = CheckpointKind.CHECKPOINT
) -> str:
    """Return `JOB/chk-N/`, with the slash."""
    assert number >= 0, f"checkpoint numbers start at 0, got {number}"
    return f"{job_folder(job)}/{kind.value}-{number}/"


def checkpoints_prefix(job: str, kind: CheckpointKind) -> str:
    """Return the common prefix of the paths of all files of that kind."""
    return f"{job_folder(job)}/{kind.value}-"


def metadata_path(job: str, number: int, kind: CheckpointKind = CheckpointKind.CHECKPOINT) -> str:
    """Return the path of the file whose existence completes the checkpoint."""
    return checkpoint_folder(job, number, kind) + "metadata"


def segment_path(
    job: str,
    number: int,
    worker: int,
    epoch: int,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
) -> str:
    """Return the path of a worker's data file of a checkpoint."""
    assert worker >= 0, f"worker {worker}"
    assert epoch >= 0, f"epoch {epoch}"
    return f"{checkpoint_folder(job, number, kind)}worker-{worker}-e{epoch}.segment"


def log_path(job: str, number: int, worker: int, epoch: int, piece: int) -> str:
    """Return the path of a piece of in-flight log that `worker` writes before checkpoint
    `number` is taken.
    """
    assert piece >= 0, f"piece {piece}"
    segment = segment_path(job, number, worker, epoch)
    return f"{segment.removesuffix('.segment')}-log-{piece}.segment"


def shared_folder(job: str) -> str:
    """Return `JOB/shared/`, with the slash."""
    return f"{job_folder(job)}/shared/"


def shared_path(job: str, number: int, worker: int, epoch: int, checksum: str) -> str:
    """Return the path of a file that later checkpoints may name too.

    No other worker writes it: the epoch tells attempts apart, and equal checksums within an attempt
    mean equal files. The number is in front so that the files of an abandoned checkpoint are found
    by it.
    """
    assert min(number, worker, epoch) >= 0, (number, worker, epoch)
    name = f"{number}-w{worker}-e{epoch}-{checksum}"
    assert _SHARED.fullmatch(name), name
    return shared_folder(job) + name


def savepoint_file_path(job: str, number: int, worker: int, epoch: int, checksum: str) -> str:
    """Return the path of such a file in a savepoint, which shares none: the savepoint's own
    folder.
    """
    name = shared_path(job, number, worker, epoch, checksum).rpartition("/")[2]
    return checkpoint_folder(job, number, CheckpointKind.SAVEPOINT) + name


def shared_prefix(job: str, number: int) -> str:
    """Return the common prefix of all shared files written for checkpoint `number`."""
    return f"{shared_folder(job)}{number}-"


def owner(handle: str) -> int | None:
    """Return the checkpoint for which a handle's file was written; None: a savepoint."""
    match = _OWNED.match(handle)
    return None if match is None else int(match[1] or match[2])


def epochs_folder(job: str) -> str:
    """Return `JOB/epochs/`, with the slash."""
    return f"{job_folder(job)}/epochs/"


def epoch_path(job: str, epoch: int) -> str:
    """Return the path of the file that fences every epoch below `epoch`."""
    assert epoch >= 0, f"epoch {epoch}"
    return f"{epochs_folder(job)}{epoch}"


def start_path(job: str, start: EpochStart) -> str:
    """Return the path of the file that tells where an epoch started. Format, never change."""
    return f"{epoch_path(job, start.epoch)}-from-{start.checkpoint}-e{start.completed_by}"


def failed_path(job: str, operator: str, subtask: int) -> str:
    """Return the path of the batch at which a subtask of an operator failed last."""
    return f"{job_folder(job)}/failed/{job_folder(operator)}-{subtask}.arrow"


def staged_folder(job: str, operator: str) -> str:
    """Return `JOB/staged/OPERATOR`, the folder of a source's staged records."""
    return f"{job_folder(job)}/staged/{job_folder(operator)}"


def history_path(job: str) -> str:
    """Return the path of the recording of the job's page."""
    return f"{job_folder(job)}/history"


def owner_path(job: str) -> str:
    """Return the path of the file that holds the job's token."""
    return f"{job_folder(job)}/owner"


def links_folder(job: str) -> str:
    """Return `JOB/elsewhere/`, with the slash. Format, never change."""
    return f"{job_folder(job)}/elsewhere/"


def link_path(job: str, number: int) -> str:
    """Return the path of the link of this number."""
    assert number >= 0, f"link {number}"
    return f"{links_folder(job)}{number}"


def claimed_path(job: str, number: int, kind: CheckpointKind) -> str:
    """Return the path of the file that names the job which has claimed the checkpoint."""
    return checkpoint_folder(job, number, kind) + "claimed"


def released_path(job: str, number: int, kind: CheckpointKind) -> str:
    """Return the path of the former metadata of a claimed checkpoint that is being deleted."""
    return checkpoint_folder(job, number, kind) + "released"


@lru_cache(maxsize=4096)  # Many handles of a checkpoint name one file.
def is_plain_path(path: str) -> bool:
    """Tell whether `path` is relative and normalised, of plain characters, without hidden or parent
    components.
    """
    if not 0 < len(path) <= PATH_CHARS_MAX:
        return False
    return all(_COMPONENT.fullmatch(component) for component in path.split("/"))


def handle_path(job: str, path: str) -> str:
    """Return `path`, which lies in the job's folder, as a handle states it. Raises: InvalidPath."""
    folder = f"{job_folder(job)}/"
    relative = path.removeprefix(folder)
    if relative == path or not is_plain_path(relative):
        raise InvalidPath(path)
    return relative


def store_path(job: str, handle: str) -> str:
    """Return the path in the store of a handle's path.

    Raises: InvalidPath if it could leave the job's folder.
    """
    if not is_plain_path(handle):
        raise InvalidPath(handle)
    return f"{job_folder(job)}/{handle}"


@lru_cache(maxsize=4096)  # A folder is listed again and again.
def parse_checkpoint_path(path: str) -> CheckpointPath | None:
    """Take apart a path below a checkpoint's or savepoint's folder; None for every other path."""
    folder, _, rest = path.partition("/")
    middle, _, name = rest.partition("/")
    match = _CHECKPOINT_FOLDER.fullmatch(middle)
    if match is None or not name or not _FOLDER.fullmatch(folder):
        return None
    return CheckpointPath(folder, CheckpointKind(match[1]), int(match[2]), name)


def parse_shared_path(path: str) -> SharedName | None:
    """Take apart `shared/NAME`, as handles state it; None for every other path."""
    folder, _, name = path.rpartition("/")
    match = _SHARED.fullmatch(name)
    if folder != "shared" or match is None:
        return None
    return SharedName(int(match[1]), int(match[2]), int(match[3]), match[4])


def writer_epoch(path: str) -> int | None:
    """Return the epoch in the name of a data file; None: there is none."""
    name = path.rpartition("/")[2]
    match = _WRITER.fullmatch(name)
    if match is not None:
        return int(match[2])
    shared = _SHARED.fullmatch(name)
    return None if shared is None else int(shared[3])


def parse_start_path(path: str) -> EpochStart | None:
    """Take apart `JOB/epochs/E-from-N-eX`; None for every other path."""
    parts = path.split("/")
    match = _START.fullmatch(parts[-1])
    if len(parts) != 3 or parts[1] != "epochs" or match is None:
        return None
    return EpochStart(int(match[1]), int(match[2]), int(match[3]))


def parse_link_path(path: str) -> int | None:
    """Return the number of `JOB/elsewhere/N`; None for every other path."""
    parts = path.split("/")
    if len(parts) != 3 or parts[1] != "elsewhere" or not _EPOCH.fullmatch(parts[2]):
        return None
    return int(parts[2])


def parse_history_path(path: str) -> str | None:
    """Return the job's folder of `JOB/history`; None for every other path."""
    folder, _, name = path.partition("/")
    return folder if name == "history" and _FOLDER.fullmatch(folder) else None


def parse_epoch_path(path: str) -> int | None:
    """Return the epoch of `JOB/epochs/E`; None for every other path."""
    parts = path.split("/")
    if len(parts) != 3 or parts[1] != "epochs" or not _EPOCH.fullmatch(parts[2]):
        return None
    return int(parts[2])
