"""Renaming: a checkpoint reads as if its operators had always borne their new names."""

from __future__ import annotations

import pytest

from headrace.inflight.handle import BufferHandle, ChannelStateHandle
from headrace.recovery.handles import DatabaseHandle, StateHandle
from headrace.recovery.metadata import (
    CheckpointMetadata,
    EdgeInfo,
    SubtaskSnapshot,
    TaskInfo,
    TransactionRecord,
)
from headrace.recovery.renaming import NoSuchName, renamed


def a_checkpoint(source: str, counts: str, out: str) -> CheckpointMetadata:
    state = StateHandle(counts, "n", "keyed", "chk-1/a", 8, 1, "0" * 16, 1)
    database = DatabaseHandle(counts, "rocksdb", 0, 1, [], [], [])
    buffer = BufferHandle("chk-1/b", 8, 1, "0" * 16, 1, 0, 1)
    channel = ChannelStateHandle(0, 0, 0, "input", 0, [buffer], ended=False)
    return CheckpointMetadata(
        job="job",
        checkpoint=1,
        epoch=1,
        mode="unaligned",
        savepoint=False,
        created_ms=0,
        duration_ns=0,
        max_parallelism=16,
        tasks=[
            TaskInfo("source", [source], [source], 1),
            TaskInfo("chain", [counts, out], [counts], 1),
        ],
        edges=[
            EdgeInfo(f"{source}->{counts}/0", 0, 1),
            EdgeInfo(f"{counts} (late)->{out}/1", 1, 1),
        ],
        subtasks=[SubtaskSnapshot(1, 0, False, [state], [], [], [channel], databases=[database])],
        transactions=[TransactionRecord(out, "a", {})],
    )


def test_states_edges_and_transactions_bear_the_new_names() -> None:
    old = a_checkpoint("numbers", "counts", "out")
    names = {"counts": "totals", "out": "files", "numbers": "orders"}
    expected = a_checkpoint("orders", "totals", "files")
    assert renamed(old, names) == expected


def test_without_names_nothing_changes() -> None:
    old = a_checkpoint("numbers", "counts", "out")
    assert renamed(old, {}) == old


def test_what_was_written_under_the_new_name_stays_as_it_is() -> None:
    new = a_checkpoint("numbers", "totals", "out")
    assert renamed(new, {"counts": "totals"}) == new


def test_a_name_is_not_found_within_another() -> None:
    old = a_checkpoint("numbers", "numbers2", "out")
    assert renamed(old, {"numbers": "n"}) == a_checkpoint("n", "numbers2", "out")


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"count": "totals"}, "has no operator 'count'; it has counts, numbers, out"),
        ({"counts": "out"}, "has both an operator 'counts' and an operator 'out'"),
    ],
)
def test_names_that_do_not_fit_the_checkpoint_are_refused(
    names: dict[str, str], sentence: str
) -> None:
    with pytest.raises(NoSuchName, match=sentence):
        renamed(a_checkpoint("numbers", "counts", "out"), names)
