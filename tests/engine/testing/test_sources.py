"""The conformance kit passes sources that keep their promises, and refuses those that do not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.connectors import (
    OperatorContext,
    Polled,
    RestoredState,
    SourceStatus,
    StateKind,
    StateSnapshot,
)
from headrace.engine.connectors.files import FileSource
from headrace.engine.connectors.memory import BatchesSource
from headrace.engine.connectors.sequence import SequenceSource
from headrace.testing import NotConforming, check_source

SCHEMA = pa.schema([("x", pa.int64())])

# --- sources of ours ------------------------------------------------------------------------------


def test_the_sequence_conforms() -> None:
    assert "rescales in a row" in check_source(lambda: SequenceSource(rows=40, key_count=5))


def test_batches_conform() -> None:
    batches = pa.table({"x": list(range(30))}).to_batches(max_chunksize=7)
    check_source(lambda: BatchesSource(batches), [{"x": n} for n in range(30)])


def test_the_file_source_conforms(tmp_path: Path) -> None:
    for file in range(3):
        rows = "".join(f"{json.dumps({'n': 10 * file + n})}\n" for n in range(10))
        (tmp_path / f"{file}.json").write_text(rows)
    rows_in_all = [{"n": n} for n in range(30)]
    check_source(lambda: FileSource(str(tmp_path), "json", None), rows_in_all)


# --- a source of numbers, right and wrong ---------------------------------------------------------


@dataclass(frozen=True)
class Numbers:
    """Numbers below `rows`; subtask i of p has those of the splits i, i + p...

    `flaw`: what is wrong with the source; empty: nothing.
    """

    flaw: str = ""
    rows: int = 24
    splits: int = 4
    schema: pa.Schema = SCHEMA

    def reader(self) -> NumbersReader:
        return NumbersReader(self)


class NumbersReader:
    """Its state: the next number of each of its splits."""

    def __init__(self, source: Numbers) -> None:
        self._source = source
        self._next: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._index, self._parallelism = 0, 1
        self.heard = 0

    def open(self, context: OperatorContext) -> None:
        self._index, self._parallelism = context.index, context.parallelism
        mine = range(context.index, self._source.splits, context.parallelism)
        self._next = {split: split for split in mine}
        self._committed = dict(self._next)

    def restore(self, states: Sequence[RestoredState]) -> None:
        for state in states:
            for row in state.table.to_pylist():
                if row["split"] in self._next or self._source.flaw == "keeps splits of others":
                    self._next[row["split"]] = row["next"]
        if self._source.flaw == "begins anew":
            self.open(OperatorContext("", "", self._index, self._parallelism, 8, 1))
        self._committed = dict(self._next)

    def poll(self, rows_max: int) -> Polled:
        for split, at in self._next.items():
            if at < self._source.rows:
                step = self._source.splits
                numbers = list(range(at, self._source.rows, step))[:rows_max]
                self._next[split] = numbers[-1] + step
                type_ = pa.int32() if self._source.flaw == "other types" else pa.int64()
                batch = pa.record_batch({"x": pa.array(numbers, type_)})
                return Polled([batch], SourceStatus.MORE)
        endless = self._source.flaw == "no end"
        return Polled((), SourceStatus.IDLE if endless else SourceStatus.END)

    def commit(self) -> None:
        self._committed = dict(self._next)

    def snapshot(self) -> Sequence[StateSnapshot]:
        live = self._source.flaw == "snapshots what is not committed"
        seen = self._next if live else self._committed
        if self._source.flaw != "a lazy snapshot":
            seen = dict(seen)

        def table() -> pa.Table:
            now = self._committed if self._source.flaw == "a lazy snapshot" else seen
            return pa.table({"split": list(now), "next": list(now.values())})

        kind = StateKind.LIST if self._source.flaw == "a list" else StateKind.UNION
        return [StateSnapshot("next", kind, table)]

    def completed(self, checkpoint: int, states: Sequence[StateSnapshot]) -> None:
        if self._source.flaw == "does not listen":
            raise ConnectionError("the group is gone")
        self.heard += len(states)

    def close(self) -> None:
        pass


def test_numbers_conform() -> None:
    cases = check_source(Numbers)
    assert cases[0] == "every row comes once"
    assert "another process goes on" in cases


@pytest.mark.parametrize(
    ("flaw", "sentence"),
    [
        ("begins anew", "a crash between two polls: after a restart from the state behind 1 polls"),
        (
            "snapshots what is not committed",
            "a snapshot amid a poll is the state before: after a restart from a snapshot before",
        ),
        ("a lazy snapshot", "the table of a snapshot looks at live state"),
        ("a list", "rescales in a row: after rescales from 2 to 3, 1 and 2 readers"),
        ("keeps splits of others", "a crash between two polls"),
        ("other types", "every row comes once: poll gave records of (x: int32)"),
        ("does not listen", "completed raised ConnectionError: the group is gone"),
    ],
)
def test_a_flaw_is_told_with_the_step_and_the_promise(flaw: str, sentence: str) -> None:
    with pytest.raises(NotConforming) as caught:
        check_source(lambda: Numbers(flaw))
    assert sentence in str(caught.value)


def test_rows_that_are_missing_are_told() -> None:
    rows = [{"x": n} for n in range(25)]
    with pytest.raises(NotConforming, match=r"1 rows are missing \(x=24\)"):
        check_source(lambda: replace(Numbers(), rows=24), rows)


def test_a_source_without_an_end_is_read_until_it_has_given_its_rows() -> None:
    rows = [{"x": n} for n in range(24)]
    assert len(check_source(lambda: Numbers("no end"), rows)) == 7
    with pytest.raises(NotConforming, match=r"1 rows are missing \(x=24\)"):
        check_source(lambda: Numbers("no end"), [*rows, {"x": 24}], idle_s=0.05)
