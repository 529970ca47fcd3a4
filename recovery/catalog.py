"""The catalog: which checkpoints of a job exist, which one to restore, and who may write the next.

Everything is read from the store each time: no pointer to "the latest" can be stale. A checkpoint
is complete exactly when its metadata exists, so metadata is written last and deleted first.

Damage is never papered over. A damaged checkpoint is refused together with its reason, and the one
before it is used; if all are damaged the restore fails, and does not start afresh. If storage fails
to answer, the caller gets the StoreError: falling back while the newest checkpoint is merely out of
reach would undo committed output.

A checkpoint counts only if it belongs to the job's history (`history.py`): a checkpoint of a driver
that woke after its successor had started is never chosen.

A savepoint commits nothing. So the newest checkpoint is restored, even when newer savepoints exist,
and a savepoint only without any checkpoint. `withdraw` and `delete_written` never touch savepoints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextlib import suppress

from headrace.inflight.handle import BufferHandle
from headrace.inflight.segment import (
    HEADER_BYTES,
    Blob,
    CorruptBlob,
    InvalidTable,
    check_header,
    inflate,
    read_blob,
    table_from_ipc,
)

from .codec import FILE_BYTES_MAX, CorruptMetadata, decode_metadata, encode_metadata
from .handles import FileHandle, SharedFile, StateHandle, StateSchema
from .history import EpochStart, History
from .layout import (
    CheckpointKind,
    checkpoint_folder,
    checkpoints_prefix,
    epoch_path,
    epochs_folder,
    job_folder,
    links_folder,
    metadata_path,
    owner_path,
    parse_checkpoint_path,
    parse_epoch_path,
    parse_link_path,
    parse_shared_path,
    parse_start_path,
    shared_folder,
    shared_prefix,
    start_path,
    store_path,
    writer_epoch,
)
from .metadata import CheckpointMetadata
from .shared_files import read_shared
from .store import (
    AlreadyExists,
    NotFound,
    Store,
    StoreError,
    StoreRejected,
    StoreUncertain,
    TooLarge,
    holds,
    is_short,
)

#: How many epochs `claim_epoch` tries before it gives up: that many rivals or lost replies in one
#: go.
CLAIM_ATTEMPTS_MAX = 64

_TOKEN_BYTES_MAX = 1024


class WrongJob(Exception):
    """A job's folder holds checkpoints of another job.

    The folder was copied, or two names differ in letter case only.
    """

    def __init__(self, path: str, expected: str, found: str) -> None:
        super().__init__(path, expected, found)
        self.path = path
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return f"{self.path} belongs to job {self.found!r}, not to {self.expected!r}"


class ClaimFailed(StoreRejected):
    """No epoch was claimed. `tried`: the highest epoch perhaps created all the same; 0: none."""

    def __init__(self, path: str, reason: str, tried: int) -> None:
        super().__init__(path, reason)
        self.tried = tried


class EpochTaken(StoreRejected):
    """Another coordinator claimed the following epoch."""


class NoValidCheckpoint(Exception):
    """All complete checkpoints are damaged. `rejected`: [(number, reason)], newest first."""

    def __init__(self, job: str, rejected: list[tuple[int, str]]) -> None:
        super().__init__(job, rejected)
        self.job = job
        self.rejected = rejected

    def __str__(self) -> str:
        reasons = "; ".join(f"{number}: {reason}" for number, reason in self.rejected)
        return f"job {self.job!r} has no undamaged checkpoint ({reasons})"


def jobs(store: Store) -> list[str]:
    """Return the folder names of all jobs that have files of a checkpoint, sorted.

    Lists the whole store.
    """
    found = (parse_checkpoint_path(path) for path in store.list(""))
    return sorted({parsed.job for parsed in found if parsed is not None})


def complete_checkpoints(store: Store, job: str, *, savepoints: bool = True) -> list[int]:
    """Return the numbers of complete checkpoints, newest first; with `savepoints` also theirs."""
    complete = _complete(store, job)
    wanted = (n for n, k in complete.items() if savepoints or k is CheckpointKind.CHECKPOINT)
    return sorted(wanted, reverse=True)


def incomplete_checkpoints(store: Store, job: str) -> list[int]:
    """Return the numbers of checkpoints without metadata, newest first.

    They are running, aborted or half deleted.
    """
    return sorted(_numbers(store, job) - _complete(store, job).keys(), reverse=True)


def abandoned_checkpoints(store: Store, job: str) -> list[int]:
    """Return the numbers of checkpoints that have files but no metadata, without savepoints,
    sorted.

    A complete checkpoint may name some of the files.
    """
    kind = CheckpointKind.CHECKPOINT
    folders = [parse_checkpoint_path(path) for path in store.list(checkpoints_prefix(job, kind))]
    written = {parsed.number for parsed in folders if parsed is not None}
    complete = {p.number for p in folders if p is not None and p.name == "metadata"}
    folder = shared_folder(job)
    for path in store.list(folder):
        shared = parse_shared_path(f"shared/{path.removeprefix(folder)}")
        if shared is not None:
            written.add(shared.number)
    return sorted(written - complete)


def next_checkpoint_number(store: Store, job: str) -> int:
    """Return a number above all numbers with files, so that no file name comes twice."""
    linked = (parse_link_path(path) for path in store.list(links_folder(job)))
    taken = _numbers(store, job) | {number for number in linked if number is not None}
    return max(taken, default=0) + 1


def load(store: Store, job: str, number: int) -> CheckpointMetadata:
    """Read the metadata of checkpoint or savepoint `number`.

    Raises: NotFound if it is not complete, CorruptMetadata, UnsupportedVersion, WrongJob,
    StoreError.
    """
    try:
        return load_kind(store, job, number, CheckpointKind.CHECKPOINT)
    except NotFound:
        return load_kind(store, job, number, CheckpointKind.SAVEPOINT)


def load_kind(store: Store, job: str, number: int, kind: CheckpointKind) -> CheckpointMetadata:
    """Read the metadata of a checkpoint or a savepoint. Raises: as `load`."""
    path = metadata_path(job, number, kind)
    metadata = decode_metadata(metadata_bytes(store, path), path)
    if job_folder(metadata.job) != job_folder(job):
        raise WrongJob(path, job, metadata.job)
    if metadata.checkpoint != number:
        raise CorruptMetadata(path, 0, f"checkpoint {number}", f"checkpoint {metadata.checkpoint}")
    if metadata.savepoint != (kind is CheckpointKind.SAVEPOINT):
        raise CorruptMetadata(path, 0, f"a {kind.name.lower()}", f"savepoint={metadata.savepoint}")
    return metadata


def metadata_bytes(store: Store, path: str) -> bytes:
    """Read a metadata file whole. Raises: CorruptMetadata if it is too large; StoreError."""
    try:
        return store.get(path, bytes_max=FILE_BYTES_MAX)
    except TooLarge as error:
        expected = f"at most {FILE_BYTES_MAX} bytes"
        raise CorruptMetadata(path, 0, expected, error.reason) from error


def newest_valid(store: Store, job: str) -> tuple[CheckpointMetadata | None, list[tuple[int, str]]]:
    """Return the newest undamaged checkpoint, and newer damaged ones: (number, reason).

    Its files were probed (they exist and are long enough); reading verifies their checksums. None,
    with an empty list, means that the job has no complete checkpoint. Raises: NoValidCheckpoint,
    UnsupportedVersion, WrongJob, StoreError.
    """
    rejected: list[tuple[int, str]] = []
    past = history(store, job)
    complete = _complete(store, job)
    for number in sorted(complete, key=lambda n: (complete[n].value, -n)):
        try:
            metadata = load_kind(store, job, number, complete[number])
        except CorruptMetadata as error:
            if may_count(store, job, number, past):
                rejected.append((number, str(error)))
            continue
        except NotFound:
            # Deleted between the listing and now: it was subsumed, which is no damage.
            continue
        if not belongs(metadata, past):
            continue
        problem = _probe(store, job, metadata)
        if problem is None:
            return metadata, rejected
        rejected.append((number, problem))
    if rejected:
        raise NoValidCheckpoint(job, rejected)
    return None, []


def history(store: Store, job: str) -> History:
    """Read where the job's epochs started. Raises: StoreError."""
    found = (parse_start_path(path) for path in store.list(epochs_folder(job)))
    return History(start for start in found if start is not None)


