from __future__ import annotations

from pathlib import Path

import pytest

from headrace.engine.cli.target import load_job
from headrace.engine.contract.errors import AddressUnreachable, UserError

from .conftest import Command, Write

JOB = "job_of(orders)"

pytestmark = pytest.mark.usefixtures("headrace")


def test_the_only_job_of_a_file_needs_no_name(program: Write) -> None:
    program(f"one = {JOB}\nthe_same = one")
    assert load_job("program.py").name == "orders"


def test_a_job_is_found_by_name_in_files_and_modules(program: Write) -> None:
    path = program(f"one = {JOB}\ntwo = {JOB}", name="several_jobs.py")
    assert load_job("several_jobs.py:two").name == "orders"
    assert load_job(f"{path}:one").name == "orders"
    assert load_job("several_jobs:two").name == "orders"


def test_a_function_that_makes_a_job_is_called(program: Write) -> None:
    program(f"""
        def make_job(name="made", *words, **options):
            return {JOB}
    """)
    assert load_job("program.py:make_job").name == "orders"


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            "def make(path, *, rows): ...",
            "program.py:make takes path, rows, and a function that makes a job is called",
        ),
        ("def make(): return 1", "program.py:make returned int, not a headrace.Job"),
        (
            "def make():\n    1 / 0",
            "program.py:make, line 9: ZeroDivisionError: division by zero",
        ),
        (
            "def make():\n    return orders.select('x')",
            "program.py:make, line 9: select",
        ),
    ],
)
def test_a_function_that_makes_no_job_is_refused(lines: str, sentence: str, program: Write) -> None:
    program(lines)
    with pytest.raises(UserError) as refused:
        load_job("program.py:make")
    assert str(refused.value).startswith(sentence)


def test_a_program_finds_what_lies_beside_it(program: Write, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "beside_it.py").write_text("NAME = 'beside'")
    program(
        "import beside_it\njob = hr.Job(beside_it.NAME, orders.write.collect(name='out'))",
        "folder/p.py",
    )
    assert load_job("folder/p.py").name == "beside"


def test_a_program_may_be_named_like_a_library(program: Write) -> None:
    program(f"import json\njson.dumps(1)\njob = {JOB}", name="json.py")
    assert load_job("json.py").name == "orders"


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("none.py", "there is no file 'none.py'"),
        (
            "none_such",
            "there is no module 'none_such'; a file is written with its ending, as in job.py:job",
        ),
        ("program.py:oen", "program.py has no job 'oen'; did you mean 'one'?"),
        ("program.py:orders", "program.py:orders is a Stream, not a headrace.Job"),
        (
            "program.py",
            "program.py makes several jobs (one, two); choose one, as in program.py:one",
        ),
        ("empty.py", "empty.py makes no job; assign one at its top level: job = hr.Job(...)"),
        ("empty.py:job", "empty.py has no job 'job'; it makes no job at all"),
    ],
)
def test_what_is_no_job_is_refused(target: str, sentence: str, program: Write) -> None:
    program(f"one = {JOB}\ntwo = {JOB}")
    program("", name="empty.py")
    with pytest.raises(UserError) as refused:
        load_job(target)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("1 / 0", "line 8: ZeroDivisionError: division by zero"),
        ("f(", "line 8: SyntaxError: '(' was never closed"),
        (
            "import nothing_like_it",
            "line 8: ModuleNotFoundError: No module named 'nothing_like_it'",
        ),
        (
            "orders.select('x')",
            "line 8: select: there is no column 'x'; choose from 'customer' and 'amount'",
        ),
    ],
)
@pytest.mark.parametrize("target", ["broken_one.py", "broken_one"])
def test_a_program_that_breaks_is_told_with_its_line(
    target: str, lines: str, sentence: str, program: Write
) -> None:
    program(lines, name="broken_one.py")
    with pytest.raises(UserError) as refused:
        load_job(target)
    assert str(refused.value) == f"{target}, {sentence}"


def test_functions_of_a_file_are_shipped_by_value(headrace: Command, program: Write) -> None:
    program("""
        def doubled(row):
            return row | {"amount": row["amount"] * 2}
        job = job_of(orders.map(doubled, name="doubled"))
    """)
    ended = headrace("run", "program.py", "--runner", "processes", "-p", "1")
    assert ended.code == 0
    assert sorted(found["amount"] for found in ended.objects) == [100, 300]


@pytest.mark.parametrize("target", ["program.py", "program"])
def test_a_system_that_does_not_answer_is_nobodys_mistake(program: Write, target: str) -> None:
    program(
        "from headrace.engine.contract.errors import AddressUnreachable\n"
        "raise AddressUnreachable('the broker is away')"
    )
    with pytest.raises(AddressUnreachable, match=r"program(\.py)?, line \d+: the broker is away"):
        load_job(target)
