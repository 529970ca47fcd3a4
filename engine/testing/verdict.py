"""What a check finds: sentences about the step at which a promise was broken."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import pyarrow as pa

#: A row as it is compared: names and values, in the order of names.
Row = tuple[tuple[str, str], ...]
#: How the caller hands rows over.
Rows: TypeAlias = pa.Table | Iterable[Mapping[str, object]]

_PAUSE_S = 0.02
_SHOWN = 3


class NotConforming(AssertionError):
    """A source or sink broke promises. `findings`: a sentence for each."""

    def __init__(self, findings: list[str]) -> None:
        super().__init__("\n".join(findings))
        self.findings = findings


class Broken(Exception):
    """A promise is broken; the rest of the case means nothing."""


class Findings:
    """The sentences of one check, case by case."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        #: Names of the cases that were tried.
        self.cases: list[str] = []

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Try a case, to its end or to the first broken promise."""
        self.cases.append(name)
        try:
            yield
        except Broken as broken:
            self.sentences.append(f"{name}: {broken}")

    def conclude(self) -> list[str]:
        """Return the cases tried. Raises: NotConforming."""
        if self.sentences:
            raise NotConforming(self.sentences)
        return self.cases


@contextmanager
def step(name: str) -> Iterator[None]:
    """Take a step that must not raise."""
    try:
        yield
    except Broken:
        raise
    except Exception as error:
        raise Broken(f"{name} raised {type(error).__name__}: {error}") from error


def rows_of(rows: Rows) -> list[Row]:
    """Return rows as they are compared."""
    found = rows.to_pylist() if isinstance(rows, pa.Table) else rows
    return [tuple(sorted((str(k), repr(_plain(v))) for k, v in row.items())) for row in found]


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


def expect(
    found: Callable[[], list[Row]],
    wanted: Iterable[Row],
    after: str,
    *,
    repeats: bool = False,
    settle_s: float = 0.0,
) -> None:
    """Compare rows without their order, and once more until `settle_s` have passed.

    Args:
        repeats: rows may come several times. Raises: Broken.
    """
    expected = Counter(wanted)
    until_s = time.monotonic() + settle_s
    while True:
        with step("reading back"):
            counted = Counter(found())
        missing, extra = expected - counted, counted - expected
        if repeats:
            extra = Counter({row: n for row, n in extra.items() if row not in expected})
        if not missing and not extra:
            return
        if time.monotonic() >= until_s:
            raise Broken(f"after {after}, {_difference(missing, extra, expected)}")
        time.sleep(_PAUSE_S)


def _difference(missing: Counter[Row], extra: Counter[Row], expected: Counter[Row]) -> str:
    doubled = Counter({row: n for row, n in extra.items() if row in expected})
    strange = extra - doubled
    kinds = [(missing, "missing"), (doubled, "there too often"), (strange, "there too early")]
    return "; ".join(
        f"{sum(rows.values())} rows are {what} ({_some(rows)})" for rows, what in kinds if rows
    )


def _some(rows: Counter[Row]) -> str:
    shown = [", ".join(f"{k}={v}" for k, v in row) for row in sorted(rows)[:_SHOWN]]
    more = ["..."] if len(rows) > _SHOWN else []
    return "; ".join([*shown, *more])
