"""Seeds that once found a bug in the engine.

The engine and the simulation change, and with them what a seed stands for; so each bug has a mutant
or a test of its own as well. These stay because they cost little and have found something before.
"""

from __future__ import annotations

import logging

import pytest

from headrace.engine.simulation.campaign.world import simulate

SEEDS = {
    5: "transactions became visible in the order of their ids, not of their pre-commits",
    8: "a commit confirmed during the next metadata's write was held for both committed and not",
    26: "a restart that waited for storage asked to be woken in the past, for ever",
    93: "two incarnations of a worker displaced each other without end",
    379: "a trigger made a worker send before its peers were connected",
    734: "a consumer restored as finished, its producer not, left barriers unread (at least once)",
    754: "files went although the metadata of a checkpoint that named them had stayed",
    801: "a full checkpoint left alone the files that a replay under way still read",
    963: "the watch took a copy of a record, come round a loop, for one left to replay",
    1910: "files went although the metadata of a checkpoint that named them had stayed, as in 754",
    3320: "a sink did nothing but pre-commit, for checkpoints that came faster than it flushed",
    4850: "a file was deleted that only a checkpoint just let go named, and one under way",
    5043: "a sink did nothing but pre-commit, as in 3320, of two workers",
    5374: "a driver frozen amid the claim of an epoch woke, and claimed one above its successors'",
    7339: "a sink did nothing but pre-commit, as in 3320, of a job of one subtask a task",
    8695: "a file was deleted that a checkpoint under way named, as in 4850, after a restart",
    9855: "a file was deleted that a checkpoint under way named, as in 4850, of three workers",
    11718: "storage that failed during a restore ended the job",
    15589: "a sink did nothing but pre-commit, as in 3320, two checkpoints at once",
    18395: "a sink did nothing but pre-commit, as in 3320, three checkpoints at once",
    31826: "checkpoints that were let go stayed when a job finished whose last commits had failed",
    7613902: "what a dead attempt had left in a sink stayed, since the last sweep was not repeated",
    12857575: "a worker that was cut off logged under the next attempt's number after its deletion",
}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_seed_that_showed_that(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("headrace"), "disabled", True)
    report = simulate(seed)
    assert not report.violation, f"once: {SEEDS[seed]}"
