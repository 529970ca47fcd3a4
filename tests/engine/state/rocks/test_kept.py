from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.engine.operators import aggregations as agg
from headrace.engine.operators.aggregate import AggregateRows
from headrace.engine.state.rocks.database import ChangedRows, RocksDatabase
from headrace.engine.state.rocks.files import RocksSizes
from headrace.engine.state.rocks.kept import RocksTable

SCHEMA = pa.schema([("k", pa.int64())])
SMALL = RocksSizes(1 << 20, 1 << 20)


def opened(place: Path, cache_bytes: int = 1 << 30) -> tuple[RocksDatabase, RocksTable]:
    database = RocksDatabase(str(place / "db"), "db", range(8), SMALL)
    at_hand = AggregateRows(["k"], {"n": agg.count()}, SCHEMA, "totals")
    return database, RocksTable(database, at_hand, 8, cache_bytes)


def changed(generation: int, rows: dict[int, tuple[int, int]]) -> ChangedRows:
    """{slot: (key, count)}."""
    keys, counts = zip(*rows.values(), strict=True)
    schema = pa.schema([("k", pa.int64()), pa.field("n", pa.int64(), nullable=False)])
    batch = pa.RecordBatch.from_pydict({"k": list(keys), "n": list(counts)}, schema)
    return ChangedRows(generation, np.array(list(rows)), batch)


def counts(table: RocksTable, changes: list[ChangedRows]) -> list[int]:
    """The values of all entries in order; their keys are in order piece by piece."""
    found = []
    for piece in table.pieces(changes):
        assert piece == sorted(piece)
        found += [int.from_bytes((value or b"")[1:9], "little") for _, value in piece]
    return found


def test_a_row_that_changed_often_is_written_once(tmp_path: Path) -> None:
    _, table = opened(tmp_path)
    first = changed(0, {0: (7, 1), 1: (9, 1)})
    assert sorted(counts(table, [first, changed(0, {1: (9, 2)})])) == [1, 2]


def test_slots_of_two_generations_are_different_rows(tmp_path: Path) -> None:
    _, table = opened(tmp_path)
    changes = [changed(0, {0: (7, 1)}), changed(1, {0: (9, 5)}), changed(1, {1: (7, 6)})]
    found = counts(table, changes)
    assert found[0] == 1
    assert sorted(found[1:]) == [5, 6]


def test_rows_wait_until_many_layers_have_piled_up(tmp_path: Path) -> None:
    database, table = opened(tmp_path)
    for number in range(256):
        database.settle()
        assert not database.is_settled or not number
        database.stage_rows("aggregate", [changed(0, {0: (7, number)})])
        database.commit()
    database.settle()
    assert database.is_settled
    database.close()
    assert table.layout.name == "aggregate"
