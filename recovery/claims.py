"""Claims: a checkpoint of another directory becomes a job's own, and is deleted when subsumed.

    acquire  `JOB/KIND-N/claimed` is created exclusively in the checkpoint's folder: one job has it
    release  files that only this checkpoint names are deleted: its metadata first, the claim last

The claiming job builds nothing upon the checkpoint, so only checkpoints of the other folder name
its files, and keep them. The release reads those checkpoints itself: the folder may have lost some
since the claim.

Between two calls to storage the owner of the folder may go on from another checkpoint. A new
checkpoint names no file of the released one beyond those of its own predecessor, which is complete
until the new one is. So the release looks again only when a listed checkpoint has gone.

Not here: fencing the driver of the other job (`catalog.claim_epoch`), and when a claimed checkpoint
is subsumed (`engine/coordinator/retention.py`).
"""

from __future__ import annotations

import msgspec

from .catalog import complete_checkpoints, load_kind, metadata_bytes
from .codec import CorruptMetadata, UnsupportedVersion, decode_metadata
from .layout import (
    CheckpointKind,
    checkpoint_folder,
    checkpoints_prefix,
    claimed_path,
    metadata_path,
    parse_checkpoint_path,
    released_path,
    shared_prefix,
    store_path,
)
from .metadata import CheckpointMetadata
from .records import RECORD_BYTES_MAX, DamagedRecord, decode_record, encode_record
from .registry import references
from .store import AlreadyExists, NotFound, Store, TooLarge

#: How often a release reads the other checkpoints before it gives up.
_LOOKS_MAX = 16


class Claimer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The claiming job: its checkpoint directory (a URL) and its name."""

    directory: str
    job: str

    def __str__(self) -> str:
        return f"job {self.job!r} with its checkpoints in {self.directory}"


class AlreadyClaimed(Exception):
    """Another job holds the claim. `path`: of the claim; `claimer`: None if unreadable."""

    def __init__(self, path: str, claimer: Claimer | None) -> None:
        super().__init__(path, claimer)
        self.path = path
        self.claimer = claimer

    def __str__(self) -> str:
        who = "somebody" if self.claimer is None else str(self.claimer)
        return f"{who} has claimed it ({self.path})"


class NotReleased(Exception):
    """The claimed checkpoint stays: its files cannot be told from others'. The message says why."""


def acquire(store: Store, job: str, number: int, kind: CheckpointKind, claimer: Claimer) -> None:
    """Claim a checkpoint of `job`; repeating is safe. An unreadable claim is taken over.

    Raises: AlreadyClaimed, StoreError.
    """
    path = claimed_path(job, number, kind)
    data = encode_record(claimer)
    try:
        store.create(path, data)
    except AlreadyExists:
        found = _claimer(store, path)
        if found is None:
            store.put(path, data)
        elif found != claimer:
            raise AlreadyClaimed(path, found) from None


def check_unclaimed(
    store: Store, job: str, number: int, kind: CheckpointKind, claimer: Claimer
) -> None:
    """Check that no other job has claimed the checkpoint. Raises: AlreadyClaimed, StoreError."""
    path = claimed_path(job, number, kind)
    try:
        found = _claimer(store, path)
    except NotFound:
        return
    if found is not None and found != claimer:
        raise AlreadyClaimed(path, found)


def is_claimed(store: Store, job: str, number: int, kind: CheckpointKind) -> bool:
    """Return whether some job has claimed the checkpoint. Raises: StoreError."""
    return claimed_path(job, number, kind) in store.list(checkpoint_folder(job, number, kind))


def claimed_checkpoints(store: Store, job: str) -> set[int]:
    """Return the numbers of claimed checkpoints of `job`, without savepoints.

    Raises: StoreError.
    """
    paths = store.list(checkpoints_prefix(job, CheckpointKind.CHECKPOINT))
    found = (parse_checkpoint_path(path) for path in paths)
    return {parsed.number for parsed in found if parsed is not None and parsed.name == "claimed"}


def release(store: Store, job: str, number: int, kind: CheckpointKind, claimer: Claimer) -> None:
    """Delete a claimed checkpoint, but for files named by others of its folder.

    Repeating is safe, and goes on after an interruption.

    Raises: AlreadyClaimed: another job has the claim by now; NotReleased: the checkpoint stays
        whole; StoreError.
    """
    claim = claimed_path(job, number, kind)
    try:
        found = _claimer(store, claim)
    except NotFound:
        # Either all is deleted, or its owner has taken it away.
        return
    if found != claimer:
        raise AlreadyClaimed(claim, found)
    metadata = _withdraw(store, job, number, kind)
    kept = _named(store, job, number, kind)
    doomed = set() if metadata is None else set(references(metadata))
    paths = {store_path(job, path) for path in doomed}
    paths |= set(store.list(checkpoint_folder(job, number, kind)))
    if kind is CheckpointKind.CHECKPOINT:
        paths |= set(store.list(shared_prefix(job, number)))
    released = released_path(job, number, kind)
    for path in sorted(paths - kept - {claim, released}):
        store.delete(path)
    store.delete(released)
    store.delete(claim)


def _withdraw(
    store: Store, job: str, number: int, kind: CheckpointKind
) -> CheckpointMetadata | None:
    """Make the checkpoint incomplete for good, and keep its metadata aside.

    None: only the claim is left.
    """
    path, released = metadata_path(job, number, kind), released_path(job, number, kind)
    try:
        data = metadata_bytes(store, path)
        metadata = decode_metadata(data, path)
    except NotFound:
        try:
            return decode_metadata(metadata_bytes(store, released), released)
        except NotFound:
            return None
    except (CorruptMetadata, UnsupportedVersion) as error:
        raise NotReleased(str(error)) from error
    _named(store, job, number, kind)  # before anything is touched: whether that can be said at all
    store.put(released, data)
    store.delete(path)
    return metadata


def _named(store: Store, job: str, number: int, kind: CheckpointKind) -> set[str]:
    """Return the files named by the other complete checkpoints of `job`; a savepoint shares none.

    Raises: NotReleased when some cannot be read.
    """
    if kind is CheckpointKind.SAVEPOINT:
        return set()
    for _ in range(_LOOKS_MAX):
        try:
            return {
                store_path(job, path)
                for other, its in _others(store, job, number, kind)
                for path in references(load_kind(store, job, other, its))
            }
        except NotFound:
            continue  # subsumed since it was listed, by one that names what it named
        except (CorruptMetadata, UnsupportedVersion) as error:
            raise NotReleased(
                f"what another checkpoint there names is not known: {error}"
            ) from error
    raise NotReleased("the other checkpoints there change faster than they can be read")


def _others(
    store: Store, job: str, number: int, kind: CheckpointKind
) -> list[tuple[int, CheckpointKind]]:
    complete = set(complete_checkpoints(store, job))
    checkpoints = set(complete_checkpoints(store, job, savepoints=False))
    # A savepoint shares no files; a savepoint is listed unless a checkpoint bears its number too.
    found = [(n, CheckpointKind.CHECKPOINT) for n in checkpoints]
    found += [(n, CheckpointKind.SAVEPOINT) for n in complete - checkpoints]
    return sorted((each for each in found if each != (number, kind)), key=lambda each: each[0])


def _claimer(store: Store, path: str) -> Claimer | None:
    """Read a claim; None: unreadable. Raises: NotFound, StoreError."""
    try:
        return decode_record(store.get(path, bytes_max=RECORD_BYTES_MAX), Claimer)
    except (DamagedRecord, TooLarge):
        return None
