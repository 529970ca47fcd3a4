"""The documentation says what is so: its first program runs, and what it names exists."""

from __future__ import annotations

import ast
import doctest
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from cyclopts import App
from msgspec import structs

from headrace.engine.cli.main import app
from headrace.engine.contract.messages import SubtaskNumbers
from headrace.engine.contract.options import GROUPS, RunOptions
from headrace.engine.coordinator.rules import Phase
from headrace.engine.drivers.status import Status
from headrace.engine.observation.observer import Observer
from headrace.engine.session.metrics import metrics_of, observed_metrics
from headrace.engine.session.settings import options_by_key
from headrace.recovery.metadata import CheckpointMetadata

ROOT = Path(__file__).resolve().parent.parent

DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], key=lambda path: path.as_posix()
)
NAMES = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]

#: Top-level folders and files; a code span that begins with one of them is a path of the
#: repository.
TOP = ("bench/", "channels/", "docs/", "engine/", "headrace/", "inflight/", "recovery/", "tests/")

#: Folders whose modules the code map names.
ROOMS = ("channels", "inflight", "recovery", "engine")
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)

ROOM = re.compile(r"^#+ .*`([\w/]+/)`")
MODULES = re.compile(r"^\| (`\w+\.py`(?:, `\w+\.py`)*) \|")
SPAN = re.compile(r"`([^`]+)`")
FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def code_blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", read(name), re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[str]:
    """Paragraphs, lists, tables and indented code; no fenced code."""
    return re.split(r"\n(?:[ ]*\n)+", FENCED.sub("", text))


def spans(text: str) -> Iterator[str]:
    """Every code span, joined where a line wraps."""
    for block in blocks(text):
        yield from (" ".join(span.split()) for span in SPAN.findall(block))


