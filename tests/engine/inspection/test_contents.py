"""A checkpoint's contents as tables: all of it, once, with where it lay; damage and what needs the
program are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from headrace.channels.buffer import Buffer, ChannelId
from headrace.channels.partitioners.hash import Hash
from headrace.engine.contract.errors import UserError
from headrace.engine.contract.operators import StateKind, StateSnapshot
from headrace.engine.inspection.contents import View, in_flight_on, state_of
from headrace.engine.inspection.directory import Opened
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.engine.storage.snapshots import write_checkpoint
from headrace.engine.worker.subtask_events import CapturedRun, Cut, SubtaskId
from headrace.inflight.confirmed import Confirmed
from headrace.inflight.handle import ChannelStateHandle
from headrace.recovery.metadata import CheckpointMetadata, EdgeInfo, SubtaskSnapshot, TaskInfo

EDGE = EdgeInfo("numbers->totals/0", 0, 1, "hash", ["x"])
GROUPS = 8


def records(first: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(range(first, first + rows), pa.int64())})


def captured(side: str, first: int, *sizes: int) -> CapturedRun:
    """Records of channel 0 -> 0, which are their own positions."""
    buffers, at = [], first
    for rows in sizes:
        buffers.append(Buffer(at, rows, rows * 8, (records(at, rows),)))
        at += rows
    return CapturedRun(ChannelId(0, 0, 0), side, first, tuple(buffers), False)


def state(
    name: str, table: pa.Table, kind: StateKind = StateKind.LIST
) -> tuple[str, StateSnapshot]:
    return "totals", StateSnapshot(name, kind, lambda: table)


def opened(
    folder: Path,
    states: Sequence[tuple[str, StateSnapshot]] = (),
    received: Sequence[CapturedRun] = (),
    queued: Sequence[CapturedRun] = (),
    edge: EdgeInfo = EDGE,
) -> Opened:
    """A checkpoint of numbers -> totals, of one subtask each."""
    store = FsspecStore(str(folder))
    numbers, totals = SubtaskId(0, 0), SubtaskId(1, 0)
    cuts = [
        Cut(id, 7, False, (), (), (), tuple(runs), (), 0, 0)
        for id, runs in ((numbers, queued), (totals, received))
    ]
    written = write_checkpoint(store, "job", 7, 0, 1, {totals: states}, cuts, Confirmed())
    snapshots = [
        SubtaskSnapshot(0, 0, False, [], [], [], written.inflight[numbers]),
        SubtaskSnapshot(1, 0, False, written.states[totals], [], [], written.inflight[totals]),
    ]
    tasks = [TaskInfo("numbers", ["numbers"], [], 1), TaskInfo("totals", ["totals"], ["totals"], 1)]
    metadata = CheckpointMetadata(
        "job", 7, 1, "unaligned", False, 0, 0, GROUPS, tasks, [edge], snapshots, []
    )
    return Opened(store, "job", metadata)


def rows_of(view: View) -> list[dict[str, object]]:
    batches = [batch for piece in view.pieces for batch in view.read(piece)]
    assert all(batch.schema == view.schema for batch in batches)
    rows: list[dict[str, object]] = pa.Table.from_batches(batches, view.schema).to_pylist()
    return rows


def test_state_is_given_with_the_subtask_that_kept_it(tmp_path: Path) -> None:
    there = opened(tmp_path, [state("items", pa.table({"item": ["a", None]}))])
    view = state_of(there, "totals")
    assert view.schema.names == ["__subtask", "item"]
    assert rows_of(view) == [{"__subtask": 0, "item": "a"}, {"__subtask": 0, "item": None}]


def test_of_several_states_one_must_be_named(tmp_path: Path) -> None:
    tables = {"a": pa.table({"x": [1]}), "b": pa.table({"y": ["b"]})}
    there = opened(tmp_path, [state(name, table) for name, table in tables.items()])
    with pytest.raises(UserError, match="'totals' has several states; name one of a, b"):
        state_of(there, "totals")
    with pytest.raises(UserError, match="'totals' has no state 'c'; it has a, b"):
        state_of(there, "totals", "c")
    assert rows_of(state_of(there, "totals", "b")) == [{"__subtask": 0, "y": "b"}]


def test_an_operator_without_state_is_told_from_one_that_does_not_exist(tmp_path: Path) -> None:
    there = opened(tmp_path, [state("items", pa.table({"item": ["a"]}))])
    with pytest.raises(UserError, match="holds no state of operator 'numbers'"):
        state_of(there, "numbers")
    with pytest.raises(UserError, match="no operator 'sums'; state is held of totals"):
        state_of(there, "sums")


def test_records_in_flight_tell_side_and_position(tmp_path: Path) -> None:
    there = opened(
        tmp_path, received=[captured("input", 3, 2)], queued=[captured("output", 5, 1, 1)]
    )
    view = in_flight_on(there, EDGE.key)
    place = {"__edge": EDGE.key, "__producer": 0, "__consumer": 0}
    assert rows_of(view) == [
        place | {"__side": side, "__position": x, "x": x}
        for side, x in (("output", 5), ("output", 6), ("input", 3), ("input", 4))
    ]


def test_an_edge_that_held_nothing_gives_no_rows(tmp_path: Path) -> None:
    view = in_flight_on(opened(tmp_path), EDGE.key)
    assert view.pieces == ()
    assert rows_of(view) == []


def test_an_unknown_edge_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no edge 'a->b/0'; it has numbers->totals/0"):
        in_flight_on(opened(tmp_path), "a->b/0")


def left_to(consumer: int, there: Opened, parallelism: int) -> Opened:
    """The same records as what a rescale left `consumer` to replay, one of them done."""
    (handle,) = there.metadata.subtasks[1].inflight
    buffers = [
        msgspec.structs.replace(b, filters=[(0, parallelism, consumer)], skip=1)
        for b in handle.buffers
    ]
    replay = ChannelStateHandle(0, 0, 0, "replay", 0, buffers, ended=False)
    subtasks = [
        there.metadata.subtasks[0],
        msgspec.structs.replace(there.metadata.subtasks[1], inflight=[replay]),
    ]
    return Opened(
        there.store, there.job, msgspec.structs.replace(there.metadata, subtasks=subtasks)
    )


def test_what_a_rescale_left_is_told_apart_by_the_edges_hash(tmp_path: Path) -> None:
    there = opened(tmp_path, received=[captured("input", 0, 50)])
    route = Hash(("x",), GROUPS).router(3)
    for consumer in range(3):
        mine = [
            x
            for x, target in zip(range(50), route(records(0, 50)), strict=True)
            if target == consumer
        ]
        found = rows_of(in_flight_on(left_to(consumer, there, 3), EDGE.key))
        assert [row["x"] for row in found] == mine[1:]
        assert {(row["__side"], row["__position"]) for row in found} == {("replay", None)}


@pytest.mark.parametrize(("partitioning", "said"), [("custom", "custom"), ("", "does not name")])
def test_what_only_the_program_can_tell_apart_is_refused(
    tmp_path: Path, partitioning: str, said: str
) -> None:
    edge = EdgeInfo(EDGE.key, 0, 1, partitioning)
    there = opened(tmp_path, received=[captured("input", 0, 50)], edge=edge)
    with pytest.raises(UserError, match=f"left of a rescale and are told apart by .*{said}"):
        in_flight_on(left_to(0, there, 3), EDGE.key)


def test_damage_is_refused_with_place_and_checkpoint(tmp_path: Path) -> None:
    there = opened(tmp_path, [state("items", pa.table({"item": ["a", "b"]}))])
    view = state_of(there, "totals")
    file = tmp_path / "job/chk-7/worker-0-e1.segment"
    data = bytearray(file.read_bytes())
    data[-30] ^= 1
    file.write_bytes(data)
    said = "chk-7 of job 'job', state 'items' of 'totals' is damaged: job/chk-7/worker-0-e1.segment"
    with pytest.raises(UserError, match=said):
        rows_of(view)


def test_stored_columns_with_our_names_are_refused(tmp_path: Path) -> None:
    there = opened(tmp_path, [state("items", pa.table({"__subtask": [1]}))])
    with pytest.raises(
        UserError, match="the stored columns __subtask have names of headrace's own"
    ):
        state_of(there, "totals")
