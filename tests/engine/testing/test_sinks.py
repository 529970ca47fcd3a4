"""The conformance kit passes sinks that keep their promises, and refuses those that do not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.connectors import (
    CommitLost,
    Delivery,
    OperatorContext,
    RestoredState,
    StateSnapshot,
    Transaction,
    by_run,
)
from headrace.engine.connectors.file_sink import FileSink
from headrace.engine.connectors.memory import CollectSink
from headrace.testing import NotConforming, check_sink

# --- sinks of ours --------------------------------------------------------------------------------


def test_the_file_sink_conforms(tmp_path: Path) -> None:
    def read_back() -> pa.Table:
        return pa.concat_tables(
            [pq.read_table(file) for file in tmp_path.glob("*.parquet")]
            or [pa.table({"id": pa.array([], pa.int64()), "text": pa.array([], pa.string())})]
        )

    def temporary() -> list[Path]:
        return list(tmp_path.glob("_headrace/**/*.tmp"))

    def lose(transactions: Sequence[Transaction]) -> None:
        for file in temporary():
            file.unlink()

    cases = check_sink(lambda: FileSink(str(tmp_path)), read_back, lose=lose, left_open=temporary)
    assert len(cases) == 16


def test_the_collecting_sink_conforms() -> None:
    made: list[CollectSink] = []

    def make_sink() -> CollectSink:
        made.append(CollectSink())
        return made[-1]

    def read_back() -> list[dict[str, object]]:
        return [row for sink in made for row in sink.table().to_pylist()]

    check_sink(make_sink, read_back, other_process=False)


# --- a table with tokens, right and wrong ---------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A folder as a table that stores tokens with its rows.

    `flaw`: what is wrong with the sink; empty: nothing.
    """

    path: str
    flaw: str = ""
    delivery: Delivery = "exactly-once"

    def check(self, schema: pa.Schema) -> None:
        pass

    def writer(self) -> TableWriter:
        return TableWriter(self)

    def committer(self, job: str, operator: str) -> TableCommitter:
        return TableCommitter(self, f"{job}~{operator}")

    @property
    def table(self) -> Path:
        return Path(self.path, "table.json")

    def content(self) -> dict[str, Any]:
        if not self.table.exists():
            return {"rows": [], "tokens": {}}
        content: dict[str, Any] = json.loads(self.table.read_text())
        return content


class TableWriter:
    """Writes a file for each transaction."""

    def __init__(self, sink: Table) -> None:
        self._sink = sink
        self._rows: list[dict[str, object]] = []
        self._count = 0
        self._prefix = ""

    def open(self, context: OperatorContext) -> None:
        c = context
        self._prefix = f"{c.job}~{c.operator}~{c.owner}~{c.epoch}~{c.index}"

    def restore(self, states: Sequence[RestoredState]) -> None:
        pass

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.to_pylist()

    def precommit(self, checkpoint: int) -> Sequence[Transaction]:
        if not self._rows:
            return []
        self._count += 1
        name = f"{self._prefix}~{self._count}.rows"
        Path(self._sink.path, name).write_text(json.dumps(self._rows))
        self._rows = []
        return [Transaction(name, {"rows": self._count})]

    def commit(self) -> None:
        pass

    def snapshot(self) -> Sequence[StateSnapshot]:
        return ()

    def close(self) -> None:
        if self._sink.flaw == "rows are visible when the writer closes" and self._rows:
            content = self._sink.content()
            content["rows"] += self._rows
            self._sink.table.write_text(json.dumps(content))


