"""What a driver remembers is bounded, however much a checkpoint holds in flight."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.engine.coordinator.coordinator_events import Notice, NoticeKind
from headrace.engine.coordinator.rules import Phase
from headrace.engine.drivers.remembered import BUFFERS_MAX, REMEMBERED, Remembered
from headrace.engine.drivers.status import Status
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery.metadata import SubtaskSnapshot

from ..coordinator.driven_coordinator import a_checkpoint

BUFFER = BufferHandle("chk-1/worker-0-e1.segment", 16, 320, "1" * 16, 8, 0, 8)


def complete(number: int, *, buffers: int) -> Notice:
    handle = ChannelStateHandle(0, 0, 0, "input", 0, [BUFFER] * buffers, False)
    subtask = SubtaskSnapshot(0, 0, False, [], [], [], [handle])
    metadata = replace(a_checkpoint(number), subtasks=[subtask])
    return Notice(NoticeKind.CHECKPOINT, f"chk-{number} is complete", metadata)


def test_small_checkpoints_are_bounded_by_their_number() -> None:
    kept = Remembered()
    for number in range(1, REMEMBERED + 11):
        kept.add(number, complete(number, buffers=1))
    assert [c.checkpoint for c in kept.checkpoints] == list(range(11, REMEMBERED + 11))
    assert [number for number, _ in kept.notices] == list(range(11, REMEMBERED + 11))


def test_large_checkpoints_are_bounded_by_what_they_name() -> None:
    kept = Remembered()
    for number in range(1, 9):
        kept.add(number, complete(number, buffers=BUFFERS_MAX // 4))
    assert [c.checkpoint for c in kept.checkpoints] == [5, 6, 7, 8]
    named = [notice.checkpoint is not None for _, notice in kept.notices]
    assert named == [False] * 4 + [True] * 4, "notices hold no forgotten checkpoint"
    assert kept.notices[0][1].text == "chk-1 is complete"


def test_the_newest_checkpoint_stays_however_large_it_is() -> None:
    kept = Remembered()
    for number in (1, 2):
        kept.add(number, complete(number, buffers=BUFFERS_MAX + 1))
    assert [c.checkpoint for c in kept.checkpoints] == [2]


def test_a_status_is_shown_without_all_that_it_remembers() -> None:
    kept = Remembered()
    for number in range(1, 5):
        kept.add(number, complete(number, buffers=1000))
    status = Status(Phase.RUNNING, 1, 0, {}, tuple(kept.notices), tuple(kept.checkpoints), 4)
    assert len(repr(status)) < 500
