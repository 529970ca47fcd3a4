"""The oracle of `full_every`: of so many checkpoints in a row one shares no file."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from headrace.engine.simulation.campaign.environment import Settings
from headrace.engine.simulation.campaign.full_checkpoints import FullCheckpoints
from headrace.engine.simulation.campaign.scenario import draw_scenario
from headrace.engine.simulation.coverage import Coverage
from headrace.engine.simulation.watch import Violation
from headrace.recovery.handles import StateHandle
from headrace.recovery.metadata import CheckpointMetadata, SubtaskSnapshot


def settings(every: int, concurrent: int = 1) -> Settings:
    drawn = draw_scenario(random.Random(0)).settings
    return replace(drawn, full_every=every, concurrent=concurrent)


def naming(number: int, *files: str) -> CheckpointMetadata:
    states = [StateHandle("sum", "total", "keyed", file, 8, 1, "0" * 16, 1) for file in files]
    subtask = SubtaskSnapshot(0, 0, False, states, [], [], [])
    return CheckpointMetadata("job", number, 1, "aligned", False, 0, 0, 1, [], [], [subtask], [])


def judged(checked: FullCheckpoints, named: Sequence[str]) -> None:
    """Complete checkpoints which name the files of these letters."""
    for number, files in enumerate(named, 1):
        checked.completed(naming(number, *files))


def test_every_second_checkpoint_may_share() -> None:
    coverage = Coverage()
    judged(FullCheckpoints(settings(2), coverage), ["a", "ab", "c", "cd", "e"])
    assert coverage.counts["full checkpoints that share no file"] == 2


@pytest.mark.parametrize(
    ("every", "named"), [(1, ["a", "ab"]), (2, ["a", "ab", "bc"]), (2, ["a", "ab", "c", "cd", "a"])]
)
def test_too_many_that_share_in_a_row_are_a_violation(every: int, named: list[str]) -> None:
    with pytest.raises(Violation, match=f"shares files with older ones, with full_every={every}"):
        judged(FullCheckpoints(settings(every), Coverage()), named)


def test_files_of_the_start_are_older_ones_too() -> None:
    checked = FullCheckpoints(settings(1), Coverage())
    checked.started(naming(7, "a"))
    with pytest.raises(Violation):
        checked.completed(naming(8, "a", "b"))


def test_checkpoints_under_way_when_a_full_one_is_due_may_come_first() -> None:
    judged(FullCheckpoints(settings(1, concurrent=2), Coverage()), ["a", "ab", "c"])


def test_without_full_every_all_may_share() -> None:
    judged(FullCheckpoints(settings(0), Coverage()), ["a", "a", "a", "a"])
