"""Each bug that another system had is found when it is planted here, and listed in
docs/historical-bugs.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from . import historical, historical_recovery
from .planted import assert_found

BUGS = historical.historical.bugs | historical_recovery.historical.bugs
#: Seeds of the long search.
SEEDS_MAX = 500
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "historical-bugs.md"


@pytest.mark.mutant
@pytest.mark.parametrize("name", sorted(BUGS))
def test_the_bug_is_found_in_which(name: str, monkeypatch: pytest.MonkeyPatch, long: bool) -> None:
    bug = BUGS[name]
    assert_found(bug.plant, bug.search, bug.seed, monkeypatch, seeds_max=SEEDS_MAX, long=long)


def test_the_document_lists_exactly_these() -> None:
    rows = [line.split("|") for line in DOCUMENT.read_text(encoding="utf-8").splitlines()]
    cells = [[cell.strip() for cell in row] for row in rows if len(row) == 6]
    listed = [(bug, name.strip("`"), seed) for _, bug, name, _, seed, _ in cells if "_" in name]
    assert listed == [(bug.bug, name, str(bug.seed)) for name, bug in BUGS.items()]


def test_no_bug_is_planted_twice() -> None:
    reports = [bug.bug for bug in BUGS.values()]
    assert len(reports) == len(set(reports)) >= 20
