"""One checkpoint in `full_every` shares no file with older ones, so a damaged file does not reach
all retained checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.session.handle import JobHandle
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.recovery import catalog
from headrace.recovery.registry import named_of_others, references

from .test_session import WAIT_S

RETAIN, EVERY = 4, 3
NARROW = hr.Network(buffer="2KiB", window="16KiB")
SEEN = pa.schema([("key", pa.int64()), ("n", pa.int64())])


class Seen(hr.StatefulProcessor):
    n = hr.value_state(pa.int64(), default=0)

    def process(self, key: Any, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.n.value += 1
        yield {"key": key, "n": self.n.value}


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(0.02)
    return batch


def job(folder: Path, inflight: str, full_every: int) -> hr.Job:
    """State on disk, and records in flight before a slow stage."""
    numbers = hr.read.sequence(None, keys=1000, rate=20_000, name="numbers")
    seen = numbers.key_by("key").process(Seen, schema=SEEN, name="seen")
    checkpoints = hr.Checkpoints(
        str(folder),
        interval=None,
        mode="unaligned",
        retain=RETAIN,
        full_every=full_every,
        inflight=inflight,  # type: ignore[arg-type]
    )
    return hr.Job(
        "job",
        seen.write.blackhole(name="out"),
        numbers.rebalance().map_batches(slowly, name="slow").write.blackhole(name="slow-out"),
        parallelism=2,
        max_parallelism=16,
        network=NARROW,
        state=hr.State("rocksdb"),
        checkpoints=checkpoints,
    )


def take(handle: JobHandle, count: int) -> None:
    for _ in range(count):
        time.sleep(0.1)
        handle.checkpoint()


def taken(job: hr.Job, count: int, **options: Any) -> None:
    handle = job.start("threads", **options)
    try:
        take(handle, count)
    finally:
        handle.cancel()
        handle.wait(WAIT_S)


def own(store: FsspecStore) -> dict[int, bool]:
    """{retained checkpoint: it names only its own files}."""
    loaded = [catalog.load(store, "job", n) for n in catalog.complete_checkpoints(store, "job")]
    return {
        m.checkpoint: not named_of_others(m) for m in sorted(loaded, key=lambda m: m.checkpoint)
    }


@pytest.mark.parametrize("inflight", ["ad_hoc", "continuous"])
def test_a_damaged_file_leaves_a_retained_checkpoint(tmp_path: Path, inflight: str) -> None:
    store = FsspecStore(str(tmp_path))
    taken(job(tmp_path, inflight, EVERY), 8)
    assert list(own(store).values()) == [False, False, True, False], "5, 6, 7 and 8"
    older, newer = (references(catalog.load(store, "job", n)) for n in (6, 8))
    assert not older & newer
    for path in older:
        at = tmp_path / "job" / path
        data = bytearray(at.read_bytes())
        data[-1] ^= 1
        at.write_bytes(data)
    assert catalog.verify(store, "job", 6)
    assert [catalog.verify(store, "job", n) for n in (7, 8)] == [[], []]


def test_without_the_option_all_retained_checkpoints_share_files(tmp_path: Path) -> None:
    store = FsspecStore(str(tmp_path))
    taken(job(tmp_path, "ad_hoc", 0), 8)
    assert list(own(store).values()) == [False] * 4


def test_while_records_are_left_to_replay_no_checkpoint_is_full(tmp_path: Path) -> None:
    """The replay reads files that stay because checkpoints name them."""
    store = FsspecStore(str(tmp_path))
    taken(job(tmp_path, "ad_hoc", EVERY), 3)
    assert not own(store)[3]
    taken(job(tmp_path, "ad_hoc", EVERY), 1, restore="latest")
    (newest, *_) = catalog.complete_checkpoints(store, "job")
    metadata = catalog.load(store, "job", newest)
    assert any(h.side == "replay" for s in metadata.subtasks for h in s.inflight)
    assert not own(store)[newest]
