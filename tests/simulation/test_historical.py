"""Each bug that another system had is found when it is planted here, and listed in docs/historical-bugs.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from .historical import HISTORICAL

#: Seeds tried for each; those in the table of the document were enough when it was written.
SEEDS_MAX = 500
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "historical-bugs.md"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(HISTORICAL))
def test_the_bug_is_found_in_which(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = HISTORICAL[name]
    bug.plant(monkeypatch)
    assert any(bug.search(seed) for seed in range(SEEDS_MAX)), f"{bug.bug} is not found"


def test_the_document_lists_exactly_these() -> None:
    rows = [line.split("|") for line in DOCUMENT.read_text(encoding="utf-8").splitlines()]
    listed = {row[2].strip().strip("`"): row[1].strip() for row in rows if len(row) == 6}
    listed = {name: bug for name, bug in listed.items() if "_" in name}
    assert listed == {name: bug.bug for name, bug in HISTORICAL.items()}
