"""The page of a real job in threads, over a real port; and what is left of it."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.page_address import PageAddress
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.engine.ui.page import Place, RecordedPage, read_recording, recorded_jobs

GO_ON = threading.Event()


def waits(batch: pa.RecordBatch) -> pa.RecordBatch:
    assert GO_ON.wait(60)
    return batch


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[hr.JobHandle]:
    """A job whose function waits until `GO_ON` is set."""
    GO_ON.clear()
    rows = hr.read.batches([pa.record_batch({"id": list(range(100))})], name="rows")
    out = rows.map_batches(waits, schema=pa.schema([("id", pa.int64())]), name="score")
    job = hr.Job("shop", out.write.blackhole(name="out"), parallelism=1)
    checkpoints = hr.Checkpoints(str(tmp_path), interval="50ms", mode="unaligned")
    started = job.start("threads", checkpoints=checkpoints, ui="127.0.0.1:0")
    yield started
    GO_ON.set()
    started.wait(60)


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.loads(answer.read())


def post(url: str, token: str, body: dict[str, Any]) -> Any:
    headers = {"content-type": "application/json", "x-headrace-token": token}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return get(request)  # type: ignore[arg-type]


def messages(url: str) -> Iterator[dict[str, Any]]:
    with urllib.request.urlopen(url + "api/events", timeout=30) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


def test_a_running_job_is_shown_takes_orders_and_is_remembered(
    handle: hr.JobHandle, tmp_path: Path
) -> None:
    assert handle.page is not None
    url, _, token = handle.page.partition("#token=")
    assert get(url + "api/job")["deliveries"] == {"out": "exactly-once"}
    heard = messages(url)
    first = next(message for message in heard if message["look"])
    assert first["look"]["job"] == "shop"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        post(url + "api/checkpoint", "guessed", {})
    with urllib.request.urlopen(url + "metrics", timeout=30) as answer:
        assert b'headrace_records_in_total{job="shop",subtask="0",task="' in answer.read()
    taken = post(url + "api/checkpoint", token, {})["checkpoint"]
    assert post(url + "api/stop", token, {}) == {"stopping": True}
    GO_ON.set()
    last = list(heard)[-1]
    assert last["ended"]
    assert last["look"]["phase"] == "ended"
    assert max(c["checkpoint"] for c in last["look"]["checkpoints"]) >= taken
    handle.wait(60)
    # The recording follows the last message; this waits for it.
    handle.close_page()
    store = FsspecStore(str(tmp_path))
    assert recorded_jobs(store) == ["shop"]
    recording = read_recording(store, "ck", "shop")
    page = RecordedPage(Place(PageAddress(port=0)), recording)
    try:
        (told,) = messages(page.link)
        assert told["recorded"]
        assert told["look"] == last["look"]
        assert told["points"]
    finally:
        page.close()


def test_a_directory_without_a_history_is_told(tmp_path: Path) -> None:
    store = FsspecStore(str(tmp_path))
    assert recorded_jobs(store) == []
    with pytest.raises(UserError, match="job 'shop' in ck has no history; run the job with --ui"):
        read_recording(store, "ck", "shop")
    store.put("shop/history", b"{}")
    with pytest.raises(UserError, match="is damaged: its version is None, not 1"):
        read_recording(store, "ck", "shop")
    store.put("shop/history", b'{"headrace-history":1}\n')
    with pytest.raises(UserError, match="lacks the job's facts"):
        read_recording(store, "ck", "shop")
