"""Both kinds of tables: what is committed is there once, and nothing else is left, whatever step a
crash comes at.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.engine.connectors import durable
from headrace.engine.connectors.tables import data_files
from headrace.engine.contract.errors import CommitLost, HeadraceError, UserError
from headrace.engine.contract.operators import OperatorContext, Transaction
from headrace.testing import check_sink

from .conftest import SCHEMA, Table, rows


def test_rows_are_there_after_the_commit_and_not_before(table: Table) -> None:
    sink = table.sink()
    transactions = table.precommitted(sink, 1, rows(1, 2), rows(3))
    assert table.numbers() == []
    table.committer(sink).commit(1, transactions)
    assert table.numbers() == [1, 2, 3]
    assert table.notes() == []


def test_repeated_commits_do_nothing_also_after_newer_ones(table: Table) -> None:
    sink = table.sink()
    committer = table.committer(sink)
    first, second = (table.precommitted(sink, n, rows(n)) for n in (1, 2))
    committer.commit(1, first)
    committer.commit(1, first)
    committer.commit(2, [*first, *second])
    table.committer(sink).commit(1, first)
    table.committer(sink).recover(2, [*first, *second])
    assert table.numbers() == [1, 2]


def test_a_fresh_run_begins_with_checkpoint_one_and_all_its_rows_arrive(table: Table) -> None:
    sink = table.sink()
    table.committer(sink).commit(7, table.precommitted(sink, 7, rows(1)))
    again = table.sink()
    fresh = table.precommitted(again, 1, rows(2), run="bb")
    table.committer(again, "bb").commit(1, fresh)
    table.committer(again, "bb").commit(1, fresh)
    assert table.numbers() == [1, 2]


def test_transactions_of_two_runs_are_committed_together(table: Table) -> None:
    """A job that goes on from a savepoint in a new directory brings those of the run before."""
    sink = table.sink()
    both = [*table.precommitted(sink, 5, rows(1)), *table.precommitted(sink, 1, rows(2), run="bb")]
    for _ in range(2):
        table.committer(sink, "bb").recover(1, both)
    assert table.numbers() == [1, 2]


def test_a_commit_whose_answer_was_lost_is_recognised(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.sink()
    transactions = table.precommitted(sink, 1, rows(1))

    def lost(*arguments: Any) -> None:
        raise ConnectionError("the answer is lost")

    with monkeypatch.context() as patch, pytest.raises(ConnectionError):
        patch.setattr(data_files.Notes, "remove", lost)
        table.committer(sink).commit(1, transactions)
    table.committer(sink).recover(1, transactions)
    assert table.numbers() == [1]
    assert table.notes() == []


def test_recovery_deletes_files_of_aborted_transactions(table: Table) -> None:
    sink = table.sink(by=["day"])
    kept = table.precommitted(sink, 1, rows(1))
    table.precommitted(sink, 2, rows(98, 99))
    writer = sink.writer()
    writer.open(OperatorContext("job", "out", 1, 2, 128, 1, owner="aa"))
    writer.write(rows(97))
    assert len(table.data_files()) == 4
    table.committer(sink).recover(1, kept)
    assert table.data_files() == [str(kept[0].payload["file"])]
    assert table.notes() == []
    assert table.numbers() == [1]
    writer.close()


def test_recovery_leaves_newer_epochs_other_runs_and_other_jobs_alone(table: Table) -> None:
    sink = table.sink()
    newer = table.precommitted(sink, 1, rows(1), epoch=2)
    theirs = table.precommitted(sink, 1, rows(2), run="bb")
    table.committer(sink).recover(0, [], epoch=1)
    table.committer(sink, job="other").recover(0, [])
    assert len(table.data_files()) == 2
    table.committer(sink).commit(1, newer)
    table.committer(sink, "bb").commit(1, theirs)
    assert table.numbers() == [1, 2]


def test_a_file_that_the_log_names_is_never_deleted(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash has left the note of a committed file, and the job goes back to before its
    checkpoint.
    """
    sink = table.sink(by=["day"])
    transactions = table.precommitted(sink, 2, rows(1))
    with monkeypatch.context() as patch:
        patch.setattr(data_files.Notes, "remove", lambda *arguments: None)
        table.committer(sink).commit(2, transactions)
    assert len(table.notes()) == 1
    table.committer(sink).recover(1, [])
    assert table.notes() == []
    assert table.numbers() == [1]


def test_a_writer_that_is_closed_early_takes_its_files_along(table: Table) -> None:
    sink = table.sink(roll_bytes=1)
    writer = sink.writer()
    writer.open(OperatorContext("job", "out", 0, 1, 128, 1, owner="aa"))
    writer.write(rows(1))
    writer.write(rows(2))
    writer.close()
    assert table.data_files() == []


def test_a_file_that_is_gone_is_loud_and_nothing_is_committed(table: Table) -> None:
    sink = table.sink()
    transactions = [
        *table.precommitted(sink, 1, rows(1)),
        *table.precommitted(sink, 1, rows(2)),
    ]
    (table.root / str(transactions[1].payload["file"])).unlink()
    with pytest.raises(CommitLost, match=r"it is gone, and was written with \d+ bytes"):
        table.committer(sink).commit(1, transactions)
    assert table.numbers() == []


