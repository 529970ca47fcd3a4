"""Small scopes hold every promise in every interleaving, and a planted bug is found on a
shortest way.
"""

from __future__ import annotations

import sys

import pytest

from headrace.channels.events import CheckpointMode
from headrace.engine.simulation.exploration import exploration
from headrace.engine.simulation.exploration.exploration import SCOPES, Found, explore
from headrace.engine.simulation.exploration.small_scope import Scope

from .mutants import MUTANTS

SHORT = [name for name in SCOPES if name.startswith("short")]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHORT)
def test_no_interleaving_breaks_a_promise(name: str) -> None:
    found = explore(SCOPES[name])
    assert not found.violation
    assert found.endings
    assert found.interleavings > 1e12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "scope", "what"),
    [
        (
            "what_is_not_captured_passes_the_tile_check",
            Scope(CheckpointMode.UNALIGNED, rows=(1, 0)),
            "cuts edge 0 wrongly",
        ),
        (
            "checkpoint_is_announced_before_its_metadata_is_durable",
            Scope(CheckpointMode.ALIGNED, rows=(0, 0), periodic=0, crashes=1, victims=(2,)),
            "",
        ),
    ],
)
def test_a_planted_bug_is_found_and_the_way_to_it_told(
    mutant: str, scope: Scope, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[mutant](monkeypatch)
    found = explore(scope, states_max=200_000, traced=True)
    assert found.violation
    assert what in found.violation
    assert len(found.trace) == found.depth - 1


def test_the_command_says_what_it_met_and_fails_when_that_is_a_violation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explored(scope: Scope, **_: object) -> Found:
        return Found(states=7, violation="lost", trace=["one", "two"])

    monkeypatch.setattr(exploration, "explore", explored)
    monkeypatch.setattr(sys, "argv", ["explore", "short-aligned"])
    assert exploration.main() == exploration.EXIT_FOUND
    said = capsys.readouterr().out
    assert said.startswith("short-aligned: 7 states")
    assert "two" in said
