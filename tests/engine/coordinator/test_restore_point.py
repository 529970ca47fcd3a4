"""What attempts start from, and whom damage is blamed on. What the coordinator makes of it: test_coordinator.py."""

from __future__ import annotations

from headrace.engine.contract import messages as m
from headrace.engine.coordinator import coordinator_events as d
from headrace.engine.coordinator.ledger import Ledger
from headrace.engine.coordinator.restore_point import RestorePoint, as_it_is
from headrace.recovery.metadata import CheckpointMetadata

CORRUPT = m.DeployFailed(1, "checksum", corrupt=True)


def metadata(checkpoint: int) -> CheckpointMetadata:
    return CheckpointMetadata("job", checkpoint, 1, "aligned", False, 0, 0, 128, [], [], [], [])


def point(
    restore: CheckpointMetadata | None, origin: str = ""
) -> tuple[Ledger, RestorePoint, list[d.CoordinatorEffect]]:
    ledger = Ledger(restore, 2, foreign=bool(origin))
    chosen = RestorePoint(ledger, restore, origin, lambda m: m.subtasks, as_it_is)
    chosen.start()
    return ledger, chosen, []


def test_without_a_checkpoint_it_is_the_beginning() -> None:
    _, chosen, _ = point(None)
    assert (chosen.start().checkpoint, chosen.describe()) == (0, "the beginning")


def test_the_directory_is_told_as_long_as_the_job_has_no_checkpoint_of_its_own() -> None:
    ledger, chosen, _ = point(metadata(7), "file:///other")
    assert (chosen.start().checkpoint, chosen.start().origin) == (7, "file:///other")
    ledger.triggered(8)
    ledger.completed(metadata(8))
    assert chosen.describe() == "chk-7", "until another attempt starts"
    assert (chosen.start().checkpoint, chosen.start().origin) == (8, "")


def test_an_older_one_is_looked_for_when_what_was_loaded_is_damaged() -> None:
    _, chosen, effects = point(metadata(7))
    assert chosen.cannot_be_loaded(CORRUPT, effects) is None
    assert effects[-1] == d.FindCheckpoint(7)
    assert chosen.is_searching
    assert chosen.found(metadata(5)) is None
    assert not chosen.is_searching
    assert chosen.start().checkpoint == 5


def test_what_is_not_damage_fails_the_job() -> None:
    _, chosen, effects = point(metadata(7))
    assert (
        chosen.cannot_be_loaded(m.DeployFailed(1, "no module", corrupt=False), effects)
        == "no module"
    )
    assert not effects


def test_the_newest_is_not_blamed_for_the_damage_of_the_one_that_was_loaded() -> None:
    ledger, chosen, effects = point(metadata(7))
    ledger.triggered(8)
    ledger.completed(metadata(8))
    assert chosen.cannot_be_loaded(CORRUPT, effects) is None
    assert not effects


def test_nothing_older_fails_the_job() -> None:
    _, chosen, effects = point(metadata(7))
    chosen.cannot_be_loaded(CORRUPT, effects)
    assert str(chosen.found(None)).startswith("chk-7 cannot be restored, and there is no older one")
