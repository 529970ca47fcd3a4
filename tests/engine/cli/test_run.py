from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engine.cli.run import parsed
from headrace.engine.contract.errors import UserError

from .conftest import Command, Write

TOTALS = 'job = job_of(orders.key_by("customer").aggregate(n=hr.count(), emit="final", name="t"))'


def test_results_go_to_standard_output_and_talk_to_standard_error(
    headrace: Command, program: Write, tmp_path: Path
) -> None:
    program(TOTALS)
    ended = headrace(
        *("run", "program.py:job", "--runner", "threads", "--mode", "at_least_once"),
        *("--checkpoint-dir", "ck", "--checkpoint-interval", "1s"),
    )
    assert ended.code == 0
    assert sorted(ended.out.splitlines()) == [
        '{"customer": "ann", "n": 1}',
        '{"customer": "bob", "n": 1}',
    ]
    lines = ended.err.splitlines()
    assert lines[:3] == [
        "job orders: 2 tasks on 2 slots, as threads of this machine",
        "  checkpoints: every 1s, at_least_once, in ck",
        "  sink out: exactly-once",
    ]
    assert lines[-1].startswith("job orders finished after ")
    assert lines[-1].endswith(": 1 checkpoint, 0 restarts")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_credentials_of_the_checkpoint_directory_are_not_shown(
    headrace: Command, program: Write, form: list[str]
) -> None:
    program(TOTALS)
    directory = "memory://ann:secret@host/ck"
    ended = headrace(
        "run", "program.py", "--runner", "threads", "--checkpoint-dir", directory, *form
    )
    assert ended.code == 0
    assert "memory://***@host/ck" in ended.out + ended.err
    assert "secret" not in ended.out + ended.err


def test_json_is_one_object_per_line_with_stable_keys(headrace: Command, program: Write) -> None:
    program(TOTALS)
    ended = headrace("run", "program.py", "--runner", "threads", "--json")
    events = [found["event"] for found in ended.objects]
    assert events == ["starting", "running", "checkpoint", "record", "record", "result"]
    assert ended.err == ""
    starting, result = ended.objects[0], ended.objects[-1]
    assert starting["tasks"] == ["orders", "t -> out"]
    assert starting["sinks"] == {"out": "exactly-once"}
    assert list(result) == [
        "event",
        "job",
        "outcome",
        "duration_s",
        "checkpoints",
        "restarts",
        "last_checkpoint",
        "savepoint",
        "collected",
    ]
    assert (result["outcome"], result["collected"]) == ("finished", {"out": 2})


def test_the_command_line_wins_over_the_environment(
    headrace: Command, program: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(TOTALS)
    monkeypatch.setenv("HEADRACE_RUNNER", "threads")
    monkeypatch.setenv("HEADRACE_PARALLELISM", "3")
    words = ("run", "program.py", "--json")
    slots = [
        headrace(*words, *more).objects[0]["slots"]
        for more in ([], ["-p", "1"], ["--set", "parallelism=4"])
    ]
    assert slots == [3, 1, 4]


def test_settings_are_assignments() -> None:
    assert parsed(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(UserError, match="--set takes key=value, got 'a'"):
        parsed(["a"])


def test_a_state_directory_that_is_a_file_is_told_before_the_job_runs(
    headrace: Command, program: Write, tmp_path: Path
) -> None:
    program(TOTALS)
    (tmp_path / "state").write_text("")
    ended = headrace(
        *("run", "program.py", "--runner", "threads"),
        *("--set", "state.backend=rocksdb", "--set", "state.directory=state"),
    )
    assert ended.code == 2
    assert ended.sentence == "state.directory='state' is not a folder; name one, or leave it out"
