"""A program whose edges are partitioned otherwise goes on from an unaligned checkpoint with records
in flight on them, or is refused with the reason.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.engine.inspection.contents import in_flight_on, state_of
from headrace.engine.inspection.directory import Opened, open_checkpoint
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot
from headrace.recovery.sizes import sizes_of

ROWS = 12_000
KEYS = 11
WAIT_S = 120.0
#: So much is in flight before a job is cancelled.
LOADED_ROWS = 800
NARROW = hr.Network(buffer="2KiB", window="16KiB")
EDGE = "numbers->stage/0"

Edge = Callable[[hr.Stream], hr.Stream]


def by_rest(batch: pa.RecordBatch, consumers: int) -> npt.ArrayLike:
    targets: npt.NDArray[np.int64] = batch["sequence"].to_numpy() % consumers
    return targets


EDGES: dict[str, Edge] = {
    "rebalance": lambda s: s.rebalance(),
    "shuffle": lambda s: s.shuffle(),
    "hash": lambda s: s.key_by("key").stream,
    "hash by another column": lambda s: s.key_by("sequence").stream,
    "custom": lambda s: s.partition_by(by_rest, "sequence"),
    "range": lambda s: s.partition_by_range("sequence", [300, 1000, 6000]),
    "broadcast": lambda s: s.broadcast(),
    "forward": lambda s: s,
}


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    # By the record: on a busy machine, too, a job is far from its end at its first checkpoints.
    time.sleep(0.001 * batch.num_rows)
    return batch


def quickly(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def job(
    folder: Path,
    edge: str,
    stage: Callable[[pa.RecordBatch], pa.RecordBatch] = quickly,
    rows: int = ROWS,
    **options: Any,
) -> hr.Job:
    """A stage behind an edge."""
    numbers = hr.read.sequence(rows, keys=KEYS, name="numbers")
    staged = EDGES[edge](numbers).map_batches(stage, name="stage")
    stated: dict[str, Any] = {"parallelism": 2, "max_parallelism": 16, "network": NARROW}
    checkpoints = hr.Checkpoints(str(folder / "checkpoints"), interval=None, mode="unaligned")
    written = staged.write.parquet(str(folder / "written"), name="out")
    return hr.Job("job", written, checkpoints=checkpoints, **(stated | options))


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not in time: {what}"
        time.sleep(0.002)


def cancelled_under_load(job: hr.Job, *, alone: bool = False) -> Opened:
    """Run until a checkpoint holds records in flight, and cancel; that checkpoint.

    `alone`: none on other edges than the one before the stage, whose schema changes.
    """

    def is_loaded() -> bool:
        metadata = taken(handle)
        edges = {metadata.edges[h.edge].key for s in metadata.subtasks for h in s.inflight}
        return (not alone or edges == {EDGE}) and sizes_of(metadata).inflight_records >= LOADED_ROWS

    handle = job.start("threads")
    try:
        wait_until("a load", is_loaded)
    finally:
        handle.cancel()
        handle.wait(WAIT_S)
    assert job.options.checkpoints is not None
    return open_checkpoint(job.options.checkpoints.directory)


def in_flight(opened: Opened) -> Counter[int]:
    view = in_flight_on(opened, EDGE)
    return Counter(
        x for piece in view.pieces for b in view.read(piece) for x in b["sequence"].to_pylist()
    )


def unread(opened: Opened) -> set[int]:
    """Records that the source had left to make."""
    view = state_of(opened, "numbers")
    rows = [row for piece in view.pieces for b in view.read(piece) for row in b.to_pylist()]
    return {x for row in rows for x in range(row["next"], row["end"], row["step"])}


def seen(folder: Path, column: str = "sequence") -> Counter[int]:
    files = (folder / "written").glob("part-*")
    return Counter(x for file in files for x in pq.read_table(file)[column].to_pylist())


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("rebalance", "hash"),
        ("rebalance", "custom"),
        ("shuffle", "rebalance"),
        ("hash", "shuffle"),
        ("hash", "hash by another column"),
        ("hash", "custom"),
        ("custom", "hash"),
        ("shuffle", "range"),
        ("range", "range"),
    ],
)
def test_records_in_flight_come_once_by_the_new_partitioner(
    tmp_path: Path, was: str, now: str, parallelism: int
) -> None:
    opened = cancelled_under_load(job(tmp_path, was, slowly))
    assert len(in_flight(opened)) > LOADED_ROWS // 2
    job(tmp_path, now, parallelism=parallelism).run("threads", restore="latest")
    assert seen(tmp_path) == Counter(range(ROWS))


class Gated:
    """Lets a batch of odd numbers pass; one of even ones once the file is there."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["sequence"][0].as_py() % 2 == 0:
            wait_until("the gate opens", self._file.exists)
        return batch