class TableCommitter:
    """Applies files and tokens in one step."""

    def __init__(self, sink: Table, name: str) -> None:
        self._sink, self._name = sink, name

    def commit(self, checkpoint: int, transactions: Sequence[Transaction]) -> None:
        content = self._sink.content()
        for run, group in by_run(transactions).items():
            name = {
                "no run in the token": self._name,
                "token of a name": self._name + run,
                "token of a directory": run.split("-")[0] + self._name.split("~")[0],
            }.get(self._sink.flaw, run)
            token = content["tokens"].get(name, 0)
            if self._sink.flaw == "token ignored":
                token = 0
            for transaction in group:
                if transaction.checkpoint > token:
                    content["rows"] += self._rows(transaction)
            content["tokens"][name] = max(token, *(t.checkpoint for t in group))
            if self._sink.flaw == "token of the call":
                content["tokens"][name] = checkpoint
        self._sink.table.write_text(json.dumps(content))
        if self._sink.flaw == "files go at the first commit":
            for transaction in transactions:
                Path(self._sink.path, transaction.id).unlink(missing_ok=True)

    def _rows(self, transaction: Transaction) -> list[object]:
        file = Path(self._sink.path, transaction.id)
        if not file.exists():
            if self._sink.flaw == "losses are passed over":
                return []
            if self._sink.flaw == "losses are some error":
                raise OSError(f"{file.name} is away")
            raise CommitLost(f"{file.name} is gone")
        rows: list[object] = json.loads(file.read_text())
        return rows

    def recover(
        self, checkpoint: int, committed: Sequence[Transaction], *, epoch: int | None = None
    ) -> None:
        if self._sink.flaw != "recover commits nothing":
            self.commit(checkpoint, committed)
        if self._sink.flaw == "recover aborts nothing":
            return
        keep = {transaction.id for transaction in committed}
        for file in Path(self._sink.path).glob(f"{self._name}~*.rows"):
            began = int(file.name.split("~")[3])
            newer = epoch is not None and began > epoch
            if self._sink.flaw == "recover aborts newer epochs":
                newer = False
            if file.name not in keep and not newer:
                file.unlink()


def checked(path: Path, flaw: str = "", **options: Any) -> list[str]:
    sink = Table(str(path), flaw)

    def lose(transactions: Sequence[Transaction]) -> None:
        for transaction in transactions:
            (path / transaction.id).unlink()

    return check_sink(lambda: sink, lambda: sink.content()["rows"], **{"lose": lose, **options})


def test_a_table_with_tokens_conforms(tmp_path: Path) -> None:
    assert "another process recovers" in checked(tmp_path)


@pytest.mark.parametrize(
    ("flaw", "sentence"),
    [
        (
            "token ignored",
            (
                "the answer of a commit is lost: after the same commit twice, 7 rows are there too"
                " often"
            ),
        ),
        (
            "no run in the token",
            (
                "another run of the job begins in a new directory: after the first commit of the"
                " second run, 7 rows are missing"
            ),
        ),
        (
            "token of a name",
            (
                "a restore under other names: after recover of applied and of new transactions"
                " under other names, 14 rows are there too often"
            ),
        ),
        (
            "token of a directory",
            (
                "two sinks of one job write to one place: after the commits of two sinks, 7 rows"
                " are missing"
            ),
        ),
        (
            "recover commits nothing",
            (
                "a crash between checkpoint and commit: after recover, which was given the"
                " transactions, 7 rows are missing"
            ),
        ),
        (
            "recover aborts newer epochs",
            (
                "a recovery spares transactions of newer epochs: commit of checkpoint 1 raised"
                " CommitLost"
            ),
        ),
        (
            "losses are passed over",
            "commit said nothing: the rows are lost in silence; it must raise CommitLost",
        ),
        ("losses are some error", "commit raised OSError"),
        (
            "rows are visible when the writer closes",
            "a crash amid the writing: after recover, 7 rows are visible already",
        ),
    ],
)
def test_a_flaw_is_told_with_the_step_and_the_promise(
    flaw: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(NotConforming) as caught:
        checked(tmp_path, flaw, other_process=False)
    assert sentence in str(caught.value)


def test_transactions_that_a_recovery_leaves_open_are_told(tmp_path: Path) -> None:
    def open_files() -> list[str]:
        sink = Table(str(tmp_path))
        shown = {row["id"] for row in sink.content()["rows"]}
        return [
            file.name
            for file in tmp_path.glob("*.rows")
            if not shown.issuperset(row["id"] for row in json.loads(file.read_text()))
        ]

    checked(tmp_path, left_open=open_files, other_process=False)
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(
        NotConforming, match="behind the pre commit: after recover, 2 transactions are open"
    ):
        checked(tmp_path, "recover aborts nothing", left_open=open_files, other_process=False)
