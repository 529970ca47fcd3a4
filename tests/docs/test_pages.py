"""Every code block of the documentation runs, and prints what the page says."""

from __future__ import annotations

import ast
import json
import time
from pathlib import Path

import pytest

from tests.docs.pages import Block, blocks_of, run_page
from tests.services.kafka import Kafka

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.relative_to(ROOT).as_posix(): path for path in sorted((ROOT / "docs").rglob("*.md"))}

#: Pages that other tests run, or that need a service.
ELSEWHERE = {
    "docs/connectors.md": "tests/test_docs.py runs it",
    "docs/files-and-tables.md": "names buckets and catalogs: tests/engine/connectors/tables",
    "docs/frontiers.md": "tests/test_docs.py runs it as a doctest",
    "docs/kafka.md": "fragments, which need a broker: tests/engine/connectors/kafka",
    "docs/kafka-to-kafka.md": "needs a broker: see below",
    "docs/postgres.md": "needs a server: tests/engine/connectors/postgres",
    "docs/spark.md": "needs Spark: tests/spark",
}


def text_of(name: str) -> str:
    return PAGES[name].read_text(encoding="utf-8")


def languages(name: str) -> set[str]:
    return {block.language for block in blocks_of(text_of(name)) if block.runs}


WITH_PYTHON = [n for n in PAGES if n not in ELSEWHERE and languages(n) == {"python"}]
WITH_SHELL = [n for n in PAGES if n not in ELSEWHERE and "sh" in languages(n)]


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_a_page_runs_and_prints_what_it_says(name: str, tmp_path: Path) -> None:
    follow(name, tmp_path)


@pytest.mark.usefixtures("only_long")
@pytest.mark.parametrize("name", WITH_SHELL)
def test_a_page_with_commands_can_be_followed(name: str, tmp_path: Path) -> None:
    follow(name, tmp_path)


def follow(name: str, folder: Path, **environment: str) -> None:
    page = folder / "page"
    page.mkdir()
    for stated, printed in run_page(text_of(name), page, environment):
        assert printed == stated


@pytest.mark.parametrize("name", PAGES)
def test_python_on_a_page_is_python(name: str) -> None:
    for block in blocks_of(text_of(name)):
        if block.language == "python" and ">>> " not in block.code:
            ast.parse(block.code)


@pytest.mark.services
@pytest.mark.slow
def test_the_page_from_kafka_to_kafka_runs(kafka: Kafka, tmp_path: Path) -> None:
    from confluent_kafka import Producer

    source = kafka.create_topic(f"orders-{time.time_ns()}")
    target = kafka.create_topic(f"scores-{time.time_ns()}")
    producer = Producer({"bootstrap.servers": kafka.address})
    for name, amount in (("ann", 50), ("bob", 150)):
        producer.produce(source, json.dumps({"customer": name, "amount": amount}))
    assert producer.flush(30.0) == 0
    text = text_of("docs/kafka-to-kafka.md")
    for old, new in (
        ('"orders", servers=SERVERS', f'"{source}", servers=SERVERS, stop="latest"'),
        ('"scores", servers=SERVERS', f'"{target}", servers=SERVERS'),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    page = tmp_path / "page"
    page.mkdir()
    run_page(text + RUN, page, {"KAFKA": kafka.address})
    found = sorted(json.loads(value)["score"] for value in kafka.consume(target))
    assert found == [0.5, 1.5]


#: What the page asks its reader to type, for one who waits for the end.
RUN = "\n```sh\nheadrace run scores.py --runner threads\n```\n"


def test_blocks_are_told_apart_by_language_and_title() -> None:
    text = (
        '```python title="a.py"\nx = 1\n```\n<!-- python\ny = 2\n-->\n```text\nno\n```\n'
        '```sh\nls\n```\n```text title="Output"\na.py\n```\n'
    )
    assert blocks_of(text) == [
        Block("python", "a.py", "x = 1\n"),
        Block("python", "", "y = 2\n"),
        Block("text", "", "no\n"),
        Block("sh", "", "ls\n"),
        Block("text", "Output", "a.py\n"),
    ]


def test_blocks_share_names_and_outputs_are_kept_apart(tmp_path: Path) -> None:
    python = '```python\n{}\n```\n```text title="Output"\n{}\n```\n'
    text = (
        '```python title="saved.py"\nz = 3\n```\n'
        + python.format("from saved import z\nprint(z)", "3")
        + python.format("print(z + 1)", "5")
        + "```sh\ntrue & wait $!\nls\n```\n```sh\necho $!\n```\n"
    )
    page = tmp_path / "page"
    page.mkdir()
    assert run_page(text, page, {}) == [("3\n", "3\n"), ("5\n", "4\n")]
    with pytest.raises(AssertionError, match="no-such-command"):
        run_page("```sh\nno-such-command\n```\n", page, {})
