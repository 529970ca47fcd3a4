"""The repository checks itself: what a reviewer would otherwise say every time.

Each test names the place, what is wrong and what to do. The limits are real: there is no list of
files that may exceed them. Where a rule has exceptions, each stands here with its reason.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: Top-level folders that are sub-packages of headrace.
PACKAGES = ("bench", "channels", "engine", "inflight", "recovery")
#: Packages of pure machines: time, randomness and the outside come in as arguments and events.
PURE = ("channels", "inflight", "recovery", "engine/worker", "engine/coordinator")
IMPURE_MODULES = {"threading", "socket", "time", "random", "os", "logging", "pyspark"}

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 60
#: Of a document, tables and lonely links excepted; ruff's E501 holds the same of code.
COLUMNS_MAX = 100

#: Modules without a test file of their own, each with the reason.
UNMIRRORED = {
    "channels/events.py": "values; every test of the gate and the wire uses them",
    "engine/contract/connectors.py": "protocols only",
    "engine/observation/observed.py": "values: tests/engine/observation/test_observer.py",
    "engine/api/aggregated.py": "methods of streams: tests/engine/api/test_stream.py",
    "engine/cli/bench_parameters.py": "of benchmarks: tests/engine/cli/test_benchmarks.py",
    "engine/cli/benchmarks_beside.py": "tests/engine/cli/test_benchmarks.py, and those of bench/",
    "engine/api/exchanges.py": "methods of streams: tests/engine/api/test_stream.py",
    "engine/api/flow.py": "every stream is one: tests/engine/api/test_stream.py",
    "engine/api/processed.py": "methods of streams: tests/engine/api/test_stream.py",
    "engine/connectors/columnar.py": (
        "reads Parquet and Arrow files for the file source: tests/engine/connectors/test_files.py"
    ),
    "engine/connectors/durable.py": (
        "what the file sink does to storage: tests/engine/connectors/test_file_sink.py"
    ),
    "engine/connectors/filesystem.py": (
        "found, listed and followed files: tests/engine/connectors/test_files.py"
    ),
    "engine/connectors/formats.py": (
        "chooses among formats, over which tests/engine/connectors/test_files.py is parametrised"
    ),
    "engine/connectors/manifests.py": (
        "the file sink's commits on object stores: tests/engine/connectors/test_file_sink.py"
    ),
    "engine/connectors/rolled_files.py": (
        "the files of the file sink's writers: tests/engine/connectors/test_file_sink.py"
    ),
    "engine/connectors/tables/types.py": (
        "what both kinds of tables take: tests/engine/connectors/tables/test_data_files.py"
    ),
    "engine/testing/given_keys.py": (
        "the operators behind every harness: tests/engine/testing/test_harness.py"
    ),
    "engine/testing/job_world.py": (
        "the world behind both kinds of simulation: tests/engine/testing/test_simulated.py"
    ),
    "engine/testing/simulated_program.py": (
        "the job in that world: tests/engine/testing/test_simulated.py"
    ),
    "engine/testing/simulated_settings.py": (
        "draws, which every seed uses: tests/engine/testing/test_simulate.py"
    ),
    "engine/ui/facts.py": "what a job's page tells of its plan: tests/engine/ui/test_page.py",
    "engine/connectors/look.py": "the sink of every look: tests/engine/api/test_looked.py",
    "engine/session/look.py": "the job of every look: tests/engine/api/test_looked.py",
    "engine/connectors/kafka/backlog.py": (
        "what waits of each partition: tests/engine/connectors/kafka/test_source.py"
    ),
    "engine/connectors/kafka/fetcher.py": (
        "fetches, moved leaders, lost brokers: tests/engine/connectors/kafka/test_source.py"
    ),
    "engine/connectors/kafka/group.py": (
        "offsets for a group: tests/engine/connectors/kafka/test_source.py"
    ),
    "engine/connectors/kafka/offsets.py": (
        "starts, ends and groups: tests/engine/connectors/kafka/test_source.py"
    ),
    "engine/connectors/kafka/planning.py": (
        "what is refused when a pipeline is built: tests/engine/connectors/kafka/test_source.py"
    ),
    "engine/connectors/kafka/produce.py": (
        "one request, sent to a socket: tests/engine/connectors/kafka/test_connection.py"
    ),
    "engine/connectors/kafka/sink_settings.py": (
        "options of a sink: tests/engine/connectors/kafka/test_sink.py, test_writer.py"
    ),
    "engine/connectors/textual.py": (
        "reads CSV, JSON lines and text for the file source: tests/engine/connectors/test_files.py"
    ),
    "engine/connectors/writers.py": (
        "writes the file sink's formats: tests/engine/connectors/test_file_sink.py"
    ),
    "engine/coordinator/coordinator_events.py": "values; the tests of the coordinator compare them",
    "engine/drivers/coordinator_driver.py": (
        "every job in threads runs it: tests/engine/session/test_session.py"
    ),
    "engine/local/child.py": "runs in another process: tests/engine/local/test_processes.py",
    "engine/local/template.py": "runs in another process: tests/engine/local/test_forks.py",
    "engine/drivers/isolated_process.py": (
        "started in every way by tests/engine/operators/test_isolated.py"
    ),
    "engine/drivers/parent.py": "who ends with whom: tests/engine/local/test_processes.py",
    "engine/drivers/pulse.py": "sent by a companion: tests/engine/drivers/test_companion.py",
    "engine/drivers/status.py": "values; tests of the command line show them",
    "engine/state/rocks/tables.py": "compared with the heap: tests/engine/operators/rocks_cases.py",
    "recovery/handles.py": "values; every test of metadata uses them",
    "recovery/shared_files.py": "reads what tests/recovery/test_catalog_databases.py damages",
    "engine/drivers/warm.py": "imported in another process: tests/spark/test_daemon.py",
    "engine/session/region_places.py": (
        "what logs are trimmed by: tests/engine/session/test_regions.py"
    ),
    "engine/session/region_plan.py": (
        "values; every job of regions has one: tests/engine/session/test_regions.py"
    ),
    "engine/session/region_starts.py": (
        "every start of a job of regions: tests/engine/session/test_regions.py"
    ),
    "engine/session/region_planning.py": (
        "every job of regions is planned by it: tests/engine/session/test_regions.py"
    ),
    "engine/session/coordinator_rules.py": "options as rules: tests/engine/session/test_session.py",
    "engine/coordinator/rules.py": "values; the tests of the coordinator use them",
    "engine/operators/aggregates.py": (
        "accumulators side by side: tests/engine/operators/test_window.py"
    ),
    "engine/contract/operators.py": "protocols and values only",
    "engine/operators/work.py": "values; tests/engine/operators/test_chain.py runs them",
    "engine/operators/join_output.py": "rows of a join: tests/engine/operators/test_join.py",
    "engine/operators/join_input.py": "tests/engine/operators/test_join.py",
    "engine/state/backend.py": "protocols; tests/engine/operators runs over three backends",
    "engine/state/heap/backend.py": "every test of an operator uses it",
    "engine/state/heap/records.py": "tests/engine/operators/test_join.py",
    "engine/state/heap/rows.py": "tests/engine/operators/test_window.py",
    "engine/state/rocks/backend.py": "tests/engine/state/rocks/test_keyed.py",
    "engine/state/rocks/records.py": "tests/engine/operators/test_rocks_join.py",
    "engine/state/rocks/table.py": "tests/engine/operators/test_rocks_windows.py",
    "engine/state/runs.py": "tests/engine/operators/test_join.py",
    "engine/operators/session_records.py": "tests/engine/operators/test_session_join.py",
    "engine/operators/session.py": "windows, too: tests/engine/operators/test_window.py",
    "engine/operators/window_output.py": "schema of windows: tests/engine/operators/test_window.py",
    "engine/operators/window_store.py": "what windows keep: tests/engine/operators/test_window.py",
    "engine/contract/execution.py": "values; made by the builder, in whose tests they are compared",
    "engine/operators/backends.py": (
        "both backends: tests/engine/state/rocks/test_keyed.py,"
        " tests/engine/operators/test_rocks_aggregate.py"
    ),
    "engine/worker/subtask_events.py": "values; the tests of subtask and cuts compare them",
    "engine/drivers/worker_driver.py": (
        "every job in threads runs it: tests/engine/session/test_session.py"
    ),
    "engine/testing/elsewhere.py": "what the kit ships: tests/engine/testing/test_sinks.py",
    "engine/testing/played.py": "a coordinator by hand: tests/engine/testing/test_sinks.py",
    "engine/testing/states.py": "states dealt out: tests/engine/testing/test_sources.py",
    "engine/testing/verdict.py": "sentences: tests/engine/testing/test_sinks.py",
    "engine/worker/worker_events.py": "values; the tests of the worker compare them",
    "engine/simulation/campaign/checkpoint_files.py": (
        "every simulated run is its test: test_campaign.py"
    ),
    "engine/simulation/campaign/coordinator_process.py": (
        "every simulated run is its test: test_campaign.py"
    ),
    "engine/simulation/coverage.py": "counters; tests/simulation/test_faults.py",
    "engine/simulation/campaign/disturbances.py": (
        "every simulated run is its test: test_campaign.py"
    ),
    "engine/simulation/campaign/environment.py": "what runs share; every simulated run is its test",
    "engine/simulation/campaign/scenario.py": "every simulated run is its test: test_campaign.py",
    "engine/simulation/campaign/worker_process.py": (
        "every simulated run is its test: test_campaign.py"
    ),
    "engine/simulation/campaign/worker_tasks.py": (
        "every simulated run is its test: test_campaign.py"
    ),
    "engine/simulation/campaign/zombies.py": "every simulated run is its test: test_campaign.py",
    "engine/contract/outcomes.py": "values; the tests of the handle compare them",
    "engine/session/dataframes.py": "needs Spark: tests/spark/test_dataframes.py",
    "engine/inspection/data_source.py": "needs Spark: tests/spark/test_data_source.py",
    "engine/spark/warmth.py": (
        "needs a cluster with an idle executor: tests/spark/test_standalone.py"
    ),
    "recovery/metadata.py": "values; tests/recovery/test_codec.py writes, reads and refuses them",
    "recovery/store.py": "a protocol and its errors",
}

#: Where tests of a folder are when not under the same path: those that run the whole engine have a
#: folder of their own.
TEST_FOLDERS = {
    "engine/simulation": "simulation",
    "engine/simulation/jobs": "simulation",
    "engine/simulation/campaign": "simulation",
    "engine/simulation/exploration": "simulation",
    "engine/connectors/spark": "spark",
    "engine/spark": "spark",
}

#: Folders that are not the repository's own content.
FOREIGN = {
    *(".git", ".venv", ".services", ".benchmarks", ".hypothesis"),
    *("build", "dist", "target", "__pycache__"),
}

#: Checkpoints of each version of the format; files of databases have names without an ending.
KEPT_CHECKPOINTS = ROOT / "tests" / "formats"

#: A line that is a row of a table, or nothing but a link, an image or an address.
UNWRAPPABLE = re.compile(r"\||\s*(?:[-*] )?(?:!?\[[^\]]*\]\(\S+\)|<?https?://\S+)[.,;]?$")

# Written in pieces, so that this file does not find itself.
LEFTOVERS = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.*/])/(?:home|root|Users|work|mnt)" + r"/[\w.]")


def python_files(*folders: str) -> Iterator[Path]:
    """Python files below folders of the root, in a stable order."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if FOREIGN.isdisjoint(path.parts):
                yield path


