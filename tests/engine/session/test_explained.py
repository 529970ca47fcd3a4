"""Jobs with a planted cause: the sentence names it, and goes on naming it.

Every job is slow by waiting, not by work, so that it is as slow on a busy machine.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import headrace as hr
from headrace.channels.wire import CreditFrame, Frame
from headrace.engine.connectors.memory import BlackholeSink, BlackholeWriter
from headrace.engine.contract.launcher import WorkerLauncher
from headrace.engine.contract.options import RunOptions
from headrace.engine.local.threads import ThreadLauncher
from headrace.engine.network.network import ConnectionId, Network
from headrace.engine.observation.observed import Observation
from headrace.engine.session import launchers

DEADLINE_S = 120.0
#: The cause is named in so many looks in a row.
LOOKS = 4
QUICK = hr.Network(heartbeat="200ms")

Row = dict[str, Any]
Start = Callable[[Path, pytest.MonkeyPatch], hr.JobHandle]


def started(stream: hr.Stream, sink: hr.SinkHandle | None = None, **options: Any) -> hr.JobHandle:
    out = stream.write.blackhole(name="out") if sink is None else sink
    stated: dict[str, Any] = {"parallelism": 2, "network": QUICK} | options
    return hr.Job("planted", out, **stated).start("threads")


def orders(**options: Any) -> hr.Stream:
    return hr.read.sequence(None, name="orders", **options)


def waiting(row: Row) -> Row:
    time.sleep(0.005)
    return row


def slow_function(folder: Path, patch: pytest.MonkeyPatch) -> hr.JobHandle:
    return started(orders().rebalance().map(waiting, name="score"))


def skew(folder: Path, patch: pytest.MonkeyPatch) -> hr.JobHandle:
    def one_hot_key(batch: pa.RecordBatch) -> pa.RecordBatch:
        sequence = batch["sequence"].to_numpy()
        keys = np.where(sequence % 20 == 0, sequence, 7)
        return batch.set_column(2, "key", pa.array(keys))

    class Score(hr.StatefulProcessor):
        def process(self, key: int, row: Row) -> Iterator[Row]:
            yield waiting(row)

    rows = orders()
    keyed = rows.map_batches(one_hot_key, name="keys").key_by("key")
    return started(keyed.process(Score, schema=rows.schema, name="score"))


class SlowWriter(BlackholeWriter):
    def write(self, batch: pa.RecordBatch) -> None:
        time.sleep(0.005 * batch.num_rows)
        super().write(batch)


class SlowSink(BlackholeSink):
    def writer(self) -> BlackholeWriter:
        return SlowWriter()


def slow_sink(folder: Path, patch: pytest.MonkeyPatch) -> hr.JobHandle:
    return started(orders(), orders().rebalance().write.to(SlowSink(), name="score"))


def gil(folder: Path, patch: pytest.MonkeyPatch) -> hr.JobHandle:
    def holding(row: Row) -> Row:
        # PyDLL, unlike CDLL, keeps the GIL during the call.
        ctypes.PyDLL(None).usleep(300_000)
        time.sleep(0.1)  # or this very test would not get the GIL
        return row

    scored = orders(rate=100).rebalance().map(holding, name="score")
    return started(scored, parallelism=1)


class SlowFiles(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Takes its time for each file with a checkpoint's data."""

    protocol = "planted"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> None:
        if path.endswith(".segment"):
            time.sleep(0.6)
        super().pipe_file(path, value, mode=mode, **more)


def slow_storage(folder: Path, patch: pytest.MonkeyPatch) -> hr.JobHandle:
    fsspec.register_implementation("planted", SlowFiles, clobber=True)
    totals = orders(rate=200).key_by("key").aggregate(n=hr.count(), name="score")
    checkpoints = hr.Checkpoints(f"planted://{folder.name}", interval="700ms")
    return started(totals, checkpoints=checkpoints)


def small_window(folder: Path, patch: pytest.MonkeyPatch) -> hr.JobHandle:
    """Two workers that are far apart: credit is on its way for 100 ms."""
    send = Network.send

    def send_late(network: Network, connection: ConnectionId, frame: Frame) -> None:
        if not isinstance(frame, CreditFrame):
            send(network, connection, frame)
            return
        late = threading.Timer(0.1, send, (network, connection, frame))
        late.daemon = True
        late.start()

    def two_workers(job: str, options: RunOptions, slots: int) -> WorkerLauncher:
        return ThreadLauncher(workers=2, entry=launchers.worker)

    patch.setattr(Network, "send", send_late)
    patch.setattr(launchers, "make_launcher", two_workers)
    network = hr.Network(heartbeat="200ms", buffer="2KiB", window="2KiB")
    quick = orders(payload="1KiB").rebalance().map_batches(lambda batch: batch, name="score")
    return started(quick, network=network)


PLANTED: dict[str, Start] = {
    "slow_function": slow_function,
    "skew": skew,
    "slow_sink": slow_sink,
    "gil": gil,
    "slow_storage": slow_storage,
    "small_window": small_window,
}


def settled(handle: hr.JobHandle, cause: str) -> Observation:
    """Wait until the cause is named in several looks in a row; return the last one."""
    deadline_s = time.monotonic() + DEADLINE_S
    named, last_ms = 0, 0
    while named < LOOKS:
        look = handle.observe()
        assert time.monotonic() < deadline_s, look.finding
        if look.at_ms != last_ms:
            last_ms = look.at_ms
            named = named + 1 if look.finding.cause == cause else 0
        time.sleep(0.05)
    return handle.observe()


def named(cause: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    handle = PLANTED[cause](folder, patch)
    try:
        finding = settled(handle, cause).finding
    finally:
        handle.cancel()
        handle.wait()
        patch.undo()
    assert finding.severity == "wrong"
    if cause == "slow_storage":
        assert "Storage is slow" in finding.sentence
    else:
        assert finding.sentence.startswith("score ")


@pytest.mark.parametrize("cause", PLANTED)
def test_a_planted_cause_is_named(
    cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(cause, tmp_path, monkeypatch)


def test_an_operator_that_loads_a_model_is_busy_and_named(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"

    class Model:
        def __init__(self) -> None:
            while not loaded.exists():
                time.sleep(0.02)

        def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            return batch

    handle = started(orders(rate=100).rebalance().map_batches(Model, name="score"))
    try:
        wanted = "Operators open and state is loaded; score still opens."
        deadline_s = time.monotonic() + DEADLINE_S
        while (look := handle.observe()).finding.sentence != wanted:
            assert time.monotonic() < deadline_s, look.finding
            time.sleep(0.05)
        source, score = look.tasks[:2]
        assert score.busy > 0.9
        assert source.busy < 0.9
    finally:
        loaded.touch()
        handle.cancel()
        handle.wait()


@pytest.mark.slow
@pytest.mark.parametrize("cause", PLANTED)
@pytest.mark.usefixtures("only_long")
def test_a_planted_cause_is_named_ten_times_out_of_ten(cause: str, tmp_path: Path) -> None:
    for turn in range(10):
        with pytest.MonkeyPatch.context() as patch:
            named(cause, tmp_path / str(turn), patch)
