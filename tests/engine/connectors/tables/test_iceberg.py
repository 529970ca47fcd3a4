"""Iceberg: twins, other writers' retries, partitions by time, catalogs that are not there."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from headrace.engine.connectors.partitions import WHOLE
from headrace.engine.connectors.tables import iceberg
from headrace.engine.connectors.tables.iceberg import IcebergSink
from headrace.engine.connectors.writers import PARQUET
from headrace.engine.contract.errors import CommitLost, HeadraceError, UserError
from headrace.engine.contract.operators import run_of

from .conftest import Table, rows

TIMES = pa.schema([("n", pa.int64()), ("t", pa.timestamp("us"))])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table("iceberg", tmp_path)


def meet(monkeypatch: pytest.MonkeyPatch, twin: Any) -> None:
    """Let `twin` act once, after a committer has loaded the table."""
    real = iceberg._load

    def load_then_meet(*arguments: Any) -> Any:
        loaded = real(*arguments)
        monkeypatch.setattr(iceberg, "_load", real)
        twin()
        return loaded

    monkeypatch.setattr(iceberg, "_load", load_then_meet)


def test_a_twin_that_commits_in_between_is_noticed(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.sink()
    transactions = table.precommitted(sink, 1, rows(1))
    meet(monkeypatch, lambda: table.committer(sink).commit(1, transactions))
    table.committer(sink).commit(1, transactions)
    assert table.numbers() == [1]


def test_another_writer_in_between_is_met_again(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.sink()
    transactions = table.precommitted(sink, 1, rows(1))
    meet(monkeypatch, lambda: table.loaded().append(pa.table(rows(7))))
    table.committer(sink).commit(1, transactions)
    assert table.numbers() == [1, 7]
    assert "commit.retry.num-retries" not in table.loaded().properties


def test_the_token_and_the_checkpoint_are_in_the_table(table: Table) -> None:
    sink = table.sink()
    table.committer(sink).commit(3, table.precommitted(sink, 3, rows(1)))
    loaded = table.loaded()
    assert loaded.properties[f"headrace.{run_of('job', 'out', 'aa')}"] == "3"
    summary = loaded.current_snapshot().summary
    told = [summary[f"headrace.{name}"] for name in ("job", "sink", "checkpoint")]
    assert told == ["job", "out", "3"]


@pytest.mark.parametrize("unit", ["year", "month", "day", "hour"])
def test_tables_partitioned_by_time_take_rows(table: Table, unit: str) -> None:
    table.sink(TIMES)
    with table.loaded().update_spec() as spec:
        spec.add_field("t", unit)
    sink = table.sink(TIMES)
    begin = datetime.datetime(2025, 12, 31, 22, 30)
    times = [begin + datetime.timedelta(minutes=45 * step) for step in range(8)]
    batch = pa.record_batch([list(range(8)), pa.array(times)], schema=TIMES)
    table.committer(sink).commit(1, table.precommitted(sink, 1, batch))
    assert table.numbers() == list(range(8))
    after = table.loaded().scan(row_filter="t >= '2026-01-01T00:00:00'").to_arrow()
    assert sorted(after["n"].to_pylist()) == [2, 3, 4, 5, 6, 7]


def test_partitions_that_do_not_follow_from_bounds_are_refused(table: Table) -> None:
    table.sink()
    with table.loaded().update_spec() as spec:
        spec.add_field("n", "bucket[4]")
    with pytest.raises(UserError, match=r"is partitioned by bucket\[4\]\(n\); this sink knows"):
        table.sink()


def test_partitions_without_bounds_are_refused(table: Table) -> None:
    table.sink(by=["day"])
    with table.loaded().transaction() as transaction:
        transaction.set_properties({"write.metadata.metrics.default": "none"})
    with pytest.raises(UserError, match="keeps no bounds of column 'day'"):
        table.sink()


def test_a_table_that_is_gone_is_lost_by_name(table: Table) -> None:
    sink = table.sink()
    transactions = table.precommitted(sink, 1, rows(1))
    load_catalog("default", **table.catalog).drop_table("shop.orders")
    with pytest.raises(CommitLost, match=r"shop\.orders is gone; begin anew"):
        table.committer(sink).commit(1, transactions)


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    def sink(name: str, catalog: Any) -> IcebergSink:
        return IcebergSink(name, catalog, PARQUET, partitions=WHOLE, roll_bytes=1)

    with pytest.raises(UserError, match=r"has no namespace; write 'shop\.orders'"):
        sink("orders", "default")
    with pytest.raises(HeadraceError, match="catalog 'nowhere' cannot be used") as told:
        sink("a.b", "nowhere").check(TIMES)
    secret = {"type": "sql", "uri": "sqlite:///none/none/x.db", "warehouse": "file:///x"}
    with pytest.raises(HeadraceError):
        sink("a.b", secret).check(TIMES)
    assert len(str(told.value).splitlines()) == 1