def test_a_subtask_that_had_finished_works_on_what_another_had_before_it(tmp_path: Path) -> None:
    gate = tmp_path / "open"
    handle = job(tmp_path, "custom", Gated(gate), rows=400).start("threads")
    try:
        wait_until("all but one finish", lambda: all(s.finished for s in others(taken(handle))))
    finally:
        handle.cancel()
        gate.touch()
        handle.wait(WAIT_S)
    job(tmp_path, "hash", rows=400).run("threads", restore="latest")
    assert seen(tmp_path) == Counter(range(400))


def others(metadata: CheckpointMetadata) -> list[SubtaskSnapshot]:
    """All but the stage that waits, and what lies behind it."""
    return [s for s in metadata.subtasks if s.task == 0 or s.index != 0]


def taken(handle: hr.JobHandle) -> CheckpointMetadata:
    """A checkpoint that is taken now."""
    handle.checkpoint()
    return handle.status().checkpoints[-1]


@pytest.mark.parametrize("parallelism", [2, 3])
@pytest.mark.parametrize("was", ["rebalance", "hash"])
def test_a_broadcast_gives_every_subtask_what_none_has_worked_on(
    tmp_path: Path, was: str, parallelism: int
) -> None:
    opened = cancelled_under_load(job(tmp_path, was, slowly))
    ahead = {*in_flight(opened), *unread(opened)}
    job(tmp_path, "broadcast", parallelism=parallelism).run("threads", restore="latest")
    assert seen(tmp_path) == Counter({x: parallelism if x in ahead else 1 for x in range(ROWS)})


@pytest.mark.parametrize("now", ["hash", "rebalance"])
def test_what_some_subtasks_have_worked_on_and_others_have_not_is_refused(
    tmp_path: Path, now: str
) -> None:
    before = cancelled_under_load(job(tmp_path, "broadcast", slowly)).metadata.epoch
    said = (
        "holds in-flight records of edge 'numbers->stage/0', whose partitioner was broadcast and"
        " is now"
    )
    with pytest.raises(hr.UserError, match=said):
        job(tmp_path, now).run("threads", restore="latest")
    assert open_checkpoint(str(tmp_path / "checkpoints")).metadata.epoch == before


def test_the_same_change_goes_through_an_aligned_savepoint(tmp_path: Path) -> None:
    handle = job(tmp_path, "broadcast", quickly).start("threads")
    savepoint = handle.savepoint(mode="aligned")
    handle.cancel()
    handle.wait(WAIT_S)
    job(tmp_path, "hash").run("threads", restore=savepoint)
    assert seen(tmp_path).keys() == set(range(ROWS))


def inserted(folder: Path) -> hr.Job:
    """The job with an operator between the source and the stage."""
    numbers = hr.read.sequence(ROWS, keys=KEYS, name="numbers")
    staged = numbers.rebalance().map_batches(quickly, name="new").rebalance()
    written = staged.map_batches(quickly, name="stage").write.parquet(
        str(folder / "written"), name="out"
    )
    checkpoints = hr.Checkpoints(str(folder / "checkpoints"), interval=None)
    return hr.Job("job", written, parallelism=2, max_parallelism=16, checkpoints=checkpoints)


def test_an_operator_on_an_edge_in_flight_is_refused_and_passes_an_aligned_checkpoint(
    tmp_path: Path,
) -> None:
    cancelled_under_load(job(tmp_path, "rebalance", slowly))
    said = (
        "in-flight records of edge 'numbers->stage/0', which this job does not have: keep the"
        " operators at its ends, or change"
        " them between an aligned checkpoint and its restore"
    )
    with pytest.raises(hr.UserError, match=said):
        inserted(tmp_path).run("threads", restore="latest")
    aligned = hr.Checkpoints(str(tmp_path / "checkpoints"), interval=None, mode="aligned")
    handle = job(tmp_path, "rebalance").start("threads", restore="latest", checkpoints=aligned)
    handle.stop()
    handle.wait(WAIT_S)
    inserted(tmp_path).run("threads", restore="latest")
    assert seen(tmp_path) == Counter(range(ROWS))


def test_an_exchange_in_flight_that_is_gone_is_refused_with_its_own_reason(tmp_path: Path) -> None:
    """Both operators are there still, so they are not what is missing."""
    cancelled_under_load(job(tmp_path, "rebalance", slowly))
    said = (
        "in-flight records of edge 'numbers->stage/0', and 'numbers' and 'stage' now have no"
        " exchange between them: keep it, or remove it between an aligned checkpoint and its"
        " restore, which holds none"
    )
    with pytest.raises(hr.UserError, match=said) as caught:
        job(tmp_path, "forward").run("threads", restore="latest")
    assert "which this job does not have" not in str(caught.value)