def note_start(store: Store, job: str, start: EpochStart) -> None:
    """Note where an epoch starts; durable on return. Repeating is safe. Raises: StoreError."""
    with suppress(AlreadyExists):
        store.create(start_path(job, start), b"")


def belongs(metadata: CheckpointMetadata, past: History) -> bool:
    """Return whether the checkpoint is of the job's history; a savepoint, the user's own, is."""
    return metadata.savepoint or past.counts(metadata.checkpoint, metadata.epoch)


def may_count(store: Store, job: str, number: int, past: History) -> bool:
    """Return whether a checkpoint whose metadata cannot be read may be of the history, by the epoch
    in the names of its files.

    Raises: StoreError.
    """
    paths = store.list(checkpoint_folder(job, number))
    epochs = [epoch for epoch in map(writer_epoch, paths) if epoch is not None]
    return not epochs or past.counts(number, max(epochs))


def newest_number(store: Store, job: str, past: History) -> int:
    """Return the number of the newest checkpoint of the history, damaged or not; 0: there is none.

    Raises: UnsupportedVersion, WrongJob, StoreError.
    """
    for number in complete_checkpoints(store, job, savepoints=False):
        try:
            counts = belongs(load_kind(store, job, number, CheckpointKind.CHECKPOINT), past)
        except CorruptMetadata:
            counts = may_count(store, job, number, past)
        except NotFound:
            continue
        if counts:
            return number
    return 0


