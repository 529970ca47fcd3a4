"""Links to checkpoints of a job's history that are stored in another directory, or as savepoints.

`JOB/elsewhere/N` links number N of the history to a checkpoint or savepoint, in one of two cases:

- A run claims a checkpoint of another directory. The link outlives that run: later runs know that
  the claim is to be released, and start from the claimed checkpoint while none newer is complete.
- A run ends with a savepoint, by which its sinks commit. The link is written before the savepoint's
  metadata, so the creation of one file both completes the savepoint and makes it the newest point
  of the history. Without that file the link dangles, and means nothing.

Not here: which checkpoint a run starts from (`engine/drivers/restore.py`), and the claim itself
(`claims.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from .catalog import load_kind
from .layout import CheckpointKind, link_path, links_folder, parse_link_path
from .metadata import CheckpointMetadata
from .records import RECORD_BYTES_MAX, DamagedRecord, decode_record, encode_record
from .store import AlreadyExists, NotFound, Store, TooLarge, holds


class CheckpointLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A number of the job's history, and the checkpoint that it stands for. Format, never change.

    Attributes:
        number: in this job's history.
        directory: URL of the checkpoint's directory; empty: the link's own.
        job: name of the checkpoint's job.
        checkpoint: the number there.
        savepoint: the target is a savepoint.
        claimed: the target is deleted when subsumed.
    """

    number: int
    directory: str
    job: str
    checkpoint: int
    savepoint: bool
    claimed: bool

    @property
    def kind(self) -> CheckpointKind:
        """Checkpoint or savepoint."""
        return CheckpointKind.SAVEPOINT if self.savepoint else CheckpointKind.CHECKPOINT

    def __str__(self) -> str:
        where = f" in {self.directory}" if self.directory else ""
        return f"{self.kind.value}-{self.checkpoint} of job {self.job!r}{where}"


class Damaged(NamedTuple):
    """A damaged link: the number, and the reason."""

    number: int
    reason: str


def write(store: Store, job: str, link: CheckpointLink) -> None:
    """Write a link; durable on return. Repeating is safe.

    Raises: AlreadyExists when the number has another link; StoreError.
    """
    path = link_path(job, link.number)
    data = encode_record(link)
    try:
        store.create(path, data)
    except AlreadyExists:
        if not holds(store, path, data):
            raise


def read_all(store: Store, job: str) -> tuple[list[CheckpointLink], list[Damaged]]:
    """Read all links: undamaged and damaged ones, each lowest number first. Raises: StoreError."""
    read = [_read(store, job, number) for number in numbers(store, job)]
    return (
        [link for link in read if isinstance(link, CheckpointLink)],
        [link for link in read if isinstance(link, Damaged)],
    )


def numbers(store: Store, job: str) -> list[int]:
    """Return the numbers of all links, sorted. Raises: StoreError."""
    found = (parse_link_path(path) for path in store.list(links_folder(job)))
    return sorted(number for number in found if number is not None)


def delete(store: Store, job: str, number: int) -> None:
    """Delete a link, not the checkpoint. Repeating is safe. Raises: StoreError."""
    store.delete(link_path(job, number))


def load(store: Store, link: CheckpointLink) -> CheckpointMetadata:
    """Read the metadata of the link's target in `store`. Raises: as `catalog.load`."""
    return load_kind(store, link.job, link.checkpoint, link.kind)


def _read(store: Store, job: str, number: int) -> CheckpointLink | Damaged | None:
    try:
        data = store.get(link_path(job, number), bytes_max=RECORD_BYTES_MAX)
    except NotFound:
        return None  # deleted since it was listed
    except TooLarge as error:
        return Damaged(number, error.reason)
    try:
        link = decode_record(data, CheckpointLink)
    except DamagedRecord as error:
        return Damaged(number, str(error))
    if link.number != number or link.checkpoint < 0 or not link.job:
        return Damaged(number, f"{link} cannot take place {number}")
    return link
