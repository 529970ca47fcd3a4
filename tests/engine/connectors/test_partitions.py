"""Records are parted by values, keep their order, and lie in folders that other programs read."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from headrace.engine.connectors.partitions import Partitions, is_folder, partitions_by
from headrace.engine.contract.errors import UserError


def parted(batch: pa.RecordBatch, by: Partitions) -> dict[str, list[int]]:
    return {by.folder(values): part["n"].to_pylist() for values, part in by.split(batch)}


def test_equal_values_share_a_folder_and_records_keep_their_order() -> None:
    batch = pa.record_batch(
        {
            "n": [1, 2, 3, 4, 5],
            "day": pa.array([0, 1, 0, None, 0], pa.date32()),
            "ok": [True, True, True, True, False],
        }
    )
    assert parted(batch, partitions_by(["day", "ok"])) == {
        "day=1970-01-01/ok=true/": [1, 3],
        "day=1970-01-01/ok=false/": [5],
        "day=1970-01-02/ok=true/": [2],
        "day=__HIVE_DEFAULT_PARTITION__/ok=true/": [4],
    }


def test_one_value_costs_no_copy() -> None:
    batch = pa.record_batch({"n": [1, 2], "k": ["a", "a"]})
    [(values, part)] = partitions_by("k").split(batch)
    assert values == ("a",)
    assert part["n"].buffers()[1].address == batch["n"].buffers()[1].address


def test_columns_stay_where_a_table_keeps_them() -> None:
    batch = pa.record_batch({"n": [1], "k": ["a"]})
    [(_, part)] = partitions_by("k", kept=True).split(batch)
    assert part.schema.names == ["n", "k"]


def test_times_are_parted_by_their_unit() -> None:
    times = [datetime.datetime(2026, 11, 22, 23), datetime.datetime(2026, 11, 23, hour=1)]
    batch = pa.record_batch({"n": [1, 2], "t": pa.array([*times], pa.timestamp("us"))})
    by_year = Partitions(("t",), kept=True, units=(("t", "year"),))
    by_day = Partitions(("t",), kept=True, units=(("t", "day"),))
    assert list(parted(batch, by_year).values()) == [[1, 2]]
    assert list(parted(batch, by_day).values()) == [[1], [2]]


@pytest.mark.parametrize("text", ["a/b", "..", "x=y", "a\\b", "\n", "%", "[1]", "é"])
def test_no_value_leads_out_of_its_folder(text: str) -> None:
    folder = partitions_by("k").folder((text,))
    assert folder.count("/") == 1
    assert is_folder(folder.removesuffix("/"))


@pytest.mark.parametrize(
    "path", ["..", "a", "/a=1", "a=1/..", "a=1/b", "../a=1", "a=1//b=2", ".a=1"]
)
def test_other_folders_are_told_apart(path: str) -> None:
    assert not is_folder(path)


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ("dya", "there is no such column; did you mean 'day'?"),
        ("x", "a column of double does not make names of folders"),
        (["day", "day"], "names a column twice"),
        ("_part", "readers pass over folders whose names begin with '_'"),
        (["day", "x", "_part"], ""),
    ],
)
def test_columns_that_cannot_part_records_are_refused(by: str | list[str], said: str) -> None:
    schema = pa.schema([("day", pa.string()), ("x", pa.float64()), ("_part", pa.string())])
    with pytest.raises(UserError) as told:
        partitions_by(by).check(schema)
    assert said in str(told.value)


def test_some_column_is_left_for_the_files() -> None:
    with pytest.raises(UserError, match="no column is left for the files"):
        partitions_by("day").check(pa.schema([("day", pa.string())]))