def verify(store: Store, job: str, number: int) -> list[str]:
    """Read every byte that checkpoint `number` refers to and return the faults, as sentences.

    Raises: UnsupportedVersion, WrongJob, StoreUncertain; an absent checkpoint is a problem.
    """
    try:
        metadata = load(store, job, number)
    except (CorruptMetadata, StoreRejected) as error:
        return [str(error)]
    problems: list[str] = []
    handles = _handles(metadata)
    for path in sorted({handle.path for handle in handles}):
        problems += _verify_header(store, store_path(job, path))
    for handle in handles:
        problems += _verify_handle(store, store_path(job, handle.path), handle)
    for file in _shared(metadata):
        problems += _verify_shared(store, store_path(job, file.path), file)
    return problems


def publish(store: Store, metadata: CheckpointMetadata) -> None:
    """Complete a checkpoint by writing its metadata exclusively.

    Repeating it after StoreUncertain is safe.

    Raises: AlreadyExists if another attempt completed this number with other contents: the caller
    was fenced off and must stop. StoreError; InvalidMetadata.
    """
    kind = CheckpointKind.SAVEPOINT if metadata.savepoint else CheckpointKind.CHECKPOINT
    path = metadata_path(metadata.job, metadata.checkpoint, kind)
    data = encode_metadata(metadata)
    try:
        store.create(path, data)
    except AlreadyExists:
        if not holds(store, path, data):
            raise


def withdraw(store: Store, job: str, number: int) -> None:
    """Delete the metadata of a checkpoint, never of a savepoint; other files stay.

    Repeating is safe. Raises: StoreError.
    """
    store.delete(metadata_path(job, number))


def delete_written(
    store: Store,
    job: str,
    number: int,
    keep: Collection[str] = frozenset(),
    epoch: int | None = None,
) -> None:
    """Delete all files written for a withdrawn checkpoint, shared files too.

    Files in `keep` stay (paths of handles, to which other checkpoints refer), and files written by
    an epoch above `epoch`, which may have used the number, too. A repetition is safe. Raises:
    StoreError.
    """
    kept = {store_path(job, path) for path in keep}
    metadata = metadata_path(job, number)
    for prefix in (checkpoint_folder(job, number), shared_prefix(job, number)):
        for path in store.list(prefix):
            newer = epoch is not None and (path == metadata or (writer_epoch(path) or 0) > epoch)
            if path not in kept and not newer:
                store.delete(path)


