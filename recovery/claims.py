"""Claims: a checkpoint or savepoint of another folder becomes a job's own, and is deleted when the job needs it no more.

    stake    `JOB/KIND-N/claimed` is created exclusively in the folder of the checkpoint: at most one claims it
    release  what it alone names is deleted: first its metadata, last the claim

A job builds nothing upon what it has claimed, so nothing but the checkpoint itself names its files, and those others in its folder that were taken
of the same history. These, and savepoints, keep what they name. They are asked at the time of the release, not before: the folder may have
lost some since.

Between two calls to storage the owner of that folder may go on from another of its checkpoints. A new checkpoint of it names no file of the released one that
the one it went on from does not name, which is complete until the new one is. So it is enough to look again when one that was listed has gone.

Not here: fencing the driver of the other job (its epoch is claimed, `catalog.claim_epoch`), and when the claimed one is subsumed.
"""

from __future__ import annotations

import msgspec

from .catalog import complete_checkpoints, load_kind
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
from .registry import references
from .store import AlreadyExists, NotFound, Store

#: How often it is looked again for what names a file before that is given up.
_LOOKS_MAX = 16


class Claimer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who claims: a job, known by its checkpoint directory (a URL) and its name."""

    directory: str
    job: str

    def __str__(self) -> str:
        return f"job {self.job!r} with its checkpoints in {self.directory}"


class AlreadyClaimed(Exception):
    """Somebody else has claimed it. `path`: the file that says so; `claimer`: who; None: it cannot be read."""

    def __init__(self, path: str, claimer: Claimer | None) -> None:
        super().__init__(path, claimer)
        self.path = path
        self.claimer = claimer

    def __str__(self) -> str:
        who = "somebody" if self.claimer is None else str(self.claimer)
        return f"{who} has claimed it ({self.path})"


class NotReleased(Exception):
    """What was claimed stays: its files cannot be told from others'. The message says why."""


_decoder = msgspec.json.Decoder(Claimer)


def stake(store: Store, job: str, number: int, kind: CheckpointKind, claimer: Claimer) -> None:
    """Claim a checkpoint of `job`. Repeating it is safe. What nobody can read nobody has claimed. Raises: AlreadyClaimed, StoreError."""
    path = claimed_path(job, number, kind)
    data = msgspec.json.encode(claimer) + b"\n"
    try:
        store.create(path, data)
    except AlreadyExists:
        found = _claimer(store.get(path))
        if found is None:
            store.put(path, data)
        elif found != claimer:
            raise AlreadyClaimed(path, found) from None


def check_unclaimed(
    store: Store, job: str, number: int, kind: CheckpointKind, claimer: Claimer
) -> None:
    """See that nobody but `claimer` has claimed the checkpoint. Raises: AlreadyClaimed, StoreError."""
    path = claimed_path(job, number, kind)
    try:
        found = _claimer(store.get(path))
    except NotFound:
        return
    if found is not None and found != claimer:
        raise AlreadyClaimed(path, found)


def claimed_checkpoints(store: Store, job: str) -> set[int]:
    """Numbers of the checkpoints of `job`, savepoints not among them, that somebody has claimed. Raises: StoreError."""
    paths = store.list(checkpoints_prefix(job, CheckpointKind.CHECKPOINT))
    found = (parse_checkpoint_path(path) for path in paths)
    return {parsed.number for parsed in found if parsed is not None and parsed.name == "claimed"}


def release(store: Store, job: str, number: int, kind: CheckpointKind, claimer: Claimer) -> None:
    """Delete what `claimer` has claimed, but for files that others there name. Repeating it is safe, and goes on where it was cut off.

    Raises: AlreadyClaimed, when it is another's meanwhile; NotReleased, when it is whole and stays; StoreError.
    """
    claim = claimed_path(job, number, kind)
    try:
        found = _claimer(store.get(claim))
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
    """Make it incomplete for good; what it named stays known. None: only the claim is left."""
    path, released = metadata_path(job, number, kind), released_path(job, number, kind)
    try:
        data = store.get(path)
    except NotFound:
        try:
            return decode_metadata(store.get(released), released)
        except NotFound:
            return None
    try:
        metadata = decode_metadata(data, path)
    except (CorruptMetadata, UnsupportedVersion) as error:
        raise NotReleased(str(error)) from error
    _named(store, job, number, kind)  # before anything is touched: whether that can be said at all
    store.put(released, data)
    store.delete(path)
    return metadata


def _named(store: Store, job: str, number: int, kind: CheckpointKind) -> set[str]:
    """Paths of all files that the other complete checkpoints of `job` name. Raises: NotReleased when that cannot be said.

    A savepoint shares none with anybody.
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
    # A savepoint shares no files; only one whose number a checkpoint bears too is not listed.
    found = [(n, CheckpointKind.CHECKPOINT) for n in checkpoints]
    found += [(n, CheckpointKind.SAVEPOINT) for n in complete - checkpoints]
    return sorted((each for each in found if each != (number, kind)), key=lambda each: each[0])


def _claimer(data: bytes) -> Claimer | None:
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