def everything() -> list[Path]:
    return list(python_files(*PACKAGES, "headrace/__init__.py", "tests", "examples", "docs"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports_of(path: Path) -> Iterator[tuple[int, int, str]]:
    """Yield (line, level, module) of every import, those inside functions too; level 0:
    absolute.
    """
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, alias.name
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.level, node.module or ""


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's body, without its docstring."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def complain(complaints: list[str], advice: str) -> None:
    assert not complaints, "\n".join(["", *complaints, f"=> {advice}"])


def test_files_stay_short_enough_to_read() -> None:
    complaints = [
        f"{name_of(path)}: {lines} lines, at most {FILE_LINES_MAX}"
        for path in everything()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES_MAX
    ]
    complain(
        complaints,
        "a file holds one idea: move a second one into a file of its own, and cut no idea in two",
    )


def test_functions_fit_a_screen() -> None:
    complaints = [
        f"{name_of(path)}:{node.lineno}: {node.name} has {lines} lines, at most"
        f" {FUNCTION_LINES_MAX}"
        for path in everything()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := body_lines(node)) > FUNCTION_LINES_MAX
    ]
    complain(complaints, "keep the branches in the parent, move the computation into helpers")


def test_documents_wrap() -> None:
    complaints = [
        f"{name_of(path)}:{number}: {len(line)} columns, at most {COLUMNS_MAX}"
        for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if len(line) > COLUMNS_MAX and not UNWRAPPABLE.match(line)
    ]
    complain(complaints, "wrap the paragraph; shorten a line of code")


def test_pure_packages_reach_neither_clock_nor_network_nor_threads() -> None:
    complaints = [
        f"{name_of(path)}:{line}: imports {module}"
        for path in python_files(*PURE)
        for line, level, module in imports_of(path)
        if level == 0 and module.partition(".")[0] in IMPURE_MODULES
    ]
    complain(complaints, "let the driver in engine/ do it: return an effect, take an event")


def test_imports_are_relative_within_a_package_and_absolute_across() -> None:
    complaints = []
    for path in python_files(*PACKAGES):
        folder = path.relative_to(ROOT).parent.parts
        for line, level, module in imports_of(path):
            where = f"{name_of(path)}:{line}"
            if level == 0 and module.partition(".")[0] in PACKAGES:
                complaints.append(f"{where}: imports {module}: write headrace.{module}")
            if level == 0 and module.split(".")[:2] == ["headrace", folder[0]]:
                complaints.append(f"{where}: imports {module}: its own package, write it relative")
            if level > len(folder):
                complaints.append(f"{where}: leaves its package by dots: write headrace.{module}")
    complain(complaints, "two names for one file are two classes of the same name at run time")


def test_tests_and_examples_import_the_installed_name() -> None:
    complaints = [
        f"{name_of(path)}:{line}: imports {module}"
        for path in python_files("tests", "examples")
        for line, level, module in imports_of(path)
        if level == 0 and module.partition(".")[0] in PACKAGES
    ]
    complain(complaints, "write headrace.PACKAGE: the bare name depends on the working directory")


def test_package_files_hold_a_docstring_at_most() -> None:
    complaints = [
        name_of(path)
        for path in python_files(*PACKAGES)
        if path.name == "__init__.py"
        and any(not isinstance(node, ast.Expr) for node in tree_of(path).body)
    ]
    complain(complaints, "import from the module itself; only headrace/__init__.py re-exports")


def test_every_module_says_what_it_is() -> None:
    complaints = [
        name_of(path)
        for path in python_files(*PACKAGES, "examples")
        if path.name != "__init__.py" and ast.get_docstring(tree_of(path)) is None
    ]
    complain(complaints, "begin with a docstring: what, why this way, what it does not do")


def test_every_module_has_a_test_file_on_the_same_path() -> None:
    complaints = []
    for path in python_files(*PACKAGES[1:]):
        module = PurePosixPath(name_of(path))
        folder = TEST_FOLDERS.get(str(module.parent), str(module.parent))
        mirror = ROOT / "tests" / folder / f"test_{module.stem}.py"
        if (
            module.name in {"__init__.py", "__main__.py"}
            or str(module) in UNMIRRORED
            or mirror.exists()
        ):
            continue
        complaints.append(f"{module}: no {name_of(mirror)}")
    complain(complaints, "write it, or give the reason in UNMIRRORED")


@pytest.mark.parametrize("module", sorted(UNMIRRORED))
def test_exceptions_are_not_older_than_what_they_excuse(module: str) -> None:
    assert (ROOT / module).exists(), f"{module} is gone: remove it from UNMIRRORED"
    folder = TEST_FOLDERS.get(str(Path(module).parent), str(Path(module).parent))
    mirror = ROOT / "tests" / folder / f"test_{Path(module).stem}.py"
    assert not mirror.exists(), f"{name_of(mirror)} exists: remove {module} from UNMIRRORED"


def test_packaging_lists_every_package_there_is() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = settings["tool"]["setuptools"]["packages"]
    found = {"headrace"} | {
        ".".join(("headrace", *path.relative_to(ROOT).parent.parts))
        for path in python_files(*PACKAGES)
    }
    assert listed == sorted(listed), "keep tool.setuptools.packages sorted"
    assert set(listed) == found, "a package that is not in tool.setuptools.packages is not shipped"
    mapped = settings["tool"]["setuptools"]["package-dir"]
    expected = {"headrace": "headrace"} | {f"headrace.{name}": name for name in PACKAGES}
    assert mapped == expected, "map each top-level folder in tool.setuptools.package-dir"


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_is_linked_for_tools_without_import_hooks(package: str) -> None:
    link = ROOT / "headrace" / package
    assert link.is_symlink(), f"cd headrace && ln -s ../{package} {package}"
    assert link.readlink() == Path("..", package), f"link headrace/{package} to ../{package}"


def text_files() -> Iterator[Path]:
    for folder in (*PACKAGES, "tests", "examples", "docs", ".ci"):
        for path in sorted((ROOT / folder).rglob("*")):
            is_text = path.suffix in {".py", ".md", ".toml", ".txt", ".yml", ""}
            is_kept = KEPT_CHECKPOINTS in path.parents and not path.suffix
            if is_text and not is_kept and path.is_file():
                yield path
    for name in ("README.md", "Makefile", "pyproject.toml", "headrace/__init__.py"):
        yield ROOT / name


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name_of(path)}:{number}: {line.strip()}"
        for path in text_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_leftover_markers() -> None:
    complain(
        lines_with(LEFTOVERS), "do it now, or open an issue and say in the text what is missing"
    )


def test_no_paths_of_one_machine() -> None:
    complain(lines_with(MACHINE_PATHS), "use a relative path, tmp_path, or a setting")