def delete_partial_savepoint(store: Store, job: str, number: int) -> None:
    """Delete the files of a savepoint that was given up, unless complete. Raises: StoreError."""
    paths = store.list(checkpoint_folder(job, number, CheckpointKind.SAVEPOINT))
    if metadata_path(job, number, CheckpointKind.SAVEPOINT) not in paths:
        for path in paths:
            store.delete(path)


def delete_file(store: Store, job: str, path: str) -> None:
    """Delete a file by the path in its handles. Raises: StoreError."""
    store.delete(store_path(job, path))


def newest_epoch(store: Store, job: str) -> int | None:
    """Return the highest claimed epoch; lower epochs are fenced off. None: no epoch is claimed."""
    epochs = (parse_epoch_path(path) for path in store.list(epochs_folder(job)))
    return max((epoch for epoch in epochs if epoch is not None), default=None)


def claim_epoch(store: Store, job: str, *, above: int = 0) -> int:
    """Claim the smallest epoch above all existing ones and above `above`, exclusively.

    The first is 1.

    `above` matters when the folder was lost: an epoch that a worker has seen must not come again. A
    claim with an unknown outcome is left behind as a gap in the numbers. Raises: ClaimFailed, which
    tells of such gaps; EpochTaken when a rival has claimed one above `above`, if given, or claims
    it in this very moment; StoreError when it could not even look.
    """
    tried = 0
    newest = newest_epoch(store, job) or 0
    if 0 < above < newest:
        # The look that counts: a coordinator may have been frozen since an earlier one.
        raise EpochTaken(epoch_path(job, newest), "another coordinator has claimed it")
    epoch = max(newest, above) + 1
    for attempt in range(CLAIM_ATTEMPTS_MAX):
        path = epoch_path(job, epoch + attempt)
        try:
            store.create(path, f"{job}\n".encode("utf-8", "surrogatepass"))
        except AlreadyExists as error:
            if above:
                raise EpochTaken(path, error.reason) from error
            continue
        except StoreUncertain:
            tried = epoch + attempt
            continue
        except StoreError as error:
            raise ClaimFailed(path, error.reason, tried) from error
        return epoch + attempt
    raise ClaimFailed(path, f"{CLAIM_ATTEMPTS_MAX} epochs in a row could not be had", tried)


def owner_token(store: Store, job: str, fresh: str) -> str:
    """Return the token by which sinks know the job in this directory: `fresh` at the first call.

    Raises: StoreError.
    """
    path = owner_path(job)
    for _ in range(CLAIM_ATTEMPTS_MAX):
        with suppress(NotFound):
            return _token(store, path)
        try:
            store.create(path, fresh.encode("ascii"))
        except (AlreadyExists, StoreUncertain):
            continue
        return fresh
    raise StoreUncertain(path, f"it was not there after {CLAIM_ATTEMPTS_MAX} writes")


def _token(store: Store, path: str) -> str:
    token = store.get(path, bytes_max=_TOKEN_BYTES_MAX).decode("ascii", "replace")
    if not re.fullmatch("[0-9a-f]+", token):
        raise StoreRejected(path, f"{token!r} is no token of a job; delete the file")
    return token


def _numbers(store: Store, job: str) -> set[int]:
    """Return all numbers with files, of both kinds."""
    parsed = [
        parse_checkpoint_path(path)
        for kind in CheckpointKind
        for path in store.list(checkpoints_prefix(job, kind))
    ]
    return {path.number for path in parsed if path is not None}


def _complete(store: Store, job: str) -> dict[int, CheckpointKind]:
    found: dict[int, CheckpointKind] = {}
    for kind in CheckpointKind:
        for path in store.list(checkpoints_prefix(job, kind)):
            parsed = parse_checkpoint_path(path)
            if parsed is not None and parsed.name == "metadata":
                # Should both kinds exist, the checkpoint wins, as in `load`.
                found.setdefault(parsed.number, kind)
    return found


