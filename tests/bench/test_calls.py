"""Checkpoints while a call of a user's function is under way."""

from __future__ import annotations

import pytest

from headrace.bench.calls import KINDS, Kind, arms, run


def test_every_kind_is_run_at_every_length_up_to_the_longest() -> None:
    assert list(arms("holding", 0.1)) == [("holding", s) for s in (0.001, 0.01, 0.1)]
    assert len(list(arms(None, 60.0))) == len(KINDS) * 7


@pytest.mark.parametrize(
    ("kind", "waits"), [("sleeping", False), ("holding", True), ("isolated", False)]
)
def test_a_checkpoint_waits_for_the_gil_and_for_nothing_else(kind: Kind, waits: bool) -> None:
    call_s = 1.5
    found = run(kind=kind, call_s=call_s, seconds=1.0)
    assert found["restarts"] == 0
    assert (found["checkpoint_max_ms"] > call_s * 1e3 / 2) is waits
