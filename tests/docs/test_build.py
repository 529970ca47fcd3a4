"""The site has every page and every public name, and no link that leads nowhere."""

from __future__ import annotations

import re
import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

import headrace as hr
from headrace import connectors, testing

ROOT = Path(__file__).resolve().parents[2]


def loaded() -> ModuleType:
    spec = spec_from_file_location("build_docs", ROOT / "docs" / "build.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = loaded()


def test_every_page_stands_once_in_the_navigation() -> None:
    named = re.findall(r'"([\w./-]+\.md)"', (ROOT / build.CONFIG).read_text(encoding="utf-8"))
    pages = {page for page in build.staged() if page.endswith(".md")}
    # The page of examples lists the others.
    listed = {page for page in pages if page.startswith("examples/")} - {"examples/index.md"}
    assert len(named) == len(set(named))
    assert sorted(pages - listed - set(named)) == [], "add the page to docs/zensical.toml"


def test_the_configuration_leaves_out_pages_that_are_not_there() -> None:
    text = build.configuration({"index.md"})
    assert '"index.md"' in text
    assert "tutorial.md" not in text
    assert "@" not in text


def test_the_reference_has_every_public_name() -> None:
    text = "\n".join(page for page in build.reference().values())
    found = set(re.findall(r"^::: headrace\.([\w.]+)$", text, re.MULTILINE))
    public = set(dir(hr)) - {"connectors", "read", "testing"}
    public |= {f"connectors.{name}" for name in dir(connectors)}
    public |= {f"testing.{n}" for n in dir(testing) if n[0] != "_" and n != "annotations"}
    assert public <= found
    assert {"engine.api.read", "engine.api.write.Write"} <= found


@pytest.mark.parametrize(
    ("name", "text", "fitted"),
    [
        ("README.md", "[a](docs/cli.md#options)", "[a](cli.md#options)"),
        ("README.md", "![a](docs/overtaking.svg)", "![a](overtaking.svg)"),
        ("docs/a.md", "[a](../examples/orders.py)", "[a](examples/orders.md)"),
        ("docs/a.md", "[a `b`](../engine/cli/run.py)", "a `b`"),
        ("docs/adr/a.md", "[a](../../ARCHITECTURE.md)", "[a](../architecture.md)"),
        ("docs/a.md", "[a](#b), [c](https://d.org/e)", "[a](#b), [c](https://d.org/e)"),
        ("docs/a.md", "```python\n[a](../x.py)\n```", "```python\n[a](../x.py)\n```"),
    ],
)
def test_links_fit_the_site(
    name: str, text: str, fitted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "ROOT", tmp_path)
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert build.fitted(name) == fitted


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top"></h1><a href="#top"></a><a href="b/c.html#d"></a><a href="https://x.org"></a>'
        '<a href="#up"></a><a href="b/c.html#e"></a><a href="none.html"></a><img src="none.png">'
        '<script src="https://x.org/y.js"></script><link rel="stylesheet" href="//x.org/z.css">'
    )
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.html").write_text('<p id="d"></p><a href="../a.html#top">')
    assert list(build.problems(tmp_path)) == [
        "a.html loads https://x.org/y.js from another host",
        "a.html loads //x.org/z.css from another host",
        "a.html links to #up; a.html has no such anchor",
        "a.html links to b/c.html#e; c.html has no such anchor",
        "a.html links to none.html, which is not there",
        "a.html links to none.png, which is not there",
    ]


@pytest.mark.usefixtures("only_long")
def test_the_site_is_built_without_a_warning() -> None:
    done = subprocess.run(
        ["make", "docs"], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 links lead nowhere" in done.stdout
