"""What the command line finds out about checkpoints, and which errors end it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.engine.cli.checkpoints import details, has_problem, listing, verification
from headrace.engine.contract.errors import StorageUnreachable, UserError
from headrace.engine.storage.checkpoint_storage import FsspecStore
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.inflight.segment import SegmentBuilder, table_to_ipc
from headrace.recovery import catalog
from headrace.recovery.catalog import publish
from headrace.recovery.handles import StateHandle
from headrace.recovery.history import EpochStart
from headrace.recovery.layout import handle_path, segment_path
from headrace.recovery.metadata import CheckpointMetadata, EdgeInfo, Hold, SubtaskSnapshot, TaskInfo
from headrace.recovery.store import StoreUncertain

#: Start delay, alignment, sync and async, in nanoseconds.
TIMES = (1_000_000, 2_500_000, 30_000, 4_000_000)


def write(folder: Path, job: str, number: int, *, in_flight: bool = False) -> None:
    """With in-flight data it names a file, of an earlier checkpoint, that is not there."""
    store = FsspecStore(str(folder))
    builder = SegmentBuilder()
    blob = builder.append(*table_to_ipc(pa.table({"amount": [3, 4]})))
    path = segment_path(job, number, 0, 1)
    store.put(path, b"".join(builder.parts()))
    handle = StateHandle(
        "sum", "totals", "list", handle_path(job, path), blob.offset, blob.length, blob.checksum, 2
    )
    own = BufferHandle(handle.path, blob.offset, blob.length, blob.checksum, 2, 0, 2)
    named = BufferHandle("chk-1/worker-1-e1.segment", 16, 96, "0" * 16, 2, 1, 1)
    sides = (("input", named), ("output", own)) if in_flight else ()
    inflight = [ChannelStateHandle(0, 0, 0, side, 0, [b], ended=False) for side, b in sides]
    holds = [Hold("work", "sum", 2_000_000), Hold("barrier", "sum->sum/0 0>0", 500_000)]
    subtask = SubtaskSnapshot(
        *(0, 0, False, [handle], [], [], inflight, *TIMES), end_to_end_ns=7_000_000, holds=holds
    )
    tasks = [TaskInfo("sum", ["sum"], ["sum"], 1)]
    edges = [EdgeInfo("sum->sum/0", 0, 0)]
    publish(
        store,
        CheckpointMetadata(
            job,
            number,
            1,
            "aligned",
            False,
            1_700_000_000_000,
            5_200_000,
            128,
            tasks,
            edges,
            [subtask],
            [],
        ),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "orders", 1)
    write(tmp_path, "orders", 2)
    (tmp_path / "orders/chk-3").mkdir()
    (tmp_path / "orders/chk-3/worker-0-e1.segment").write_bytes(b"half")
    return tmp_path


def test_listing_shows_complete_and_incomplete_checkpoints_newest_first(folder: Path) -> None:
    rows = listing(str(folder))
    assert [(row["checkpoint"], row["status"]) for row in rows] == [
        (3, "incomplete"),
        (2, "complete"),
        (1, "complete"),
    ]
    assert rows[1] | {"state_bytes": 0} == {
        "job": "orders",
        "checkpoint": 2,
        "status": "complete",
        "kind": "checkpoint",
        "mode": "aligned",
        "epoch": 1,
        "created_ms": 1_700_000_000_000,
        "created": "2023-11-14T22:13:20.000+00:00",
        "duration_ns": 5_200_000,
        "duration_ms": 5.2,
        "state_bytes": 0,
        "state_written_bytes": rows[1]["state_bytes"],
        "state_referenced_bytes": 0,
        "state_rows": 2,
        "inflight_records": 0,
        "inflight_bytes": 0,
        "inflight_written_bytes": 0,
        "inflight_referenced_bytes": 0,
        "files": 2,
        "subtasks": 1,
        "problem": None,
    }
    assert rows[1]["state_bytes"] > 0
    assert rows[0].keys() == rows[1].keys()
    assert not has_problem(rows)


def test_listing_shows_damage_and_goes_on(folder: Path) -> None:
    (folder / "orders/chk-2/metadata").write_bytes(b"")
    rows = listing(str(folder), "orders")
    assert [row["status"] for row in rows] == ["incomplete", "damaged", "complete"]
    assert "offset 0: expected a line" in rows[1]["problem"]
    assert has_problem(rows)


def test_listing_of_a_folder_with_another_jobs_name_shows_the_problem(folder: Path) -> None:
    (folder / "orders").rename(folder / "payments")
    rows = listing(str(folder))
    assert {row["job"] for row in rows} == {"payments"}
    assert "belongs to job 'orders', not to 'payments'" in rows[1]["problem"]


def test_an_empty_or_missing_directory_lists_nothing_and_is_not_made(tmp_path: Path) -> None:
    assert listing(str(tmp_path)) == []
    assert listing(str(tmp_path / "missing")) == []
    assert list(tmp_path.iterdir()) == []


def test_a_directory_without_checkpoints_is_not_called_whole(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="typo holds no checkpoints"):
        verification(str(tmp_path / "typo"))


def test_details_hold_the_whole_metadata_and_go_into_json(folder: Path) -> None:
    row = json.loads(json.dumps(details(str(folder), None, 2)))
    assert row["checkpoint"] == 2
    assert row["metadata"]["tasks"][0]["name"] == "sum"


def test_listing_tells_what_is_written_from_what_is_only_named(tmp_path: Path) -> None:
    write(tmp_path, "orders", 2, in_flight=True)
    (row,) = listing(str(tmp_path))
    assert row["inflight_records"] == 3
    assert row["inflight_written_bytes"] == row["state_bytes"], "it holds the same table"
    assert row["inflight_referenced_bytes"] == 96
    assert row["inflight_bytes"] == row["inflight_written_bytes"] + 96 // 2


def test_details_show_times_and_in_flight_data_by_task_and_subtask(tmp_path: Path) -> None:
    write(tmp_path, "orders", 2, in_flight=True)
    row = details(str(tmp_path), None, 2)
    (subtask,), (task,) = row["by_subtask"], row["by_task"]
    own_bytes = row["inflight_written_bytes"]
    assert subtask == {
        "task": 0,
        "name": "sum",
        "subtask": 0,
        "finished": False,
        "end_to_end_ms": 7.0,
        "start_delay_ms": 1.0,
        "alignment_ms": 2.5,
        "sync_ms": 0.03,
        "async_ms": 4.0,
        "state_bytes": row["state_bytes"],
        "input_records": 1,
        "input_bytes": 48,
        "output_records": 2,
        "output_bytes": own_bytes,
        "replay_records": 0,
        "replay_bytes": 0,
        "inflight_written_bytes": own_bytes,
        "inflight_referenced_bytes": 96,
        "held_by": "sum",
        "held_for": "work",
        "held_ms": 2.0,
        "holds": [
            {"by": "sum", "for": "work", "held_ms": 2.0},
            {"by": "sum->sum/0 0>0", "for": "barrier", "held_ms": 0.5},
        ],
    }
    assert task == {k: v for k, v in subtask.items() if k != "subtask"} | {"subtasks": 1}


def test_a_task_shows_its_longest_times_and_the_sum_of_what_it_holds(tmp_path: Path) -> None:
    metadata = CheckpointMetadata(
        *("orders", 1, 1, "unaligned", False, 0, 0, 128),
        tasks=[TaskInfo("sum", ["sum"], ["sum"], 2)],
        edges=[],
        subtasks=[
            SubtaskSnapshot(
                *(0, index, index == 0, [], [], [], [], 1_000_000, index * 3_000_000),
                holds=[Hold("work", "sum", held_ns * 1_000_000) for held_ns in range(index, 3)],
            )
            for index in (0, 1)
        ],
        transactions=[],
    )
    publish(FsspecStore(str(tmp_path)), metadata)
    (task,) = details(str(tmp_path), "orders", 1)["by_task"]
    assert (task["start_delay_ms"], task["alignment_ms"]) == (1.0, 3.0)
    assert (task["subtasks"], task["finished"]) == (2, False)
    assert task["holds"] == [{"by": "sum", "for": "work", "held_ms": 2.0}]
    assert (task["held_by"], task["held_ms"]) == ("sum", 2.0)


def test_details_of_a_damaged_checkpoint_show_the_damage(folder: Path) -> None:
    (folder / "orders/chk-2/metadata").write_bytes(b"")
    row = details(str(folder), "orders", 2)
    assert (row["status"], row["metadata"]) == ("damaged", None)
    assert row["by_task"] == row["by_subtask"] == []
    assert has_problem([row])


def test_details_need_a_job_where_there_are_several(folder: Path) -> None:
    write(folder, "payments", 1)
    with pytest.raises(UserError, match="several jobs; name one of orders, payments"):
        details(str(folder), None, 1)
    assert details(str(folder), "payments", 1)["job"] == "payments"


@pytest.mark.parametrize("number", [3, 4])
def test_an_absent_checkpoint_is_the_users_mistake(folder: Path, number: int) -> None:
    with pytest.raises(UserError, match=rf"no complete checkpoint {number}; it has 2, 1"):
        details(str(folder), "orders", number)
    with pytest.raises(UserError, match=rf"no complete checkpoint {number}; it has 2, 1"):
        verification(str(folder), "orders", number)


def test_an_unknown_job_is_the_users_mistake(folder: Path) -> None:
    with pytest.raises(UserError, match=r"no job 'order' in .*: it holds orders"):
        listing(str(folder), "order")


def test_verification_reads_everything_that_is_complete(folder: Path) -> None:
    segment = folder / "orders/chk-1/worker-0-e1.segment"
    data = bytearray(segment.read_bytes())
    data[-20] ^= 1
    segment.write_bytes(data)
    rows = verification(str(folder))
    assert [(row["checkpoint"], row["status"]) for row in rows] == [(2, "valid"), (1, "damaged")]
    assert rows[0]["problems"] == []
    assert "state 'totals' of 'sum': offset 16: expected xxh3" in rows[1]["problems"][0]
    assert has_problem(rows)
    assert not has_problem(verification(str(folder), "orders", 2))
    # A run starts from elsewhere and passes both over.
    catalog.note_start(FsspecStore(str(folder)), "orders", EpochStart(9, 0, 0))
    rows = verification(str(folder))
    assert [(r["checkpoint"], r["status"]) for r in rows] == [(2, "valid"), (1, "passed over")]
    assert not has_problem(rows)
    assert has_problem(verification(str(folder), "orders", 1)), "asked for by number"


@pytest.mark.parametrize("damage", ["deleted", "a link"])
def test_verification_tells_of_lost_metadata(folder: Path, damage: str) -> None:
    newest = folder / "orders/chk-2/metadata"
    if damage == "deleted":
        catalog.note_start(FsspecStore(str(folder)), "orders", EpochStart(2, 2, 1))
        newest.unlink()
    else:
        newest.rename(newest.with_name("aside"))
        newest.symlink_to("aside")
    rows = verification(str(folder))
    assert [(row["checkpoint"], row["status"]) for row in rows] == [(2, "lost"), (1, "valid")]
    assert len(rows[0]["problems"]) == 1
    assert has_problem(rows)


def test_storage_that_does_not_answer_is_unreachable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(store: FsspecStore, prefix: str) -> list[str]:
        raise StoreUncertain(prefix, "no route to host")

    monkeypatch.setattr(FsspecStore, "list", no_answer)
    with pytest.raises(StorageUnreachable, match="cannot be reached: no route to host"):
        listing(str(folder))
