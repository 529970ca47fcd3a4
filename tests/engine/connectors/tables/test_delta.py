"""Delta: twins, other writers, tables that ask for more than files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from headrace.engine.connectors.tables import delta
from headrace.engine.contract.errors import CommitLost, UserError
from headrace.engine.contract.operators import run_of

from .conftest import Table, rows


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table("delta", tmp_path)


def test_a_twin_that_commits_in_between_is_noticed(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin read the token before, too; its entry comes first."""
    sink = table.sink()
    transactions = table.precommitted(sink, 1, rows(1))
    real = delta._open

    def open_then_lose(*arguments: Any) -> Any:
        opened = real(*arguments)
        monkeypatch.setattr(delta, "_open", real)
        table.committer(sink).commit(1, transactions)
        return opened

    monkeypatch.setattr(delta, "_open", open_then_lose)
    late = table.committer(sink)
    with pytest.raises((CommitFailedError, CommitLost, OSError)):
        late.commit(1, transactions)
    late.commit(1, transactions)
    assert table.numbers() == [1]


def test_other_writers_are_in_nobodys_way(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = table.sink()
    transactions = table.precommitted(sink, 1, rows(1))
    real = delta._open

    def open_then_append(*arguments: Any) -> Any:
        opened = real(*arguments)
        write_deltalake(str(table.root), pa.table(rows(7)), mode="append")
        return opened

    monkeypatch.setattr(delta, "_open", open_then_append)
    table.committer(sink).commit(1, transactions)
    assert table.numbers() == [1, 7]


def test_rows_stay_after_optimize_and_vacuum(table: Table) -> None:
    """The notes' folder is passed over, and so is the token."""
    sink = table.sink(by=["day"])
    first = table.precommitted(sink, 1, rows(1, 11))
    committer = table.committer(sink)
    committer.commit(1, first)
    committer.commit(2, table.precommitted(sink, 2, rows(21)))
    opened = DeltaTable(str(table.root))
    opened.optimize.compact()
    opened.create_checkpoint()
    opened.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table.committer(sink).recover(2, first)
    # Without a look at the token it would miss the files that are gone.
    table.committer(sink, "bb", job="renamed").recover(2, first)
    assert table.numbers() == [1, 11, 21]


def test_the_log_holds_statistics_and_the_checkpoint(table: Table) -> None:
    sink = table.sink()
    table.committer(sink).commit(3, table.precommitted(sink, 3, rows(4, 9)))
    opened = DeltaTable(str(table.root))
    facts = pa.table(opened.get_add_actions(flatten=True)).to_pylist()[0]
    assert (facts["num_records"], facts["min.n"], facts["max.n"]) == (2, 4, 9)
    entry = opened.history(1)[0]
    told = [entry[f"headrace.{name}"] for name in ("job", "sink", "checkpoint")]
    assert told == ["job", "out", "3"]
    assert opened.transaction_version(f"headrace/{run_of('job', 'out', 'aa')}") == 3


def test_a_table_that_is_gone_is_lost_by_name(table: Table) -> None:
    sink = table.sink()
    transactions = table.precommitted(sink, 1, rows(1))
    (table.root / "_delta_log" / "00000000000000000000.json").unlink()
    (table.root / "_delta_log").rmdir()
    with pytest.raises(CommitLost, match="is gone; begin anew"):
        table.committer(sink).commit(1, transactions)


def test_a_table_that_asks_for_more_than_files_is_refused(table: Table) -> None:
    table.sink()
    DeltaTable(str(table.root)).alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(UserError, match=r"uses delta\.constraints\.positive, which this sink"):
        table.sink()


def test_rows_cannot_be_taken_back(table: Table) -> None:
    committer: Any = table.committer(table.sink())
    assert committer.output() == ""
    with pytest.raises(UserError, match="start with fresh=append"):
        committer.remove_output()
