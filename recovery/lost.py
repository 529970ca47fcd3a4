"""Metadata that is certainly lost, told by other files of the job's folder.

A checkpoint without metadata looks like a checkpoint never completed. Two traces tell the
difference:

- An epoch started from the checkpoint (`history.py`). Retention deletes a checkpoint only once a
  newer checkpoint is complete, so before then the start of the newest epoch is there, or lost.
- Something else than a file stands in the metadata's place: a link, a pipe or a folder.

Not told: metadata deleted before an epoch has started from the checkpoint. Nothing is left that a
checkpoint under way would not leave, too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from . import catalog
from .history import History
from .layout import CheckpointKind, metadata_path
from .links import numbers
from .store import NotAFile, NotFound, Store


class Lost(NamedTuple):
    """A checkpoint whose metadata is lost: the number, and the reason."""

    number: int
    reason: str


def lost_start(past: History, newest: int, linked: Collection[int]) -> Lost | None:
    """Return the checkpoint that the newest epoch started from, if it is lost.

    Args:
        newest: number of the newest checkpoint of the history, damaged or not.
        linked: numbers of the history that are stored elsewhere.
    """
    start = past.newest
    if start is None or start.checkpoint <= newest or start.checkpoint in linked:
        return None
    reason = f"epoch {start.epoch} started from it, and its metadata is not there any more"
    return Lost(start.checkpoint, reason)


def displaced(store: Store, job: str) -> list[Lost]:
    """Return checkpoints with something else in the metadata's place, newest first.

    Only numbers above all complete checkpoints count. Raises: StoreError.
    """
    past = catalog.history(store, job)
    newest = max(catalog.complete_checkpoints(store, job, savepoints=False), default=0)
    found: list[Lost] = []
    for number in catalog.incomplete_checkpoints(store, job):
        try:
            if number > newest:
                store.get(metadata_path(job, number, CheckpointKind.CHECKPOINT), 0, 1)
        except NotAFile as error:
            if catalog.may_count(store, job, number, past):
                found.append(Lost(number, str(error)))
        except NotFound:
            continue
    return found


def lost(store: Store, job: str) -> list[Lost]:
    """Return the checkpoints whose metadata is certainly lost, newest first.

    Raises: UnsupportedVersion, WrongJob, StoreError.
    """
    past = catalog.history(store, job)
    found = {each.number: each for each in displaced(store, job)}
    newest = catalog.newest_number(store, job, past)
    start = lost_start(past, newest, numbers(store, job))
    if start is not None:
        found.setdefault(start.number, start)
    return sorted(found.values(), reverse=True)