def test_a_crafted_transaction_does_not_lead_out_of_the_folder(table: Table) -> None:
    sink = table.sink()
    [transaction] = table.precommitted(sink, 1, rows(1))
    transaction.payload["file"] = "../part-out-0-1-1-aa.parquet"
    with pytest.raises(CommitLost, match="is not one of this sink"):
        table.committer(sink).commit(1, [transaction])


STRANGE = ["a/b", "c d", "50%", "é", "x=y", "it's", "q?", "[1]", "", None]


def test_partitions_of_any_text_are_read_back(table: Table) -> None:
    sink = table.sink(by=["day"])
    batch = pa.record_batch([list(range(10)), pa.array(STRANGE)], schema=SCHEMA)
    table.committer(sink).commit(1, table.precommitted(sink, 1, batch))
    read = table.read().sort_by("n")
    days = [day or None for day in read["day"].to_pylist()]
    assert days == [day or None for day in STRANGE]
    assert table.notes() == []


def test_types_become_those_of_tables(table: Table) -> None:
    schema = pa.schema(
        [
            ("small", pa.int8()),
            ("positive", pa.uint16()),
            ("time", pa.timestamp("ms")),
            ("zoned", pa.timestamp("s", "Europe/Berlin")),
            ("list", pa.list_(pa.int16())),
            ("struct", pa.struct([("a", pa.uint8()), ("b", pa.large_string())])),
            ("text", pa.large_string()),
            ("money", pa.decimal128(12, 2)),
            ("flag", pa.bool_()),
            ("day", pa.date32()),
        ]
    )
    sink = table.sink(schema)
    values = {
        "small": [1, None],
        "positive": [65535, 2],
        "time": [1_700_000_000_123, None],
        "zoned": [1_700_000_000, 1],
        "list": [[1, None], None],
        "struct": [{"a": 255, "b": "x"}, None],
        "text": ["t", ""],
        "money": [None, None],
        "flag": [True, None],
        "day": [1, 2],
    }
    arrays = [pa.array(values[column.name], column.type) for column in schema]
    batch = pa.record_batch(arrays, schema=schema)
    table.committer(sink).commit(1, table.precommitted(sink, 1, batch))
    read = table.read()
    assert read["positive"].to_pylist() == [65535, 2]
    assert read["struct"].to_pylist()[0] == {"a": 255, "b": "x"}
    assert read["list"].to_pylist() == [[1, None], None]
    assert read["time"].to_pylist() == batch.column("time").to_pylist()
    assert [t and t.timestamp() for t in read["zoned"].to_pylist()] == [1_700_000_000, 1]
    assert read["day"].to_pylist() == batch.column("day").to_pylist()


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (
            pa.schema([("n", pa.string()), ("day", pa.string())]),
            "has column 'n' as int64, and the stream's is string",
        ),
        (pa.schema([("m", pa.int64())]), "has no column 'm'; choose from 'n' and 'day'"),
        (pa.schema([("n", pa.uint64())]), "column 'n' is uint64, which tables do not know"),
        (pa.schema([("n", pa.timestamp("ns"))]), r"for example to timestamp\[us\]"),
        (pa.schema([("n", pa.duration("s"))]), "cast it, for example to string"),
    ],
)
def test_records_that_do_not_fit_the_table_are_refused_before_anything_runs(
    table: Table, schema: pa.Schema, said: str
) -> None:
    table.sink()
    with pytest.raises(UserError, match=said) as told:
        table.sink(schema)
    assert "\n" not in str(told.value)


def test_fewer_columns_and_narrower_numbers_fit(table: Table) -> None:
    table.sink()
    sink = table.sink(pa.schema([("n", pa.int16())]))
    batch = pa.record_batch({"n": pa.array([1, 2], pa.int16())})
    table.committer(sink).commit(1, table.precommitted(sink, 1, batch))
    assert table.numbers() == [1, 2]
    assert table.read()["day"].to_pylist() == [None, None]


def test_other_partitions_than_the_tables_are_refused(table: Table) -> None:
    table.sink(by=["day"])
    with pytest.raises(UserError, match=r"is partitioned by \['day'\], not by partition_by="):
        table.sink(by=["n"])
    sink = table.sink()
    transactions = table.precommitted(sink, 1, rows(1, 2))
    assert len(transactions) == 2


def test_an_error_of_storage_is_one_sentence_with_the_sink(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.sink()
    writer = sink.writer()
    writer.open(OperatorContext("job", "out", 0, 1, 128, 1, owner="aa"))

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "make_folder", full)
    with pytest.raises(HeadraceError, match=r"^sink 'out' cannot write to .*: No space left on d"):
        writer.write(rows(1))
    writer.close()


def test_files_are_parquet_of_the_chosen_size(table: Table) -> None:
    sink = table.sink(roll_bytes=20_000)
    numbers = random.Random(1).sample(range(10**9), 20_000)
    batches = [rows(*numbers[first : first + 2000]) for first in range(0, 20_000, 2000)]
    transactions = table.precommitted(sink, 1, *batches)
    assert len(transactions) >= 2
    table.committer(sink).commit(1, transactions)
    found = [pq.ParquetFile(table.root / file).metadata.num_rows for file in table.data_files()]
    assert sum(found) == 20_000
    assert table.numbers() == sorted(numbers)


def test_the_sink_conforms(table: Table) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])

    def lose(transactions: Sequence[Transaction]) -> None:
        for transaction in transactions:
            (table.root / str(transaction.payload["file"])).unlink()

    cases = check_sink(lambda: table.sink(schema), table.read, lose=lose, left_open=table.notes)
    assert len(cases) == 16
