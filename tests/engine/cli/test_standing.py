from __future__ import annotations

from dataclasses import replace

from headrace.engine.cli.standing import bottleneck, counted, last_checkpoint
from headrace.engine.coordinator.rules import Phase

from .looks import COMPLETE, status_of


def test_counts_agree_with_their_noun() -> None:
    assert [counted(n, "restart") for n in (0, 1, 2)] == ["0 restarts", "1 restart", "2 restarts"]


def test_the_newest_checkpoint_is_told_or_that_there_is_none() -> None:
    assert last_checkpoint(status_of()) == "no checkpoint yet"
    assert last_checkpoint(status_of(notices=(COMPLETE,))) == "chk-7: 38 ms, 0 B"


def test_nobody_is_the_bottleneck_before_work_was_seen() -> None:
    assert bottleneck(status_of(), []) == "no operator is busy"


def test_operators_that_open_are_named_as_such() -> None:
    opening = replace(status_of(), phase=Phase.DEPLOYING)
    assert bottleneck(opening, []) == "operators open and state is loaded"
