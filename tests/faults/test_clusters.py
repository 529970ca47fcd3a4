"""Campaigns on a standalone cluster (fault F23).

In processes of their own: this one may have a Spark session already.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.usefixtures("only_long")]

CAMPAIGN_S = 600.0


def campaign(*arguments: str) -> dict[str, Any]:
    """Run `headrace.bench.kills` on a standalone cluster and return its figures."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace.bench.kills", "--on", "standalone", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=CAMPAIGN_S,
        check=False,
    )
    assert done.stdout, done.stderr[-3000:]
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def test_kills_of_workers_executors_and_nodes_in_turn_are_exact() -> None:
    figures = campaign("--kills", "9", "--seed", "9")
    assert figures["exactly_once"], figures
    assert figures["restarts"] >= 9, figures


def test_executors_that_freeze_are_given_up_and_show_nothing_when_they_wake() -> None:
    figures = campaign("--kills", "2", "--kind", "frozen executor")
    assert figures["exactly_once"], figures
    assert figures["restarts"] >= 2, figures
