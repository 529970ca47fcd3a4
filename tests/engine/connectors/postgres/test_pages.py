"""Pages and slices in the order of a column: every row once, from any position."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace.engine.connectors.postgres.connection import Connection
from headrace.engine.connectors.postgres.pages import Ordered, Page, place

AT = "__headrace_at"


def page_of(*values: int) -> Page:
    table = pa.table({"v": list(range(len(values))), AT: pa.array(values, pa.int64())})
    return Page(table, pa.schema([("v", pa.int64())]), last=True)


def test_slices_keep_equal_values_together() -> None:
    page = page_of(1, 2, 2, 2, 3, 4, 4)
    taken = []
    while page.left:
        batch, at = page.take(2)
        taken.append((batch.column(0).to_pylist(), at))
    assert taken == [([0], "1"), ([1, 2, 3], "2"), ([4], "3"), ([5, 6], "4")]


def test_distinct_values_fill_their_slices() -> None:
    page = page_of(*range(10))
    sizes = []
    while page.left:
        sizes.append(page.take(4)[0].num_rows)
    assert sizes == [4, 4, 2]


def test_an_empty_page_has_nothing_left() -> None:
    assert page_of().left == 0


@pytest.mark.services
@pytest.mark.parametrize("column", ["k", "name", "at", ""])
@pytest.mark.parametrize("page_rows", [1, 3, 1000])
def test_pages_hand_out_every_row_once_and_in_order(
    db: Any, connect: Callable[..., Connection], column: str, page_rows: int
) -> None:
    db.psql(
        "CREATE TABLE t (id int, k bigint, name text, at timestamptz);"
        " INSERT INTO t SELECT n, n % 20, 'n' || n % 7, now() + n % 5 * interval '1.000001 s'"
        " FROM generate_series(1, 100) n"
    )
    type_ = {"k": "bigint", "name": "text", "at": "timestamptz", "": ""}[column]
    ordered = Ordered("t", column, type_, ('"id"',), pa.schema([("id", pa.int32())]))
    connection, rng = connect(), random.Random(1)
    seen: list[int] = []
    after: str | None = place(0) if not column else None
    while True:
        page = ordered.page(connection, after, None, page_rows)
        while page.left:
            batch, after = page.take(rng.randint(1, 10))
            seen += batch.column(0).to_pylist()
            if rng.random() < 0.2:
                break  # a restart goes on at the position
        if page.last and not page.left:
            break
    assert sorted(seen) == list(range(1, 101))
    by = {"k": "k", "name": "name", "at": "at", "": "id"}[column]
    keys = dict(row.split("|") for row in db.psql(f"SELECT id, {by} FROM t"))
    order = [keys[str(n)] for n in seen]
    expected = db.psql(f"SELECT {by} FROM t ORDER BY {by}")
    assert order == expected


@pytest.mark.services
def test_bounds_are_behind_the_first_and_up_to_the_last(
    db: Any, connect: Callable[..., Connection]
) -> None:
    db.psql("CREATE TABLE t (id int); INSERT INTO t SELECT generate_series(1, 10)")
    ordered = Ordered("t", "id", "integer", ('"id"',), pa.schema([("id", pa.int32())]))
    connection = connect()
    batch, at = ordered.page(connection, "3", "6").take(100)
    assert (batch.column(0).to_pylist(), at) == ([4, 5, 6], "6")
    assert ordered.ends(connection) == ("1", "10")
    assert ordered.newest(connection, "9") == "10"
    assert ordered.newest(connection, "10") is None
