"""Jobs that are built, shown and not run."""

from __future__ import annotations

import pytest

from .conftest import Command, Write

COUNTED = """
counts = orders.key_by("customer").aggregate(n=hr.count(), name="counts")
job = hr.Job("counted", counts.write.parquet("out", name="files"), parallelism=2)
"""


def test_a_check_shows_tasks_state_columns_and_promises(
    headrace: Command, program: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = program(COUNTED)
    monkeypatch.setenv("HEADRACE_PARALLELISM", "3")
    ended = headrace("check", "program.py", "--checkpoint-dir", "ck")
    assert ended.code == 0
    assert "checkpoints: every 10s, aligned, in ck" in ended.out
    assert "sink files: exactly-once" in ended.out
    assert "parallelism: set by HEADRACE_PARALLELISM" in ended.out
    assert "checkpoints.directory: set by command line" in ended.out
    assert "orders->counts/0" in ended.out
    assert "customer: string" in ended.out
    # Python may keep the compiled program.
    found = [each for each in path.parent.rglob("*") if each.suffix != ".pyc"]
    files = [each.name for each in found if each.is_file()]
    assert files == ["program.py"], "a check writes nothing"


def test_a_check_as_an_object_names_operators_with_state(headrace: Command, program: Write) -> None:
    program(COUNTED)
    (found,) = headrace("check", "program.py", "--json", "--set", "runner=threads").objects
    assert found["job"] == "counted"
    assert found["runner"] == "threads"
    assert found["origins"] == {"runner": "command line"}
    assert found["sinks"] == {"files": "exactly-once"}
    operators = [operator for task in found["tasks"] for operator in task["operators"]]
    built_at = {operator["name"]: operator["built_at"] for operator in operators}
    assert built_at == {
        "orders": "program.py:4", "counts": "program.py:9", "files": "program.py:10"
    }  # fmt: skip
    assert found["edges"][0]["columns"] == {"customer": "string", "amount": "int64"}


@pytest.mark.parametrize(
    ("lines", "words", "sentence"),
    [
        ("job = hr.Job('orders')", (), "no sink"),
        (COUNTED, ("--network.window", "1KiB"), "network.window='1KiB' is smaller than"),
        ("orders.select('x')", (), "there is no column 'x'"),
    ],
)
def test_a_job_that_no_run_would_start_is_refused_with_a_sentence(
    lines: str, words: tuple[str, ...], sentence: str, headrace: Command, program: Write
) -> None:
    program(lines)
    ended = headrace("check", "program.py", *words)
    assert ended.code == 2
    assert sentence in ended.sentence


def test_a_graph_is_drawn_as_a_flowchart_or_as_an_object(headrace: Command, program: Write) -> None:
    program(COUNTED)
    lines = headrace("graph", "program.py", "-p", "3").out.splitlines()
    assert lines[0] == "flowchart LR"
    assert '    t0(["orders x3"])' in lines
    assert "    t0 -->|hash| t1" in lines
    (found,) = headrace("graph", "program.py:job", "--json").objects
    assert [task["parallelism"] for task in found["tasks"]] == [2, 2]
    assert [task["is_sink"] for task in found["tasks"]] == [False, True]
    assert [edge["partitioner"] for edge in found["edges"]] == ["hash"]


def test_a_graph_is_drawn_as_a_picture(headrace: Command, program: Write) -> None:
    program(COUNTED)
    drawn = headrace("graph", "program.py", "-p", "3", "--svg").out
    assert drawn.startswith("<svg ")
    assert drawn.endswith("</svg>\n")
    assert ">3 subtasks</text>" in drawn
    refused = headrace("graph", "program.py", "--svg", "--json")
    assert refused.code == 2
    assert "leave one out" in refused.sentence
