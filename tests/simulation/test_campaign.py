"""A small campaign, and that a seed is a run. `make simulate` runs large campaigns."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys

import pytest

from headrace.channels.events import CheckpointMode
from headrace.engine.simulation.campaign import campaign
from headrace.engine.simulation.campaign.campaign import (
    COVERAGE_SEEDS_MIN,
    REQUIRED_SEEDS_MIN,
    Result,
    run_campaign,
)
from headrace.engine.simulation.campaign.world import Report, simulate
from headrace.engine.simulation.coverage import REQUIRED

_HASHES = """
import sys
from headrace.engine.simulation.campaign.campaign import run_campaign
from headrace.engine.simulation.campaign.world import simulate
import logging
logging.disable(logging.CRITICAL)
print(*[simulate(seed).trace_hash for seed in range(3)])
"""


def test_twenty_seeds_keep_every_promise() -> None:
    # Those above are test_databases.py's.
    result = run_campaign(range(20), jobs=1)
    assert result.violations == {}
    assert result.seeds == 20


def test_a_campaign_silences_the_log_only_while_it_runs() -> None:
    before = logging.getLogger("headrace").level
    run_campaign(range(40, 41), jobs=1)
    assert logging.getLogger("headrace").level == before


@pytest.mark.parametrize("mode", CheckpointMode)
def test_without_faults_every_mode_keeps_every_promise(mode: CheckpointMode) -> None:
    result = run_campaign(range(1000, 1006), jobs=1, faults=False, mode=mode)
    assert result.violations == {}


def test_the_same_seed_is_the_same_run() -> None:
    assert simulate(3) == simulate(3)
    assert simulate(3).trace_hash != simulate(4).trace_hash


def test_a_run_does_not_depend_on_the_order_of_hashes() -> None:
    def hashes(seed: str) -> str:
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", _HASHES]
        return subprocess.check_output(command, env=environment, text=True, timeout=300)

    assert hashes("1") == hashes("2")


def _report(seed: int, violation: str = "") -> Report:
    return Report(seed, violation, "", 1, 1, dict.fromkeys(REQUIRED, 1))


def test_a_large_campaign_fails_when_a_fault_never_happened() -> None:
    result = Result(seeds=REQUIRED_SEEDS_MIN)
    assert set(result.missing) == set(REQUIRED)
    result.add(_report(0))
    assert result.missing == []
    result.seeds = COVERAGE_SEEDS_MIN
    assert not set(result.missing) & set(REQUIRED)
    assert "crash before WriteMetadata" in result.missing


def test_a_violation_comes_with_the_command_that_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def simulated(seed: int, **_: object) -> Report:
        return _report(seed, "a record was lost" if seed == 7 else "")

    monkeypatch.setattr(campaign, "simulate", simulated)
    arguments = ["campaign", "--seeds", "5:9", "--jobs", "1", "--json", "--mode", "unaligned"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert campaign.main() == campaign.EXIT_FOUND
    found = json.loads(capsys.readouterr().out)
    assert found["seeds"] == 4
    assert [v["seed"] for v in found["violations"]] == [7]
    assert found["violations"][0]["command"].endswith("--seed 7 --trace --mode unaligned")


def test_a_number_of_seeds_is_a_range_drawn_at_random_and_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[int] = []

    def simulated(seed: int, **_: object) -> Report:
        ran.append(seed)
        return _report(seed)

    monkeypatch.setattr(campaign, "simulate", simulated)
    monkeypatch.setattr(sys, "argv", ["campaign", "--seeds", "3", "--jobs", "1"])
    for _ in range(2):
        assert campaign.main() == 0
    printed = re.findall(r"seeds (\d+):(\d+)", capsys.readouterr().err)
    ranges = [range(int(first), int(last)) for first, last in printed]
    assert ran == [*ranges[0], *ranges[1]]
    assert [len(seeds) for seeds in ranges] == [3, 3]
    assert ranges[0] != ranges[1]
