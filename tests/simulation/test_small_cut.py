"""A cut is consistent when each record is in exactly one place."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import pytest

from headrace.engine.simulation.exploration.small_coordinator import System
from headrace.engine.simulation.exploration.small_cut import check_cut
from headrace.engine.simulation.exploration.small_scope import Contents, Rows
from headrace.engine.simulation.sink import TransactionStatus
from headrace.engine.simulation.watch import Violation
from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery.handles import StateHandle
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot, TransactionRecord


def cut(
    read: int,
    between: tuple[int, ...],
    seen: tuple[int, ...],
    sunk: Mapping[str, tuple[TransactionStatus, tuple[int, ...]]],
) -> int:
    """One source that has read `read` records, in-flight data before the keyed operator, and
    what lies behind it; "named" is named.
    """
    contents = Contents()

    def snapshot(task: int, state: Hashable, inflight: list[ChannelStateHandle]) -> SubtaskSnapshot:
        number = contents.number(state)
        handle = StateHandle("o", "s", "list", "chk-1/f", number, 1, "0" * 16, 1)
        return SubtaskSnapshot(task, 0, False, [handle], [], [], inflight)

    count = len(between)
    buffer = BufferHandle("chk-1/f", contents.number(Rows(between)), 1, "0" * 16, count, 0, count)
    held = ChannelStateHandle(0, 0, 0, "input", 0, [buffer], False)
    subtasks = [snapshot(0, read, []), snapshot(1, seen, [held]), snapshot(2, 0, [])]
    named = [TransactionRecord("sink", "named", {})]
    metadata = CheckpointMetadata("job", 1, 1, "", False, 0, 0, 2, [], [], subtasks, named)
    return check_cut(
        metadata, contents, System({id: (status, (*ids,)) for id, (status, ids) in sunk.items()})
    )


PREPARED, COMMITTED = TransactionStatus.PREPARED, TransactionStatus.COMMITTED


def test_each_record_in_one_place_is_consistent() -> None:
    sunk = {"old": (COMMITTED, (0,)), "named": (PREPARED, (1,)), "other": (PREPARED, (9,))}
    assert cut(3, (2,), (0, 1), sunk) == 1


@pytest.mark.parametrize(
    ("read", "between", "seen"), [(3, (), (0, 1)), (3, (1, 2), (0, 1)), (2, (2,), (0, 1))]
)
def test_a_record_that_is_nowhere_twice_or_too_early_is_not(
    read: int, between: tuple[int, ...], seen: tuple[int, ...]
) -> None:
    with pytest.raises(Violation, match="cuts edge 0 wrongly"):
        cut(read, between, seen, {"named": (PREPARED, (0, 1))})


def test_what_no_named_transaction_holds_is_lost() -> None:
    with pytest.raises(Violation, match="cuts edge 1 wrongly"):
        cut(1, (), (0,), {"other": (PREPARED, (0,))})
