"""Places in a job's sequence of checkpoints that are taken by what lies elsewhere.

`JOB/elsewhere/N` says that place N is that of a checkpoint or savepoint in some directory. There are two ways to come by one:

- A run claimed a checkpoint of another directory. The record keeps the claim beyond the run that made it: whoever goes on with the job knows
  what is still to be deleted, and what to start from as long as nothing newer is complete.
- A run was stopped with a savepoint, by which its sinks commit. The record is written before the savepoint's metadata, so that the one
  file whose creation completes the savepoint also makes it the newest point of the history. A record whose savepoint never came stands for nothing.

Not here: which of them a run starts from (`engine/drivers/restore.py`), and what becomes of what was claimed (`claims.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from .catalog import load_kind
from .layout import CheckpointKind, elsewhere_folder, elsewhere_path, parse_elsewhere_path
from .metadata import CheckpointMetadata
from .store import AlreadyExists, NotFound, Store

#: Largest record that is read.
_BYTES_MAX = 64 * 1024


class Elsewhere(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What takes a place.

    Attributes:
        number: the place.
        directory: URL of the checkpoint directory that it lies in; empty: the one of the record.
        job: its job's name.
        checkpoint: its number there.
        savepoint: it is one.
        claimed: it is to be deleted when it is subsumed.
    """

    number: int
    directory: str
    job: str
    checkpoint: int
    savepoint: bool
    claimed: bool

    @property
    def kind(self) -> CheckpointKind:
        """What it is."""
        return CheckpointKind.SAVEPOINT if self.savepoint else CheckpointKind.CHECKPOINT

    def __str__(self) -> str:
        where = f" in {self.directory}" if self.directory else ""
        return f"{self.kind.value}-{self.checkpoint} of job {self.job!r}{where}"


class Damaged(NamedTuple):
    """A record that is not what was written, and why; what it stood for is not known."""

    number: int
    reason: str


_decoder = msgspec.json.Decoder(Elsewhere)


def note(store: Store, job: str, record: Elsewhere) -> None:
    """Write the record; durable on return. Repeating it is safe. Raises: AlreadyExists when another has the place; StoreError."""
    path = elsewhere_path(job, record.number)
    data = msgspec.json.encode(record) + b"\n"
    try:
        store.create(path, data)
    except AlreadyExists:
        if store.get(path) != data:
            raise


def noted(store: Store, job: str) -> tuple[list[Elsewhere], list[Damaged]]:
    """All records, and those that cannot be read; each lowest place first. Raises: StoreError."""
    read = [_read(store, job, number) for number in places(store, job)]
    return (
        [record for record in read if isinstance(record, Elsewhere)],
        [record for record in read if isinstance(record, Damaged)],
    )


def places(store: Store, job: str) -> list[int]:
    """The places that are taken, in ascending order. Raises: StoreError."""
    found = (parse_elsewhere_path(path) for path in store.list(elsewhere_folder(job)))
    return sorted(number for number in found if number is not None)


def forget(store: Store, job: str, number: int) -> None:
    """Remove a record. Repeating it is safe. Raises: StoreError."""
    store.delete(elsewhere_path(job, number))


def load(store: Store, record: Elsewhere) -> CheckpointMetadata:
    """Read the metadata of what a record stands for. `store`: its directory. Raises: as `catalog.load`."""
    return load_kind(store, record.job, record.checkpoint, record.kind)


def _read(store: Store, job: str, number: int) -> Elsewhere | Damaged | None:
    try:
        data = store.get(elsewhere_path(job, number))
    except NotFound:
        return None  # forgotten since it was listed
    if len(data) > _BYTES_MAX:
        return Damaged(number, f"{len(data)} bytes are too many")
    try:
        record = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return Damaged(number, str(error))
    if record.number != number or record.checkpoint < 0 or not record.job:
        return Damaged(number, f"{record} cannot take place {number}")
    return record
