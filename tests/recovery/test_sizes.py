"""Sizes: what is held, written and only named are told apart, and nothing is counted twice as
written.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery.metadata import (
    CheckpointMetadata,
    DatabaseHandle,
    FileHandle,
    SharedFile,
    StateHandle,
    SubtaskSnapshot,
    TaskInfo,
)
from headrace.recovery.sizes import CheckpointSizes, Held, held_on, sizes_of, stored_by

OWN = "chk-7/worker-0-e1.segment"
OLDER = "chk-6/worker-0-e1.segment"


def buffer(
    path: str, offset: int, *, start: int = 0, rows: int = 10, skip: int = 0
) -> BufferHandle:
    """Of a blob of ten records and a hundred bytes."""
    return BufferHandle(path, offset, 100, "0" * 16, 10, start, rows, skip=skip)


def handle(side: str, *buffers: BufferHandle) -> ChannelStateHandle:
    return ChannelStateHandle(0, 0, 0, side, 0, list(buffers), ended=False)


def subtask(index: int, *inflight: ChannelStateHandle, state: str = "") -> SubtaskSnapshot:
    states = [StateHandle("sum", "totals", "keyed", state, 16, 40, "0" * 16, 1)] if state else []
    return SubtaskSnapshot(0, index, False, states, [], [], list(inflight))


def checkpoint(subtasks: Sequence[SubtaskSnapshot]) -> CheckpointMetadata:
    tasks = [TaskInfo("sum", ["sum"], ["sum"], len(subtasks))]
    return CheckpointMetadata("j", 7, 1, "unaligned", False, 0, 0, 16, tasks, [], [*subtasks], [])


def test_a_checkpoint_without_anything_is_one_file() -> None:
    assert sizes_of(checkpoint([subtask(0)])) == CheckpointSizes(0, 0, 0, 0, 0, files=1)


def test_what_is_held_is_written_or_referenced() -> None:
    sizes = sizes_of(
        checkpoint(
            [
                subtask(0, handle("output", buffer(OWN, 16)), state=OWN),
                subtask(1, handle("input", buffer(OLDER, 16, start=6, rows=4), buffer(OWN, 116))),
            ]
        )
    )
    assert sizes == CheckpointSizes(
        state_bytes=40,
        inflight_records=24,
        inflight_bytes=240,
        inflight_written_bytes=200,
        inflight_referenced_bytes=100,
        files=2,
    )
    assert sizes.written_bytes == 240


def test_shared_files_are_written_by_one_checkpoint_and_referenced_by_others() -> None:
    files = [
        SharedFile("000009.sst", "shared/7-w0-e1-" + "0" * 16, 50, "0" * 16),
        SharedFile("000004.sst", "shared/6-w0-e1-" + "0" * 16, 500, "0" * 16),
    ]
    own = [FileHandle("CURRENT", OWN, 16, 10, "0" * 16)]
    database = DatabaseHandle("sum", "rocksdb", 0, 16, [], files, own)
    held = replace(subtask(0, state=OWN), databases=[database])
    sizes = sizes_of(checkpoint([held]))
    assert sizes.state_bytes == 40 + 50 + 500 + 10
    assert sizes.state_referenced_bytes == 500
    assert sizes.state_written_bytes == sizes.written_bytes == 100
    assert sizes.files == 3, "metadata, segment, one shared file"


def test_a_blob_that_several_subtasks_mean_is_written_once() -> None:
    parts = [subtask(n, handle("input", buffer(OWN, 16, start=n, rows=1))) for n in (0, 1)]
    sizes = sizes_of(checkpoint(parts))
    assert (sizes.inflight_written_bytes, sizes.inflight_bytes) == (100, 20)


def test_a_checkpoint_whose_number_begins_alike_is_another() -> None:
    sizes = sizes_of(checkpoint([subtask(0, handle("input", buffer("chk-70/x", 16)))]))
    assert (sizes.inflight_referenced_bytes, sizes.inflight_written_bytes, sizes.files) == (
        100,
        0,
        1,
    )


def test_each_side_is_counted_and_what_was_replayed_is_not() -> None:
    some = subtask(
        0,
        handle("input", buffer(OWN, 16, rows=3)),
        handle("output", buffer(OWN, 116)),
        handle("replay", buffer(OLDER, 16, skip=4)),
        handle("replay", buffer(OLDER, 116, rows=5)),
    )
    assert held_on(some, "input") == Held(3, 30)
    assert held_on(some, "output") == Held(10, 100)
    assert held_on(some, "replay") == Held(11, 110)


def test_a_subtask_counts_a_blob_that_it_means_twice_once() -> None:
    twice = handle("input", buffer(OWN, 16, rows=4), buffer(OWN, 16, start=6, rows=4))
    subject = subtask(0, twice, handle("output", buffer(OLDER, 16), buffer(OLDER, 116)))
    assert stored_by(subject, 7) == (100, 200)
