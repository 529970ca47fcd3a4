"""Lost metadata is told by what else is there, and only when it is certain."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery import catalog
from headrace.recovery.history import EpochStart
from headrace.recovery.layout import metadata_path
from headrace.recovery.lost import lost
from headrace.recovery.records import encode_record
from tests.recovery.samples import METADATA

JOB = METADATA.job


@pytest.fixture
def store(tmp_path: Path) -> FsspecStore:
    """Checkpoints 5 and 6 of epoch 1 are complete, epoch 2 started from 6; 7 was under way."""
    store = FsspecStore(str(tmp_path))
    for number in (5, 6):
        metadata = msgspec.structs.replace(METADATA, checkpoint=number, epoch=1)
        catalog.publish(store, metadata)
    store.put(f"{JOB}/chk-6/worker-0-e1.segment", b"")
    store.put(f"{JOB}/chk-7/worker-0-e2.segment", b"")
    catalog.note_start(store, JOB, EpochStart(1, 0, 0))
    catalog.note_start(store, JOB, EpochStart(2, 6, 1))
    return store


def lose(store: FsspecStore, number: int) -> None:
    store.delete(metadata_path(JOB, number))


def numbers(store: FsspecStore) -> list[int]:
    return [each.number for each in lost(store, JOB)]


def test_nothing_is_lost_at_first(store: FsspecStore) -> None:
    assert lost(store, JOB) == []
    assert lost(store, "another") == []


def test_what_an_epoch_started_from_is_lost(store: FsspecStore) -> None:
    lose(store, 6)
    assert lost(store, JOB) == [
        (6, "epoch 2 started from it, and its metadata is not there any more")
    ]


def test_what_a_newer_checkpoint_subsumed_is_not_lost(store: FsspecStore) -> None:
    catalog.publish(store, msgspec.structs.replace(METADATA, checkpoint=8, epoch=2))
    for number in (5, 6):
        lose(store, number)
    assert lost(store, JOB) == []


def test_a_newer_checkpoint_beside_the_history_subsumes_nothing(store: FsspecStore) -> None:
    catalog.publish(store, msgspec.structs.replace(METADATA, checkpoint=8, epoch=1))
    lose(store, 6)
    assert numbers(store) == [6]


def test_a_start_from_elsewhere_is_not_lost_while_its_link_is_there(store: FsspecStore) -> None:
    catalog.note_start(store, JOB, EpochStart(3, 9, 0))
    store.put(f"{JOB}/elsewhere/9", encode_record(METADATA))
    assert lost(store, JOB) == []
    store.delete(f"{JOB}/elsewhere/9")
    assert numbers(store) == [9]


def test_what_stands_in_the_place_of_metadata_is_told(store: FsspecStore) -> None:
    at = Path(store.url, metadata_path(JOB, 7))
    os.mkfifo(at)
    assert lost(store, JOB) == [(7, f"{JOB}/chk-7/metadata: not a regular file")]
    catalog.note_start(store, JOB, EpochStart(4, 0, 0))
    assert lost(store, JOB) == [], "the job began anew"
