"""Which checkpoints are full; how the coordinator orders them stands in `test_checkpoints.py`."""

from __future__ import annotations

from headrace.engine.coordinator.full_checkpoints import FullCheckpoints
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot


def replaying(*sides: str) -> CheckpointMetadata:
    """A checkpoint with in-flight records of these sides."""
    buffer = BufferHandle("chk-1/a", 8, 1, "0" * 16, 1, 0, 1)
    inflight = [ChannelStateHandle(0, 0, 0, side, 0, [buffer], ended=False) for side in sides]
    subtask = SubtaskSnapshot(0, 0, False, [], [], [], inflight)
    return CheckpointMetadata("job", 1, 1, "aligned", False, 0, 0, 1, [], [], [subtask], [])


def test_while_records_are_left_to_replay_no_checkpoint_is_full() -> None:
    """A file that only the replay still reads would be deleted."""
    fulls = FullCheckpoints(1, None)
    fulls.began(replaying("output"))
    assert not fulls.is_due
    fulls.completed(replaying("replay"), full=False)
    assert not fulls.is_due
    fulls.completed(replaying("input"), full=False)
    assert fulls.is_due
    fulls.began(replaying())
    assert fulls.is_due


def test_one_in_so_many_is_due_and_the_first_of_a_job() -> None:
    fulls = FullCheckpoints(2, None)
    due = []
    for _ in range(5):
        due.append(fulls.is_due)
        fulls.completed(replaying(), full=fulls.is_due)
    assert due == [True, False, True, False, True]
    assert not FullCheckpoints(0, None).is_due