_Handle = StateHandle | StateSchema | FileHandle | BufferHandle


def _handles(metadata: CheckpointMetadata) -> list[_Handle]:
    """Return the handles of operator state and in-flight data, each once."""
    states: list[_Handle] = []
    for subtask in metadata.subtasks:
        states += subtask.states
        for database in subtask.databases:
            states += [*database.schemas, *database.own]
    buffers = {
        (buffer.path, buffer.offset): buffer
        for subtask in metadata.subtasks
        for channel in subtask.inflight
        for buffer in channel.buffers
    }
    return [*states, *buffers.values()]


def _shared(metadata: CheckpointMetadata) -> list[SharedFile]:
    """Return the shared files, each once."""
    found = {
        file.path: file
        for subtask in metadata.subtasks
        for database in subtask.databases
        for file in database.shared
    }
    return list(found.values())


def _probe(store: Store, job: str, metadata: CheckpointMetadata) -> str | None:
    """Read header and last byte of each file: finds missing, cut and foreign files.

    Raises: StoreError, when storage does not answer, or cannot read an object.
    """
    ends: dict[str, int] = {}
    for handle in _handles(metadata):
        end = max(HEADER_BYTES, handle.offset + handle.length)
        ends[handle.path] = max(ends.get(handle.path, 0), end)
    for handle_path, end in sorted(ends.items()):
        path = store_path(job, handle_path)
        try:
            check_header(_reader(store, path))
            store.get(path, end - 1, 1)
        except StoreRejected as error:
            return _damage(store, path, end, error)
        except CorruptBlob as error:
            return f"{path}: {error}"
    for file in _shared(metadata):
        try:
            store.get(store_path(job, file.path), max(0, file.length - 1), min(1, file.length))
        except StoreRejected as error:
            return _damage(store, store_path(job, file.path), file.length, error)
    return None


def _damage(store: Store, path: str, end: int, refused: StoreRejected) -> str:
    """Describe the damage of a file that could not be read in full.

    Raises `refused` for a whole file: another try may help, an older checkpoint does not.
    """
    if isinstance(refused, NotFound) or is_short(store, path, end):
        return str(refused)
    raise refused


def _reader(store: Store, path: str) -> Callable[[int, int], bytes]:
    return lambda offset, length: store.get(path, offset, length)


def _verify_header(store: Store, path: str) -> list[str]:
    try:
        check_header(_reader(store, path))
    except StoreRejected as error:
        return [str(error)]
    except CorruptBlob as error:
        return [f"{path}: {error}"]
    return []


def _verify_shared(store: Store, path: str, file: SharedFile) -> list[str]:
    job, _, _ = path.partition("/")
    try:
        read_shared(store, job, file)
    except StoreRejected as error:
        return [str(error)]
    except CorruptBlob as error:
        return [f"{path}: {error}"]
    return []


def _verify_handle(store: Store, path: str, handle: _Handle) -> list[str]:
    blob = Blob(handle.offset, handle.length, handle.checksum)
    what, rows = _described(path, handle)
    try:
        data = read_blob(_reader(store, path), blob)
        if isinstance(handle, FileHandle):
            return []
        if isinstance(handle, BufferHandle) and handle.inflated:
            data = inflate(data, handle.inflated)
        table = table_from_ipc(data)
    except StoreRejected as error:
        return [f"{what}: {error.reason}"]
    except (CorruptBlob, InvalidTable) as error:
        return [f"{what}: {error}"]
    if table.num_rows != rows:
        return [f"{what}: expected {rows} rows, found {table.num_rows}"]
    return []


def _described(path: str, handle: _Handle) -> tuple[str, int]:
    """Return a name for the handle, and its number of rows."""
    match handle:
        case StateHandle():
            return f"{path}: state {handle.state!r} of {handle.operator!r}", handle.rows
        case StateSchema():
            return f"{path}: the columns of state {handle.state!r}", 0
        case FileHandle():
            return f"{path}: database file {handle.name!r}", 0
        case BufferHandle():
            return f"{path}: in-flight data at {handle.offset}", handle.blob_rows
