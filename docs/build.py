"""Build the documentation site: stage the pages, build them, check every link.

    python docs/build.py            into target/site/html

Pages come from docs/, from the documents at the root (README.md is the home), from examples/ and,
for the reference, from docstrings. They are staged in target/site with links that fit the
site; navigation and look stand in docs/zensical.toml. zensical reads docstrings without importing
them, and ends the build at a warning. Then each link of each built page is followed, to its anchor
too, and nothing may be asked of another host.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "target" / "site"
SITE = SOURCE / "html"
CONFIG = "docs/zensical.toml"

#: {document of the root: its page}.
DOCUMENTS = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
#: Files of docs/ that a page may show.
SHOWN = (".md", ".svg", ".png")

#: {page of the reference: (title, beginnings of the modules whose public names it has)}; the first
#: that fits counts.
REFERENCE = {
    "read": ("Sources: `hr.read`", (".engine.api.read",)),
    "write": ("Sinks: `stream.write`", (".engine.api.write",)),
    "streams": ("Streams", (".engine.api.",)),
    "aggregations": ("Aggregations", (".engine.operators.aggregations",)),
    "windows": ("Windows", (".engine.operators.windows",)),
    "processors": ("Processors and state", (".engine.operators.", ".engine.state.")),
    "jobs": ("Jobs", (".engine.session.", ".engine.contract.o", ".engine.contract.region")),
    "errors": ("Errors", (".engine.contract.errors",)),
    "connectors": ("Connectors: `headrace.connectors`", (".connectors",)),
    "testing": ("Tests: `headrace.testing`", (".testing",)),
    "more": ("More", ("",)),
}
#: {page: the module that has its names}.
_MODULES = {"connectors": "headrace.connectors", "testing": "headrace.testing"}
#: {page: what stands before its names}.
_HEADS = {
    "jobs": "What each option means, and its default: [options](../cli.md#options).",
    "streams": "A stream comes from a [source](read.md), and is written by [`write`](write.md).",
}
#: {page: objects that no public name leads to}.
_BEYOND = {
    "read": ["headrace.engine.api.read"],
    "write": ["headrace.engine.api.write.Write", "headrace.engine.api.write.FileSinkOptions"],
}

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCED = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)


def staged() -> dict[str, str | Path]:
    """{path in the site's source: text, or the file to copy}."""
    pages: dict[str, str | Path] = {}
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.suffix in SHOWN:
            name = path.relative_to(ROOT).as_posix()
            pages[page_of(name)] = fitted(name) if path.suffix == ".md" else path
    pages |= {page: fitted(name) for name, page in DOCUMENTS.items()}
    pages |= examples()
    return pages | reference()


def page_of(name: str) -> str:
    """Where a file of the repository is in the site; "" if it is not."""
    path = ROOT / name
    if name in DOCUMENTS:
        return DOCUMENTS[name]
    if name.startswith("docs/") and path.suffix in SHOWN:
        return name.removeprefix("docs/")
    if name.startswith("examples/") and path.suffix == ".py":
        return name.replace(".py", ".md")
    return "examples/index.md" if name in ("examples", "examples/") else ""


def fitted(name: str) -> str:
    """A document with links that fit the site; a link to a file that is no page becomes text."""
    folder, page = posixpath.dirname(name), page_of(name)

    def link(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        place, hash_, anchor = target.partition("#")
        if "://" in target or not place:
            return match[0]
        found = page_of(posixpath.normpath(posixpath.join(folder, place)))
        if not found:
            return text
        way = posixpath.relpath(found, posixpath.dirname(page) or ".")
        return f"{mark}[{text}]({way}{hash_}{anchor})"

    parts = _FENCED.split((ROOT / name).read_text(encoding="utf-8"))
    return "".join(part if at % 2 else _LINK.sub(link, part) for at, part in enumerate(parts))


def examples() -> dict[str, str]:
    """A page for each program, and one that lists them."""
    pages, rows = {}, []
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        summary = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
        rows.append(f"- [{path.name}]({path.stem}.md): {summary}")
        pages[f"examples/{path.stem}.md"] = f"# {path.name}\n\n```python\n{text}```\n"
    head = "# Examples\n\nEach is a whole program; its first lines say how to run it.\n\n"
    return pages | {"examples/index.md": head + "\n".join(rows) + "\n"}


def public_names(module: str) -> dict[str, str]:
    """{public name: the module that defines it} of `headrace/MODULE.py`, which is not imported:
    a public name is imported under its own name, for type checkers at least.
    """
    tree = ast.parse((ROOT / "headrace" / f"{module}.py").read_text(encoding="utf-8"))
    return {
        alias.name: f".{node.module or alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }


def reference() -> dict[str, str]:
    """Pages that zensical fills from docstrings: every public name stands on one of them."""
    names: dict[str, list[str]] = {page: list(_BEYOND.get(page, [])) for page in REFERENCE}
    for name, home in public_names("__init__").items():
        page = next(p for p, (_, starts) in REFERENCE.items() if home.startswith(starts))
        # Modules, whose own names have a page.
        if name not in REFERENCE:
            names[page].append(f"headrace.{name}")
    for page, module in _MODULES.items():
        names[page] += [f"{module}.{name}" for name in public_names(page)]
    return {
        f"reference/{page}.md": _reference_page(title, _HEADS.get(page, ""), names[page])
        for page, (title, _) in REFERENCE.items()
        if names[page]
    }


def _reference_page(title: str, head: str, names: list[str]) -> str:
    parts = [f"# {title}", head, *(f"::: {name}" for name in sorted(names))]
    return "\n\n".join(filter(None, parts)) + "\n"


def stage() -> None:
    """Write the site's source, and the configuration with the pages that there are."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    pages = staged()
    for place, content in pages.items():
        path = SOURCE / "docs" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, path)
        else:
            path.write_text(content, encoding="utf-8")
    (SOURCE / "zensical.toml").write_text(configuration(set(pages)), encoding="utf-8")


def configuration(pages: set[str]) -> str:
    """The configuration without lines of the navigation whose page there is not."""
    lines = (ROOT / CONFIG).read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if (page := _entry(line)) is None or page in pages]
    return "\n".join(kept).replace("@ROOT@", str(ROOT)) + "\n"


def _entry(line: str) -> str | None:
    found = re.search(r'"([\w./-]+\.md)"', line)
    return found[1] if found else None


class Page(HTMLParser):
    """What a built page has and asks for.

    Attributes:
        ids: anchors.
        links: what a reader may follow.
        parts: what a browser loads by itself.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.parts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element names."""
        values = {name: value or "" for name, value in attrs}
        self.ids.update(values[name] for name in ("id", "name") if values.get(name))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") not in ("canonical", "prev", "next"):
            self.parts.append(values.get("href", ""))
        elif "src" in values:
            self.parts.append(values["src"])


def problems(site: Path) -> Iterator[str]:
    """Name every link that leads nowhere, and every part that another host would send."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        if name == "404.html":
            # Its links begin at the host's root, wherever that is.
            continue
        for part in page.parts:
            if urlsplit(part).netloc:
                yield f"{name} loads {part} from another host"
        for link in page.links + page.parts:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = Path(os.path.normpath(path.parent / unquote(url.path))) if url.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                yield f"{name} links to {link}, which is not there"
            elif url.fragment and target in pages and _lacks(pages[target], url.fragment):
                yield f"{name} links to {link}; {target.name} has no such anchor"


def _lacks(page: Page, fragment: str) -> bool:
    return unquote(fragment) not in page.ids


def main() -> int:
    """Stage, build, check. Returns: 0, or 1 with every problem named."""
    stage()
    tool = Path(sys.executable).with_name("zensical")
    done = subprocess.run(
        [tool, "build", "--strict", "--clean"],
        cwd=SOURCE,
        env=os.environ | {"NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    warnings = [line for line in done.stdout.splitlines() if "arning" in line]
    if done.returncode or warnings:
        # Behind its warnings the tool prints its own frames.
        print(done.stdout.partition("Traceback")[0], file=sys.stderr)
        return 1
    found = list(problems(SITE))
    for problem in found:
        print(problem, file=sys.stderr)
    pages = len(list(SITE.rglob("*.html")))
    print(f"{pages} pages in {SITE.relative_to(ROOT)}; {len(found)} links lead nowhere")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