def commands(name: str) -> Iterator[str]:
    """Every line of code, or code span, that is a command."""
    for block in blocks(read(name)):
        lines = block.splitlines()
        is_code = all(line.startswith("    ") for line in lines)
        for text in (line.strip() for line in lines) if is_code else spans(block):
            if re.match(r"(headrace|make) ", text):
                yield text


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: text for key, text in os.environ.items() if "HEADRACE_" not in key}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment | {"HEADRACE_RUNNER": "threads"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def plain_count() -> dict[str, int]:
    words: Counter[str] = Counter()
    # Sources pass over files that begin with "_", which are somebody's working area.
    for path in Path(os.__file__).parent.glob("[!_]*.py"):
        text = path.read_text(encoding="utf-8")
        words.update(word for word in re.split(r"\W+", text, flags=re.ASCII) if word)
    return dict(words)


@pytest.fixture(scope="module")
def first_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the README's first program has run, as it is written, but on threads."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "words.py").write_text(code_blocks("README.md", "python")[1], encoding="utf-8")
    done = run(folder, "words.py")
    assert done.returncode == 0, done.stderr
    assert "words: finished" in done.stdout
    return folder


def test_the_program_of_the_first_screen_prints_what_the_readme_says(tmp_path: Path) -> None:
    program = tmp_path / "scores.py"
    program.write_text(code_blocks("README.md", "python")[0], encoding="utf-8")
    # pandas is an extra, which the first program does without.
    (tmp_path / "pandas.py").write_text('raise ImportError("not installed")', encoding="utf-8")
    done = run(tmp_path, "scores.py")
    assert done.returncode == 0, done.stderr
    assert f"\n    {done.stdout}" in read("README.md")


def test_the_first_program_counts_what_a_plain_count_counts(first_program: Path) -> None:
    table = ds.dataset(first_program / "counts").to_table()
    counted = dict(zip(table["word"].to_pylist(), table["n"].to_pylist(), strict=True))
    assert counted == plain_count()


def test_the_connectors_of_the_page_run_and_conform(tmp_path: Path) -> None:
    program = tmp_path / "connectors.py"
    program.write_text("\n".join(code_blocks("docs/connectors.md", "python")), encoding="utf-8")
    done = run(tmp_path, "connectors.py")
    assert done.returncode == 0, done.stderr


def test_its_results_can_be_read_as_the_readme_says(first_program: Path) -> None:
    done = run(first_program, "-c", code_blocks("README.md", "python")[2])
    assert done.returncode == 0, done.stderr
    assert "self" in done.stdout


def test_its_output_files_are_ordinary_parquet(first_program: Path) -> None:
    files = list((first_program / "counts").glob("*.parquet"))
    assert files
    assert all(pq.read_schema(file).names == ["word", "n"] for file in files)


@pytest.mark.parametrize(
    "command", ["list checkpoints", "show checkpoints N", "verify checkpoints"]
)
def test_its_checkpoints_can_be_looked_at(first_program: Path, command: str) -> None:
    complete = sorted((first_program / "checkpoints" / "words").glob("chk-*/metadata"))
    number = complete[-1].parent.name.removeprefix("chk-")
    words = ["checkpoints", *command.replace("N", number).split()]
    main = "from headrace.engine.cli.main import main; raise SystemExit(main())"
    done = run(first_program, "-c", main, *words)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    folder = (ROOT / name).parent
    targets = [t for t in LINK.findall(read(name)) if "://" not in t]
    missing = [target for target in targets if not (folder / target).exists()]
    assert not missing


@pytest.mark.parametrize("name", NAMES)
def test_paths_that_are_named_exist(name: str) -> None:
    named = {span for span in spans(read(name)) if span.startswith(TOP)}
    paths = {span for span in named if re.fullmatch(r"[\w./-]+", span)}
    missing = sorted(path for path in paths if not (ROOT / path).exists())
    assert not missing


def mapped() -> Counter[str]:
    """{file: how often the tables of the code map name it}."""
    room, found = "", Counter[str]()
    for line in read("ARCHITECTURE.md").splitlines():
        heading, modules = ROOM.match(line), MODULES.match(line)
        if heading:
            room = heading[1]
        elif modules:
            found.update(room + module for module in SPAN.findall(modules[1]))
    return found


def test_the_code_map_names_every_module_once_and_none_besides() -> None:
    modules = {
        path.relative_to(ROOT).as_posix()
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if path.name not in {"__init__.py", "__main__.py"}
    }
    assert mapped() == Counter(modules)


def definitions(path: Path) -> Iterator[str]:
    """Every class, function, and `Class.method` that a file defines."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
            yield from (f"{node.name}.{m.name}" for m in node.body if isinstance(m, FUNCTION))
        elif isinstance(node, FUNCTION):
            yield node.name


def lives() -> str:
    """The sections of ARCHITECTURE.md that follow something through the code."""
    _, *sections = re.split(r"^## ", read("ARCHITECTURE.md"), flags=re.MULTILINE)
    return "".join(s for s in sections if s.startswith("The life of a "))


def test_functions_that_the_lives_name_exist() -> None:
    text = lives()
    assert re.findall(r"^The life of a (\w+)", text, re.MULTILINE) == [
        "record",
        "barrier",
        "loop",
        "failure",
        "rescale",
    ]
    defined = {
        name for room in ROOMS for path in (ROOT / room).rglob("*.py") for name in definitions(path)
    }
    named = {span for span in spans(text) if not span.startswith(TOP)}
    assert sorted(named - defined) == []


def test_a_file_on_the_barrier_s_way_defines_the_functions_beside_it() -> None:
    rows = re.findall(r"^\| (\d+) \| `([\w/]+\.py)` \| (.*) \|$", lives(), re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    for _, file, functions in rows:
        missing = set(SPAN.findall(functions)) - set(definitions(ROOT / file))
        assert not missing, file


def test_the_glossary_is_sorted_and_each_term_has_a_file() -> None:
    _, _, glossary = read("ARCHITECTURE.md").partition("## Glossary")
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([\w/]+\.py)` \|$", glossary, re.MULTILINE)
    terms = [term for term, _ in rows]
    assert terms == sorted(set(terms))
    assert len(terms) == sum(line.startswith("| ") for line in glossary.splitlines()) - 1


@pytest.mark.parametrize("name", NAMES)
def test_commands_that_are_named_exist(name: str) -> None:
    goals = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    for command in commands(name):
        program, *words = command.split()
        if program == "make":
            goal = next(word for word in words if re.fullmatch(r"[a-z-]+", word))
            assert goal in goals, command
            continue
        found = app
        for word in words:
            if not subcommands(found):
                break
            alternatives = word.split("|")
            assert subcommands(found).issuperset(alternatives), command
            found = found[alternatives[0]]


def subcommands(command: App) -> set[str]:
    return {name for name in command if not name.startswith("-")}


def test_every_metric_is_documented_and_none_besides() -> None:
    documented = set(re.findall(r"^\| `(headrace_\w+)` \|", read("docs/metrics.md"), re.MULTILINE))
    assert documented == metric_names()


def metric_names() -> set[str]:
    from headrace.engine.api import read as sources
    from headrace.engine.contract.outcomes import Rescaled
    from headrace.engine.session.handle import rescale_metrics
    from headrace.engine.session.job import Job

    rows = sources.sequence(1, name="numbers")
    job = Job("j", rows.write.collect(name="out"), parallelism=1)
    shuffled = Job("s", rows.shuffle().write.collect(name="out"), parallelism=1)
    metadata = CheckpointMetadata("j", 1, 1, "aligned", False, 0, 0, 128, [], [], [], [])
    numbers = SubtaskNumbers(0, 0, 0, 0, 0, 0, 0, 0, 0, watermark_ns=0)
    status = Status(Phase.RUNNING, 1, 0, {(0, 0): numbers}, (), (metadata,), 1)
    observation = Observer(shuffled.plan()).look(status, 0, 0)
    sinks = [structs.replace(s, open_transactions=0, behind_s=0.0) for s in observation.sinks]
    sinks = [structs.replace(s, last_commit_ms=0) for s in sinks]
    tasks = [structs.replace(t, call_p50_ms=0.0) for t in observation.tasks]
    known = structs.replace(observation, sinks=sinks, tasks=tasks, latency_p50_ms=0.0)
    metrics = {
        **metrics_of(job.plan(), status, 0),
        **rescale_metrics([Rescaled(2, 1, 0, 0, 0)]),
        **observed_metrics(known),
    }
    return {name.partition("{")[0] for name in metrics}


def option_rows() -> list[str]:
    """The table of options as their declarations say it."""
    rows = ["| Key | Short | Default | Meaning |", "|---|---|---|---|"]
    for key, option in options_by_key().items():
        group, _, name = key.rpartition(".")
        members: Any = GROUPS[group] if group else RunOptions
        default = next(field.default for field in fields(members) if field.name == name)
        shown = "none" if default in (None, MISSING) else f"`{str(default).lower()}`"
        shorts = ", ".join(f"`{short}`" for short in option.short)
        rows.append(f"| `{key}` | {shorts} | {option.usual or shown} | {option.help} |")
    return rows


def test_the_table_of_options_is_that_of_their_declarations() -> None:
    _, _, section = read("docs/cli.md").partition("## Options")
    documented = [line for line in section.splitlines() if line.startswith("|")]
    expected = option_rows()
    assert documented == expected, "write into docs/cli.md:\n" + "\n".join(expected)


def test_the_examples_of_frontiers_print_what_they_say() -> None:
    text = "\n".join(code_blocks("docs/frontiers.md", "python"))
    examples = doctest.DocTestParser().get_doctest(text, {}, "frontiers", "docs/frontiers.md", 0)
    results = doctest.DocTestRunner().run(examples)
    assert results.attempted > 20
    assert not results.failed
