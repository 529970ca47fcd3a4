"""Planted bugs of replay, with the simulation's oracles off: the second certificate stops them."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from headrace.engine.simulation.campaign import coordinator_process
from headrace.engine.simulation.watch import Watch

from . import historical_recovery
from .planted import Search, by_campaign, by_matrix

BUGS = historical_recovery.historical.bugs
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "historical-bugs.md"
#: What a coordinator says that does not complete a checkpoint for this reason.
CERTIFICATE = "does not account for its replay"
#: Runs of the search behind the known one.
SEEDS_MAX = 60
#: {bug: the search, a run in which the certificate found it}. An assertion of the engine may end
#: other runs before a checkpoint is acknowledged.
REPLAY: dict[str, tuple[Search, int]] = {
    "a_checkpoint_is_accepted_before_restored_data_were_consumed": (by_campaign(), 87),
    "new_data_overtake_restored_channel_state": (by_campaign(), 0),
    "a_recovery_that_is_interrupted_begins_anew": (by_campaign(), 103),
    "stateless_operators_are_passed_over_when_in_flight_data_are_dealt_out": (by_matrix, 0),
    "in_flight_data_of_a_custom_partitioner_go_anywhere": (by_matrix, 7),
    "of_mixed_exchanges_only_the_first_is_dealt_out": (by_matrix, 17),
    "restored_records_are_not_filtered": (by_campaign(), 0),
}


def without_oracles(patch: pytest.MonkeyPatch) -> None:
    """Nothing watches what subtasks work on, what checkpoints hold, and what a restore deals."""
    patch.setattr(coordinator_process, "check_redistribution", lambda *_: None)
    for name in ("committed", "cut", "restored", "completed"):
        patch.setattr(Watch, name, lambda *_, **__: None)


def first_stopped(search: Search, known: int) -> int | None:
    """Return the first run in which the certificate alone stops a checkpoint."""
    seeds = chain((known,), range(SEEDS_MAX))
    return next((seed for seed in seeds if CERTIFICATE in search(seed)), None)


@pytest.mark.mutant
@pytest.mark.parametrize("name", REPLAY)
def test_the_certificate_alone_stops(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug, (search, known) = BUGS[name], REPLAY[name]
    without_oracles(monkeypatch)
    assert not search(known), "the engine is at fault, not the mutant"
    bug.plant(monkeypatch)
    seed = first_stopped(search, known)
    assert seed is not None, "no checkpoint was refused"
    print(f"refused in run {seed}: {search(seed)}")


def test_the_document_lists_exactly_these() -> None:
    _, _, section = DOCUMENT.read_text(encoding="utf-8").partition("## Bugs of replay")
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    listed = [(name.strip(" `"), int(seed)) for name, _, seed in rows]
    assert listed == [(name, known) for name, (_, known) in REPLAY.items()]