def widened(folder: Path, stage: Callable[..., pa.RecordBatch], **options: Any) -> hr.Job:
    """The stage behind records with one more column, where `options` say so."""
    columns = pa.schema([("sequence", pa.int64())])
    if options.pop("more"):
        columns = columns.append(pa.field("twice", pa.int64()))

    def shape(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch([batch["sequence"]] * len(columns), schema=columns)

    shaped = hr.read.sequence(ROWS, keys=KEYS, name="numbers").map_batches(
        shape, schema=columns, name="shape"
    )
    written = (
        shaped.rebalance()
        .map_batches(stage, schema=columns, name="stage")
        .write.parquet(str(folder / "written"), name="out")
    )
    checkpoints = hr.Checkpoints(
        str(folder / "checkpoints"), interval=None, mode="unaligned", **options
    )
    return hr.Job(
        "job", written, parallelism=2, max_parallelism=16, network=NARROW, checkpoints=checkpoints
    )


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_records_in_flight_of_other_columns_are_refused_at_the_start(
    tmp_path: Path, compression: str
) -> None:
    options = {"compression": compression}
    cancelled_under_load(widened(tmp_path, slowly, more=False, **options))
    before = sorted((tmp_path / "checkpoints").rglob("*"))
    said = (
        r"chk-\d+ holds in-flight records of edge 'shape->stage/0' with the columns"
        " sequence: int64, and the edge now has sequence: int64, twice: int64: change them between"
        " an aligned checkpoint and its restore, which holds none$"
    )
    with pytest.raises(hr.UserError, match=said):
        widened(tmp_path, quickly, more=True, **options).run("threads", restore="latest")
    assert sorted((tmp_path / "checkpoints").rglob("*")) == before, "nothing was claimed"
    widened(tmp_path, quickly, more=False, **options).run("threads", restore="latest")
    assert seen(tmp_path) == Counter(range(ROWS))


def branched(folder: Path, *, counts: bool, stage: Callable[..., pa.RecordBatch]) -> hr.Job:
    """The stage, and perhaps a count by key behind an edge of its own."""
    numbers = hr.read.sequence(ROWS, keys=KEYS, name="numbers")
    staged = numbers.rebalance().map_batches(stage, name="stage")
    sinks = [staged.write.parquet(str(folder / "written"), name="out")]
    if counts:
        slow = numbers.rebalance().map_batches(stage, name="branch").key_by("key")
        sinks.append(slow.aggregate(n=hr.count(), name="counts").write.blackhole(name="counted"))
    checkpoints = hr.Checkpoints(str(folder / "checkpoints"), interval=None, mode="unaligned")
    options: dict[str, Any] = {"parallelism": 2, "max_parallelism": 16, "network": NARROW}
    return hr.Job("job", *sinks, checkpoints=checkpoints, **options)


def test_a_removed_branch_is_dropped_with_its_records_in_flight_only_when_that_is_allowed(
    tmp_path: Path,
) -> None:
    cancelled_under_load(branched(tmp_path, counts=True, stage=slowly))
    less = branched(tmp_path, counts=False, stage=quickly)
    with pytest.raises(hr.UserError, match="holds state of operator 'counts'"):
        less.run("threads", restore="latest")
    handle = less.start("threads", restore="latest", allow_unclaimed_state=True)
    handle.wait(WAIT_S)
    said = [notice.text for _, notice in handle.status().notices]
    assert any("state of operator 'counts' is dropped" in text for text in said), said
    assert any("edge 'numbers->branch/0' is dropped" in text for text in said), said
    assert seen(tmp_path) == Counter(range(ROWS))


@pytest.mark.parametrize("widths", [(3, 2, 4), (1, 4, 2)])
def test_operators_of_different_parallelism_change_it_each_on_its_own(
    tmp_path: Path, widths: tuple[int, int, int]
) -> None:
    def mixed(
        source: int, stage: int, last: int, work: Callable[[pa.RecordBatch], pa.RecordBatch]
    ) -> hr.Job:
        numbers = hr.read.sequence(ROWS, keys=KEYS, name="numbers", parallelism=source)
        staged = numbers.rebalance().map_batches(work, name="stage", parallelism=stage)
        numbered = staged.key_by("key").process(
            Numbering, schema=NUMBERED, name="numbering", parallelism=last
        )
        again = numbered.partition_by(by_rest, "sequence").map_batches(work, name="again")
        return hr.Job(
            "job",
            again.write.parquet(str(tmp_path / "written"), name="out"),
            checkpoints=hr.Checkpoints(str(tmp_path / "checkpoints"), None, "unaligned"),
            parallelism=2,
            max_parallelism=16,
            network=NARROW,
        )

    cancelled_under_load(mixed(2, 3, 1, slowly))
    mixed(*widths, quickly).run("threads", restore="latest")
    files = [pq.read_table(file) for file in (tmp_path / "written").glob("part-*")]
    rows = [row for table in files for row in table.to_pylist()]
    assert sorted(row["sequence"] for row in rows) == [*range(ROWS)]
    assert len({(row["key"], row["position"]) for row in rows}) == ROWS
    positions = Counter(row["key"] for row in rows)
    assert all(row["position"] <= positions[row["key"]] for row in rows)


NUMBERED = pa.schema([("sequence", pa.int64()), ("key", pa.int64()), ("position", pa.int64())])


class Numbering(hr.StatefulProcessor):
    """Numbers the records of each key."""

    position = hr.value_state(pa.int64(), default=0)

    def process(self, key: int, row: dict[str, Any]) -> Iterable[dict[str, Any]]:
        self.position.value += 1
        yield {"sequence": row["sequence"], "key": key, "position": self.position.value}


def test_a_stateful_operator_takes_the_place_of_a_stateless_one(tmp_path: Path) -> None:
    opened = cancelled_under_load(job(tmp_path, "rebalance", slowly), alone=True)
    ahead = {*in_flight(opened), *unread(opened)}
    numbers = hr.read.sequence(ROWS, keys=KEYS, name="numbers")
    numbered = numbers.key_by("key").process(Numbering, schema=NUMBERED, name="stage")
    hr.Job(
        "job",
        numbered.write.parquet(str(tmp_path / "written"), name="out"),
        checkpoints=str(tmp_path / "checkpoints"),
        parallelism=2,
        max_parallelism=16,
    ).run("threads", restore="latest")
    files = [pq.read_table(file) for file in (tmp_path / "written").glob("part-*")]
    rows = [row for t in files if t.schema.equals(NUMBERED) for row in t.to_pylist()]
    assert sorted(row["sequence"] for row in rows) == sorted(ahead)
    # Each key's records were numbered by one subtask.
    numbers_of: dict[int, list[int]] = {}
    for row in rows:
        numbers_of.setdefault(row["key"], []).append(row["position"])
    assert all(sorted(found) == [*range(1, len(found) + 1)] for found in numbers_of.values())


AT = pa.timestamp("ms")
CLICKS = pa.schema([("sequence", pa.int64()), ("key", pa.int64()), ("at", AT)])


def to_click(batch: pa.RecordBatch) -> dict[str, Any]:
    return {name: batch[name] for name in ("sequence", "key")} | {"at": batch["sequence"].view(AT)}


def first_slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The subtask that gets the even ones takes its time, so that event time at the other is ahead
    of it.
    """
    if batch["sequence"][0].as_py() % 2 == 0:
        time.sleep(0.001 * batch.num_rows)
    return batch


@pytest.mark.parametrize("now", ["hash", "broadcast"])
def test_no_record_is_late_because_it_goes_to_a_subtask_where_event_time_was_ahead(
    tmp_path: Path, now: str
) -> None:
    def windowed(edge: str, stage: Callable[[pa.RecordBatch], pa.RecordBatch]) -> hr.Job:
        numbers = hr.read.sequence(ROWS, keys=KEYS, name="numbers")
        clicks = numbers.map_batches(to_click, schema=CLICKS, name="clicks")
        staged = EDGES[edge](clicks.with_watermark("at", "1ms")).map_batches(stage, name="stage")
        windows = staged.key_by("key").window(hr.tumbling("10ms"))
        counts = windows.aggregate(n=hr.count(), name="windows")
        return hr.Job(
            "job",
            counts.write.parquet(str(tmp_path / "written"), name="out"),
            counts.late.write.parquet(str(tmp_path / "late"), name="late-out"),
            checkpoints=hr.Checkpoints(str(tmp_path / "checkpoints"), None, "unaligned"),
            parallelism=2,
            max_parallelism=16,
            network=NARROW,
        )

    cancelled_under_load(windowed("custom", first_slowly))
    windowed(now, quickly).run("threads", restore="latest")
    assert not [*(tmp_path / "late").glob("part-*")]
    files = (tmp_path / "written").glob("part-*")
    total = sum(x for file in files for x in pq.read_table(file)["n"].to_pylist())
    assert total == ROWS if now == "hash" else total > ROWS
