"""The conformance kit passes split sources that keep their promises, and refuses others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from headrace.connectors import OperatorContext, Planned, SourceStatus, Split
from headrace.testing import NotConforming, check_split_source

SCHEMA = pa.schema([("x", pa.int64())])


@dataclass(frozen=True)
class Numbers:
    """Five splits of nine numbers. `flaw`: what is wrong with the source; empty: nothing."""

    flaw: str = ""
    schema: pa.Schema = SCHEMA

    @property
    def repeatable(self) -> bool:
        return self.flaw != "not repeatable"

    def planner(self) -> Planner:
        return Planner(self.flaw)

    def reader(self) -> Reader:
        return Reader(self.flaw)


class Planner:
    """Plans two splits at a time."""

    def __init__(self, flaw: str) -> None:
        self._flaw = flaw
        self._planned = 0

    def open(self, context: OperatorContext) -> None:
        assert context.parallelism == 1

    def plan(self, place: str) -> Planned:
        first = self._planned if self._flaw == "keeps its place to itself" else int(place or 0)
        end = min(first + 2, 5)
        self._planned = end
        payload: dict[str, str | int] = {"n": 0 if self._flaw == "one split" else 1}
        splits = [Split(f"split {n}", {"n": n * payload["n"]}) for n in range(first, end)]
        if self._flaw == "the same name":
            splits = [Split("split", split.payload) for split in splits]
        place = place if self._flaw == "stays" else str(end)
        return Planned(splits, place, SourceStatus.END if end == 5 else SourceStatus.MORE)

    def close(self) -> None:
        pass


class Reader:
    """Reads the numbers of a split, four in a batch."""

    def __init__(self, flaw: str) -> None:
        self._flaw = flaw

    def open(self, context: OperatorContext) -> None:
        pass

    def read(self, split: Split, skip: int) -> Iterator[pa.RecordBatch]:
        first = 9 * int(split.payload["n"])
        numbers = list(range(first, first + 9))
        if self._flaw in ("other rows", "not repeatable"):
            random.shuffle(numbers)
        numbers = numbers if self._flaw == "skips nothing" else numbers[skip:]
        type_ = pa.int32() if self._flaw == "other types" else pa.int64()
        for at in range(0, len(numbers), 4):
            yield pa.record_batch({"x": pa.array(numbers[at : at + 4], type_)})

    def close(self) -> None:
        pass


ROWS = [{"x": n} for n in range(45)]


@pytest.mark.parametrize("flaw", ["", "not repeatable"])
def test_numbers_conform(flaw: str) -> None:
    cases = check_split_source(lambda: Numbers(flaw), ROWS)
    assert cases[-1] == "every row comes once"
    assert len(cases) == 5


@pytest.mark.parametrize(
    ("flaw", "sentence"),
    [
        ("stays", "plan at '' gave splits and stays there: they come again"),
        ("the same name", "1 splits are planned twice (split)"),
        ("keeps its place to itself", "a planner goes on at every place: a fresh planner plans"),
        ("skips nothing", "split 'split 0', read again behind 1 rows, gives other rows"),
        ("other rows", "a source that is not repeatable must say so"),
        ("other types", "names and types must be equal"),
        ("one split", "every row comes once: after all splits were read, 36 rows are missing"),
    ],
)
def test_a_flaw_is_told_with_the_step_and_the_promise(flaw: str, sentence: str) -> None:
    with pytest.raises(NotConforming) as caught:
        check_split_source(lambda: Numbers(flaw), ROWS)
    assert sentence in str(caught.value)
