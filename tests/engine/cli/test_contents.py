"""`headrace checkpoints show --state|--edge`: the data of a real job's checkpoint, as a table and
as JSON.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.engine.cli.contents import plain

Command = Callable[..., Any]
ROWS, KEYS = 1_000, 5


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """One checkpoint, at the end of the input."""
    totals = (
        hr.read.sequence(ROWS, keys=KEYS, name="numbers")
        .key_by("key")
        .aggregate(n=hr.count(), name="totals")
    )
    where = str(tmp_path / "checkpoints")
    job = hr.Job("job", totals.write.collect(name="out"), parallelism=2, checkpoints=where)
    job.run("threads")
    return where


def test_state_is_printed_as_objects(headrace: Command, folder: str) -> None:
    ended = headrace("checkpoints", "show", folder, "--state", "totals", "--json")
    assert ended.code == 0
    assert sorted(row["key"] for row in ended.objects) == list(range(KEYS))
    assert {"__subtask", "__key_group"} <= ended.objects[0].keys()


def test_the_limit_is_kept_and_said(headrace: Command, folder: str) -> None:
    ended = headrace("checkpoints", "show", folder, "--state", "totals", "--limit", "2", "--json")
    assert len(ended.objects) == 2
    assert "more than 2 rows" in ended.err
    ended = headrace("checkpoints", "show", folder, "--state", "totals", "--limit", str(KEYS))
    assert ended.err == ""
    assert len(ended.out.splitlines()) == KEYS + 1


def test_an_edge_without_records_prints_none(headrace: Command, folder: str) -> None:
    ended = headrace("checkpoints", "show", folder, "--edge", "numbers->totals/0", "--json")
    assert (ended.code, ended.out) == (0, "")


def test_without_a_number_the_newest_checkpoint_is_shown(headrace: Command, folder: str) -> None:
    (shown,) = headrace("checkpoints", "show", folder, "--json").objects
    assert shown["checkpoint"] == shown["metadata"]["checkpoint"]


@pytest.mark.parametrize(
    "words",
    [
        ["--state", "totals", "--edge", "numbers->totals/0"],
        ["--state-name", "a"],
        ["--edge", "numbers->totals/0", "--state-name", "a"],
    ],
)
def test_contradictions_are_the_users_mistake(
    headrace: Command, folder: str, words: list[str]
) -> None:
    ended = headrace("checkpoints", "show", folder, *words)
    assert ended.code == 2
    assert "show takes --state OPERATOR" in ended.sentence


def test_an_operator_without_state_is_told(headrace: Command, folder: str) -> None:
    ended = headrace("checkpoints", "show", folder, "--state", "nobody")
    assert ended.code == 2
    assert "has no operator 'nobody'; state is held of" in ended.sentence


def test_values_become_what_json_can_hold() -> None:
    assert plain({"a": [b"\x00", Decimal("1.5"), float("inf"), 1.5, None, True]}) == {
        "a": ["AA==", "1.5", "inf", 1.5, None, True]
    }
    assert plain(dt.datetime(2026, 1, 2, 3)) == "2026-01-02T03:00:00"
    assert plain([("key", dt.timedelta(seconds=1))]) == [["key", "0:00:01"]]


def test_state_in_a_database_is_printed_like_any_other(headrace: Command, tmp_path: Path) -> None:
    totals = hr.read.sequence(ROWS, keys=KEYS, name="numbers").key_by("key")
    counted = totals.aggregate(n=hr.count(), name="totals")
    where = str(tmp_path / "checkpoints")
    job = hr.Job(
        "job",
        counted.write.collect(name="out"),
        parallelism=2,
        checkpoints=where,
        state=hr.State("rocksdb"),
    )
    job.run("threads")
    ended = headrace("checkpoints", "show", where, "--state", "totals", "--json")
    assert ended.code == 0, ended.err
    assert sorted(row["key"] for row in ended.objects) == list(range(KEYS))
    assert {"__subtask", "__key_group"} <= ended.objects[0].keys()
    for file in (tmp_path / "checkpoints/job/shared").iterdir():
        file.write_bytes(b"rubbish")
    ended = headrace("checkpoints", "show", where, "--state", "totals", "--json", "--limit", "999")
    assert ended.code == 2
    assert "is damaged" in ended.sentence
