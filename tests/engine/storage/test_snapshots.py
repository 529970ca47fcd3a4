"""Snapshots: what is written comes back equal, cut to whom it belongs; damage is found and
named.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.channels.buffer import Buffer, ChannelId
from headrace.engine.contract.operators import StateKind, StateSnapshot
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.engine.storage.snapshots import (
    CorruptState,
    Origin,
    Written,
    read_buffer,
    read_states,
    write_checkpoint,
)
from headrace.engine.worker.subtask_events import CapturedRun, Cut, SubtaskId
from headrace.inflight.confirmed import Confirmed
from headrace.recovery.metadata import StateHandle

ONE, TWO = SubtaskId(0, 0), SubtaskId(1, 0)
CHANNEL = ChannelId(0, 0, 0)
SEGMENT = "job/chk-7/worker-2-e3.segment"


@pytest.fixture
def store(tmp_path: Path) -> FsspecStore:
    return FsspecStore(str(tmp_path))


def keyed(*groups: int) -> pa.Table:
    return pa.table(
        {"__key_group": pa.array(groups, pa.uint16()), "n": pa.array(groups, pa.int64())}
    )


def frozen(name: str, kind: StateKind, table: pa.Table) -> tuple[str, StateSnapshot]:
    return "totals", StateSnapshot(name, kind, lambda: table)


def batch(start: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(range(start, start + rows), pa.int64())})


def cut(subtask: SubtaskId, *runs: CapturedRun) -> Cut:
    return Cut(subtask, 7, False, (), (), (), runs, (), 0, 0)


def run(*sizes: int, ended: bool = False) -> CapturedRun:
    """Captured records of one channel, which are their own positions."""
    buffers, first = [], 0
    for rows in sizes:
        buffers.append(Buffer(first, rows, rows * 8, (batch(first, rows),)))
        first += rows
    return CapturedRun(CHANNEL, "input", 0, tuple(buffers), ended)


def write(store: FsspecStore | None, *states: tuple[str, StateSnapshot]) -> list[StateHandle]:
    """Write the state of one subtask."""
    written = write_checkpoint(store, "job", 7, 2, 3, {ONE: states}, [cut(ONE)], Confirmed())
    return written.states[ONE]


def read(store: FsspecStore, handles: list[StateHandle], subtask: int = 0) -> list[pa.Table]:
    found = read_states(store, "job", handles, max_parallelism=8, parallelism=2, subtask=subtask)
    return [state.table for state in found.get("totals", [])]


def test_state_comes_back_equal(store: FsspecStore) -> None:
    table = pa.table({"item": ["a", None, "c"]})
    (handle,) = write(store, frozen("items", StateKind.LIST, table))
    assert (handle.operator, handle.state, handle.kind) == ("totals", "items", "list")
    assert (handle.path, handle.rows) == ("chk-7/worker-2-e3.segment", 3)
    assert read(store, [handle]) == [table]


def test_all_subtasks_share_one_file(store: FsspecStore) -> None:
    snapshots = {id: [frozen("items", StateKind.LIST, keyed(id.task))] for id in (ONE, TWO)}
    written = write_checkpoint(
        store, "job", 7, 2, 3, snapshots, [cut(ONE, run(2)), cut(TWO)], Confirmed()
    )
    assert store.list("") == [SEGMENT]
    assert [read(store, written.states[id]) for id in (ONE, TWO)] == [[keyed(0)], [keyed(1)]]


def test_keyed_state_is_cut_to_the_key_groups_of_its_reader(store: FsspecStore) -> None:
    handles = write(store, frozen("sums", StateKind.KEYED, keyed(0, 3, 3, 4, 7)))
    assert read(store, handles, subtask=0) == [keyed(0, 3, 3)]
    assert read(store, handles, subtask=1) == [keyed(4, 7)]


def test_state_of_other_kinds_is_read_whole(store: FsspecStore) -> None:
    for kind in (StateKind.LIST, StateKind.UNION, StateKind.BROADCAST):
        assert read(store, write(store, frozen("all", kind, keyed(0, 7)))) == [keyed(0, 7)]


def test_several_pieces_of_one_operator_come_together(store: FsspecStore) -> None:
    handles = write(
        store,
        frozen("a", StateKind.LIST, keyed(1)),
        frozen("b", StateKind.LIST, keyed(2)),
    )
    assert read(store, handles) == [keyed(1), keyed(2)]


def test_nothing_to_write_makes_no_file(store: FsspecStore) -> None:
    assert write(store) == []
    assert store.list("") == []


def test_without_a_store_nothing_is_written_and_nothing_even_made() -> None:
    def made() -> pa.Table:
        raise AssertionError("a table for nobody")

    assert write(None, ("totals", StateSnapshot("s", StateKind.LIST, made))) == []


def flip(path: Path, handle: StateHandle) -> None:
    data = bytearray(path.read_bytes())
    data[handle.offset + handle.length // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path, handle: StateHandle) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def remove(path: Path, handle: StateHandle) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [flip, truncate, remove])
def test_damage_is_found_and_named(
    store: FsspecStore, tmp_path: Path, damage: Callable[[Path, StateHandle], None]
) -> None:
    (handle,) = write(store, frozen("items", StateKind.LIST, keyed(1, 2, 3)))
    damage(tmp_path / SEGMENT, handle)
    with pytest.raises(CorruptState, match=f"{SEGMENT}, state 'items' of 'totals': "):
        read(store, [handle])


def test_another_number_of_rows_than_the_metadata_say_is_damage(store: FsspecStore) -> None:
    (handle,) = write(store, frozen("items", StateKind.LIST, keyed(1, 2, 3)))
    fields = {name: getattr(handle, name) for name in handle.__struct_fields__}
    with pytest.raises(CorruptState, match="expected 4 rows, found 3"):
        read(store, [StateHandle(**(fields | {"rows": 4}))])


# --- in-flight data -------------------------------------------------------------------------------


def everything(records: pa.RecordBatch, parallelism: int, consumer: int) -> pa.Array:
    return pc.greater_equal(records["x"], 0)


def parity(records: pa.RecordBatch, parallelism: int, consumer: int) -> pa.Array:
    return pc.equal(pc.bit_wise_and(records["x"], 1), consumer)


def in_flight(store: FsspecStore, *sizes: int, ended: bool = False) -> Written:
    return write_checkpoint(
        store, "job", 7, 2, 3, {ONE: []}, [cut(ONE, run(*sizes, ended=ended))], Confirmed()
    )


def test_captured_records_come_back_in_order(store: FsspecStore) -> None:
    (handle,) = in_flight(store, 2, 3, 1, ended=True).inflight[ONE]
    assert (handle.side, handle.first, handle.end, handle.ended) == ("input", 0, 6, True)
    found = [read_buffer(store, "job", b, everything)["x"].to_pylist() for b in handle.buffers]
    assert [x for part in found for x in part] == list(range(6))


def test_a_part_of_a_stored_buffer_can_be_named(store: FsspecStore) -> None:
    (handle,) = in_flight(store, 6).inflight[ONE]
    (buffer,) = handle.buffers
    fields = {name: getattr(buffer, name) for name in buffer.__struct_fields__}
    part = type(buffer)(**(fields | {"start": 1, "rows": 4, "filters": [(0, 2, 1)], "skip": 1}))
    assert read_buffer(store, "job", part, parity)["x"].to_pylist() == [3]


def test_compressed_records_come_back_too(store: FsspecStore) -> None:
    cuts = [cut(ONE, run(2000, 3000))]
    plain, packed = (
        write_checkpoint(store, "job", n, 2, 3, {ONE: []}, cuts, Confirmed(), compresses=n == 8)
        for n in (7, 8)
    )
    (plainly,), (packedly,) = (w.inflight[ONE][0].buffers for w in (plain, packed))
    assert packedly.length < plainly.length == packedly.inflated
    found = read_buffer(store, "job", packedly, everything)
    assert found["x"].to_pylist() == list(range(5000))


def test_an_end_of_input_alone_needs_no_file(store: FsspecStore) -> None:
    (handle,) = in_flight(store, ended=True).inflight[ONE]
    assert (handle.buffers, handle.ended) == ([], True)
    assert store.list("") == []


def test_damaged_records_are_found(store: FsspecStore, tmp_path: Path) -> None:
    (handle,) = in_flight(store, 6).inflight[ONE]
    (tmp_path / SEGMENT).write_bytes(b"rubbish " * 1000)
    with pytest.raises(CorruptState, match="in-flight data: "):
        read_buffer(store, "job", handle.buffers[0], everything)


def test_what_is_left_to_replay_is_named_again_or_copied_from_elsewhere(tmp_path: Path) -> None:
    other, own = FsspecStore(str(tmp_path / "other")), FsspecStore(str(tmp_path / "own"))
    (handle,) = in_flight(other, 6).inflight[ONE]
    left = Cut(ONE, 8, False, (), (), (), (), (handle,), 0, 0)
    named = write_checkpoint(other, "job", 8, 0, 4, {ONE: []}, [left], Confirmed())
    assert named.inflight[ONE] == [handle]
    origin = Origin(other, "job", ours=False)
    copied = write_checkpoint(own, "job", 8, 0, 4, {ONE: []}, [left], Confirmed(), origin)
    (moved,) = copied.inflight[ONE]
    assert moved.buffers[0].path == "chk-8/worker-0-e4.segment"
    assert read_buffer(own, "job", moved.buffers[0], everything)["x"].to_pylist() == [*range(6)]
