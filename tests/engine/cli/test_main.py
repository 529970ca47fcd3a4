from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.engine.cli import main as command
from headrace.engine.contract import errors

from .conftest import Command, Write


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["rum"], 'Unknown command "rum"'),
        (["run"], "requires an argument"),
        (["run", "job.py", "--runer", "threads"], "--runer"),
        (["run", "job.py", "-p", "two"], 'Invalid value for -p: unable to convert "two" into int.'),
        (["checkpoints", "show", "here", "x"], 'unable to convert "x" into int'),
    ],
)
def test_what_is_typed_wrongly_is_one_sentence_and_code_2(
    words: list[str], sentence: str, headrace: Command
) -> None:
    ended = headrace(*words)
    assert ended.code == 2
    assert sentence in ended.sentence


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.JobFailed("broken"), 1),
        (errors.UserError("wrong"), 2),
        (errors.StorageUnreachable("silent"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_code_tells_whose_fault_it_was(
    error: BaseException, code: int, headrace: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(target: str, settings: object, *, as_json: bool) -> int:
        raise error

    monkeypatch.setattr("headrace.engine.cli.run.run", fail)
    ended = headrace("run", "job.py", "--json")
    assert ended.code == code
    assert ended.sentence == (str(error) or "interrupted")
    assert ended.objects == [
        {"event": "error", "message": str(error) or "interrupted", "exit_code": code}
    ]


def test_help_waits_for_neither_arrow_nor_spark() -> None:
    code = (
        "import sys; from headrace.engine.cli.main import main; main(['--help']); "
        "print({'pyarrow', 'pyspark', 'numpy', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
    assert "checkpoints" in done.stdout


def test_checkpoints_are_listed_shown_and_verified(headrace: Command, program: Write) -> None:
    program("job = job_of(orders)")
    words = ("--runner", "threads", "--checkpoint-dir", "ck")
    assert headrace("run", "program.py", *words).code == 0
    assert headrace("checkpoints", "list", "ck", "--json").objects[0]["checkpoint"] == 1
    assert headrace("checkpoints", "show", "ck", "1", "--json").objects[0]["mode"] == "aligned"
    assert headrace("checkpoints", "verify", "ck", "--json").objects[0]["status"] == "valid"
    missing = headrace("checkpoints", "show", "ck", "9")
    assert missing.code == 2
    assert "no complete checkpoint 9" in missing.sentence


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    program = "from headrace.engine.cli.main import main; raise SystemExit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", program, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) in (1, 141), "rich ends with 1, our own lines with 141"


def test_the_entry_point_takes_the_arguments_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["headrace", "--help"])
    assert command.main() == 0
    assert "Usage: headrace COMMAND" in capsys.readouterr().out


#: {words before the one that is completed: what is offered}.
COMPLETED = {
    ("ch",): {"check", "checkpoints"},
    ("run", "job.py", "--runner", ""): {"spark", "threads", "processes"},
    ("run", "job.py", "--mode", "un"): {"unaligned"},
    ("run", "jo"): {"job.py"},
    ("checkpoints", "show", "ck", "--ed"): {"--edge"},
}


def test_bash_completes_commands_choices_and_files(headrace: Command, tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    script = headrace("completion", "bash").out
    (tmp_path / "job.py").touch()
    asked = [
        f"COMP_WORDS=({shlex.join(['headrace', *words])}); COMP_CWORD={len(words)};"
        ' COMPREPLY=(); _headrace; echo "${COMPREPLY[*]}"'
        for words in COMPLETED
    ]
    done = subprocess.run(
        ["bash", "-c", "\n".join([script, *asked])], capture_output=True, text=True, check=True
    )
    offered = [set(line.split()) for line in done.stdout.splitlines()]
    assert dict(zip(COMPLETED, offered, strict=True)) == COMPLETED


@pytest.mark.parametrize(("shell", "opening"), [("zsh", "#compdef headrace"), ("fish", "# Fish")])
def test_other_shells_have_a_script_too(shell: str, opening: str, headrace: Command) -> None:
    out = headrace("completion", shell).out
    assert out.startswith(opening)
    assert "checkpoints" in out
    assert headrace("completion", "tcsh").code == 2
